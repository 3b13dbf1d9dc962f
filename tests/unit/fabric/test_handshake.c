/*
 * The handshake as a conversation between two state machines: good peers agree, and nothing else
 * gets through.
 */
#include "daemon/fabric/link/handshake.h"
#include "daemon/fabric/link/handshake_keys.h"
#include "nodes.h"

#include <criterion/criterion.h>
#include <string.h>

enum { MESSAGES = 4, TOKEN = 77 };

/* a, the lower node, dials b. */
struct talk {
        struct cluster of_a, of_b;
        struct handshake a, b;
        uint8_t said[MESSAGES][HANDSHAKE_OUT_MAX]; /* hello, challenge, proof, welcome */
        size_t size[MESSAGES];
        enum handshake_result a_result, b_result;
};

static void set_up(struct talk *t)
{
        memset(t, 0, sizeof *t);
        make_cluster(&t->of_a, 3, 0);
        make_cluster(&t->of_b, 3, 1);
}

static void meet(struct talk *t)
{
        handshake_dial(&t->a, &t->of_a, 1, CHANNEL_LINK, TOKEN);
        handshake_accept(&t->b, &t->of_b);
        t->a_result = t->b_result = HANDSHAKE_MORE;
}

/* Takes the next message of `from` as message i. */
static void listen_to(struct talk *t, struct handshake *from, int i)
{
        t->size[i] = from->out_size;
        memcpy(t->said[i], from->out, from->out_size);
        from->out_size = 0;
}

static enum handshake_result hear(struct handshake *to, const void *p, size_t n)
{
        size_t taken;
        return n > 0 && to->state != HANDSHAKE_OVER ? handshake_feed(to, p, n, &taken)
                                                    : HANDSHAKE_MORE;
}

static void exchange(struct talk *t, int last, int bad, size_t bit)
{
        for (int i = 0; i <= last; i++) {
                struct handshake *from = i % 2 ? &t->b : &t->a, *to = i % 2 ? &t->a : &t->b;
                enum handshake_result *result = i % 2 ? &t->a_result : &t->b_result;
                listen_to(t, from, i);
                if (i == bad)
                        t->said[i][bit / 8] ^= (uint8_t)(1 << bit % 8);
                if (*result == HANDSHAKE_MORE)
                        *result = hear(to, t->said[i], t->size[i]);
        }
}

/* The conversation up to message `last`, with one bit of message `bad` flipped (none: -1). */
static void talk_on(struct talk *t, int last, int bad, size_t bit)
{
        meet(t);
        exchange(t, last, bad, bit);
}

static void talk_all(struct talk *t)
{
        talk_on(t, MESSAGES - 1, -1, 0);
}

static void expect_both_refuse(struct talk *t, const char *a_says, const char *b_says)
{
        talk_all(t);
        cr_assert_eq(t->a_result, HANDSHAKE_REFUSED);
        cr_assert_eq(t->b_result, HANDSHAKE_REFUSED);
        cr_assert(strstr(t->a.why, a_says), "a says: %s", t->a.why);
        cr_assert(strstr(t->b.why, b_says), "b says: %s", t->b.why);
}

Test(handshake, good_peers_agree_on_who_and_what_for)
{
        struct talk t;
        set_up(&t);
        talk_all(&t);
        cr_assert_eq(t.a_result, HANDSHAKE_DONE);
        cr_assert_eq(t.b_result, HANDSHAKE_DONE);
        cr_assert_eq(t.a.node, 1);
        cr_assert_eq(t.b.node, 0);
        cr_assert_eq(t.b.role, CHANNEL_LINK);
        cr_assert_eq(t.b.token, TOKEN);
}

Test(handshake, each_direction_has_its_own_key)
{
        struct talk t;
        set_up(&t);
        talk_all(&t);
        cr_assert_arr_eq(t.a.send_key, t.b.receive_key, CHANNEL_KEY);
        cr_assert_arr_eq(t.a.receive_key, t.b.send_key, CHANNEL_KEY);
        cr_assert_arr_neq(t.a.send_key, t.a.receive_key, CHANNEL_KEY);
}

Test(handshake, every_conversation_has_fresh_keys)
{
        struct talk t, u;
        set_up(&t);
        set_up(&u);
        talk_all(&t);
        talk_all(&u);
        cr_assert_arr_neq(t.a.send_key, u.a.send_key, CHANNEL_KEY);
        cr_assert_arr_neq(t.a.receive_key, u.a.receive_key, CHANNEL_KEY);
}

/* Whoever recorded a conversation and gets the cluster key later lacks the exchanged secret. */
Test(handshake, the_cluster_key_and_all_that_was_said_do_not_give_the_session_keys)
{
        static const uint8_t nothing[CLUSTER_KEY];
        struct talk t;
        uint8_t guess[CHANNEL_KEY];
        set_up(&t);
        talk_all(&t);
        handshake_session(t.of_a.key, t.a.transcript, t.a.known - HANDSHAKE_PROOF, nothing, guess);
        cr_assert_arr_neq(guess, t.a.send_key, CHANNEL_KEY);
        cr_assert_arr_neq(guess, t.a.receive_key, CHANNEL_KEY);
        cr_assert(sodium_is_zero(t.a.kx_secret, sizeof t.a.kx_secret));
        cr_assert(sodium_is_zero(t.b.kx_secret, sizeof t.b.kx_secret));
}

/* A point of low order gives an exchanged secret that everybody knows. */
Test(handshake, a_bad_public_key_is_refused)
{
        struct talk t;
        set_up(&t);
        meet(&t);
        memset(t.a.out + HANDSHAKE_HELLO - crypto_kx_PUBLICKEYBYTES, 0, crypto_kx_PUBLICKEYBYTES);
        memcpy(t.a.transcript, t.a.out, HANDSHAKE_HELLO);
        listen_to(&t, &t.a, 0);
        hear(&t.b, t.said[0], t.size[0]);
        listen_to(&t, &t.b, 1);
        hear(&t.a, t.said[1], t.size[1]);
        listen_to(&t, &t.a, 2);
        cr_assert_eq(hear(&t.b, t.said[2], t.size[2]), HANDSHAKE_REFUSED);
        cr_assert(strstr(t.b.why, "breaks the rules"), "%s", t.b.why);
}

Test(handshake, bytes_may_come_one_by_one)
{
        struct talk t;
        set_up(&t);
        meet(&t);
        while (t.a_result == HANDSHAKE_MORE) {
                for (int i = 0; i < 2; i++) {
                        struct handshake *from = i ? &t.b : &t.a, *to = i ? &t.a : &t.b;
                        enum handshake_result *result = i ? &t.a_result : &t.b_result;
                        listen_to(&t, from, i);
                        for (size_t k = 0; k < t.size[i]; k++)
                                *result = hear(to, t.said[i] + k, 1);
                }
        }
        cr_assert_eq(t.a_result, HANDSHAKE_DONE);
        cr_assert_eq(t.b_result, HANDSHAKE_DONE);
}

Test(handshake, bytes_behind_it_are_left)
{
        struct talk t;
        uint8_t bytes[HANDSHAKE_PROOF + 9] = { 0 };
        size_t taken = 0;
        set_up(&t);
        talk_on(&t, 2, -1, 0);
        memcpy(bytes, t.b.out, HANDSHAKE_PROOF);
        cr_assert_eq(handshake_feed(&t.a, bytes, sizeof bytes, &taken), HANDSHAKE_DONE);
        cr_assert_eq(taken, HANDSHAKE_PROOF);
}

/* ---- the causes that people should read ---- */

Test(handshake, another_key_is_named_on_both_sides)
{
        struct talk t;
        set_up(&t);
        make_key(t.of_b.key, 2);
        expect_both_refuse(&t, "node b holds another cluster key",
                           "node a holds another cluster key");
}

Test(handshake, another_list_of_owners_is_named_on_both_sides)
{
        struct talk t;
        set_up(&t);
        t.of_b.hash[31] ^= 1;
        expect_both_refuse(&t, "node b has another list of peers or owners",
                           "node a has another list of peers or owners");
}

Test(handshake, an_unknown_node_is_named_on_both_sides)
{
        struct talk t;
        set_up(&t);
        strcpy(t.of_a.nodes[0].name, "stranger");
        expect_both_refuse(&t, "node b does not have this node, stranger",
                           "node stranger is not in this node's list");
}

Test(handshake, an_address_that_leads_back_is_named)
{
        struct talk t;
        set_up(&t);
        t.of_b = t.of_a;
        expect_both_refuse(&t, "leads to this node", "it has this node's name, a");
}

Test(handshake, an_address_of_another_node_is_named)
{
        struct talk t;
        set_up(&t);
        make_cluster(&t.of_b, 3, 2);
        expect_both_refuse(&t, "another node answers at the address of node b",
                           "node a took this node for node b");
}

Test(handshake, the_newest_version_of_messages_that_both_speak_is_taken)
{
        static const struct {
                uint32_t oldest, newest; /* of b; a has this release's */
                uint32_t taken;          /* 0: none */
        } cases[] = { { MESSAGES_OLDEST, MESSAGES_NEWEST, MESSAGES_NEWEST },
                      { MESSAGES_NEWEST, MESSAGES_NEWEST, MESSAGES_NEWEST },
                      { MESSAGES_NEWEST, MESSAGES_NEWEST + 1, MESSAGES_NEWEST },
                      { MESSAGES_OLDEST - 1, MESSAGES_NEWEST + 1, MESSAGES_NEWEST },
                      { MESSAGES_OLDEST, MESSAGES_OLDEST, MESSAGES_OLDEST },
                      { MESSAGES_OLDEST - 1, MESSAGES_OLDEST, MESSAGES_OLDEST },
                      { MESSAGES_NEWEST + 1, MESSAGES_NEWEST + 2, 0 },
                      { MESSAGES_OLDEST - 2, MESSAGES_OLDEST - 1, 0 } };

        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
                struct talk t;
                set_up(&t);
                meet(&t);
                t.b.oldest = cases[i].oldest;
                t.b.newest = cases[i].newest;
                exchange(&t, cases[i].taken ? MESSAGES - 1 : 1, -1, 0);
                if (cases[i].taken) {
                        cr_assert_eq(t.a_result, HANDSHAKE_DONE);
                        cr_assert_eq(t.a.speaks, cases[i].taken);
                        cr_assert_eq(t.b.speaks, cases[i].taken);
                        continue;
                }
                cr_assert_eq(t.a_result, HANDSHAKE_REFUSED);
                cr_assert_eq(t.b_result, HANDSHAKE_REFUSED);
                cr_assert(strstr(t.a.why, "node b speaks none of the versions"), "%s", t.a.why);
                cr_assert(strstr(t.b.why, "node a speaks versions"), "%s", t.b.why);
        }
}

Test(handshake, an_acceptor_that_takes_a_version_nobody_offered_breaks_the_rules)
{
        struct talk t;
        set_up(&t);
        meet(&t);
        t.a.oldest = t.a.newest = MESSAGES_NEWEST + 1; /* what its HELLO did not say */
        exchange(&t, 1, -1, 0);
        cr_assert_eq(t.a_result, HANDSHAKE_REFUSED);
        cr_assert(strstr(t.a.why, "breaks the rules"), "%s", t.a.why);
}

/* Other versions may have other messages behind the first 16 bytes. */
Test(handshake, the_acceptor_names_another_version_from_its_head_alone)
{
        struct talk t;
        set_up(&t);
        meet(&t);
        t.a.out[8] = 9;
        cr_assert_eq(hear(&t.b, t.a.out, HANDSHAKE_HEAD), HANDSHAKE_REFUSED);
        cr_assert(strstr(t.b.why, "has version 9 of the handshake, this node version 8"), "%s",
                  t.b.why);
        cr_assert_eq(t.b.out_size, HANDSHAKE_HEAD, "the dialler is told");
}

Test(handshake, the_dialler_names_another_version_from_the_refusal)
{
        struct talk t;
        set_up(&t);
        meet(&t);
        t.a.out[8] = 9;
        hear(&t.b, t.a.out, t.a.out_size);
        t.b.out[8] = 9;
        cr_assert_eq(hear(&t.a, t.b.out, t.b.out_size), HANDSHAKE_REFUSED);
        cr_assert(strstr(t.a.why, "node b has version 9 of the handshake"), "%s", t.a.why);
}

Test(handshake, the_higher_node_may_dial_for_bulk_but_not_for_a_link)
{
        for (enum channel_role role = CHANNEL_LINK; role <= CHANNEL_BULK; role++) {
                struct talk t;
                set_up(&t);
                handshake_dial(&t.b, &t.of_b, 0, role, 0);
                handshake_accept(&t.a, &t.of_a);
                cr_assert_eq(hear(&t.a, t.b.out, t.b.out_size),
                             role == CHANNEL_LINK ? HANDSHAKE_REFUSED : HANDSHAKE_MORE);
        }
}

Test(handshake, a_hang_up_after_the_proof_hints_at_the_key)
{
        struct talk t;
        set_up(&t);
        talk_on(&t, 1, -1, 0);
        handshake_lost(&t.a, "hung up");
        cr_assert(strstr(t.a.why, "node b hung up"), "%s", t.a.why);
        cr_assert(strstr(t.a.why, "another cluster key?"), "%s", t.a.why);
}

/* ---- rotation ---- */

/* Keys by number; 0: none. */
static void set_keys(struct cluster *cluster, const int keys[2])
{
        make_key(cluster->key, (uint8_t)keys[0]);
        cluster->has_key_next = keys[1] != 0;
        make_key(cluster->key_next, (uint8_t)keys[1]);
}

Test(handshake, any_key_in_common_will_do)
{
        static const int sets[][2] = { { 1, 0 }, { 1, 2 }, { 2, 1 }, { 2, 0 }, { 2, 3 }, { 3, 2 } };
        enum { N = sizeof sets / sizeof *sets };
        for (int i = 0; i < N * N; i++) {
                const int *a = sets[i / N], *b = sets[i % N];
                bool common = a[0] == b[0] || a[0] == b[1] || (a[1] && a[1] == b[0]) ||
                              (a[1] && a[1] == b[1]);
                enum handshake_result expected = common ? HANDSHAKE_DONE : HANDSHAKE_REFUSED;
                struct talk t;
                set_up(&t);
                set_keys(&t.of_a, a);
                set_keys(&t.of_b, b);
                talk_all(&t);
                cr_assert_eq(t.a_result, expected, "{%d %d} dials {%d %d}", a[0], a[1], b[0], b[1]);
                cr_assert_eq(t.b_result, expected, "{%d %d} dials {%d %d}", a[0], a[1], b[0], b[1]);
        }
}

/* ---- attacks ---- */

Test(handshake, a_flipped_bit_anywhere_is_refused)
{
        struct talk good;
        set_up(&good);
        talk_all(&good);
        for (int i = 0; i < MESSAGES; i++) {
                for (size_t bit = 0; bit < good.size[i] * 8; bit++) {
                        struct talk t;
                        set_up(&t);
                        talk_on(&t, MESSAGES - 1, i, bit);
                        cr_assert_neq(t.a_result, HANDSHAKE_DONE, "message %d bit %zu", i, bit);
                        cr_assert(i == 3 || t.b_result != HANDSHAKE_DONE, "message %d bit %zu", i,
                                  bit);
                        cr_assert(t.a_result == HANDSHAKE_REFUSED ||
                                          t.b_result == HANDSHAKE_REFUSED,
                                  "message %d bit %zu", i, bit);
                }
        }
}

Test(handshake, a_message_cut_short_never_counts)
{
        for (int i = 0; i < MESSAGES; i++) {
                struct talk t;
                set_up(&t);
                talk_on(&t, i - 1, -1, 0);
                if (i == 0)
                        meet(&t);
                struct handshake *from = i % 2 ? &t.b : &t.a, *to = i % 2 ? &t.a : &t.b;
                listen_to(&t, from, i);
                for (size_t k = 0; k + 1 < t.size[i]; k++) {
                        cr_assert_eq(hear(to, t.said[i] + k, 1), HANDSHAKE_MORE);
                        cr_assert_eq(to->out_size, 0, "message %d, byte %zu", i, k);
                }
        }
}

Test(handshake, a_recorded_dialler_is_refused)
{
        struct talk t;
        struct handshake again;
        set_up(&t);
        talk_all(&t);
        handshake_accept(&again, &t.of_b);
        cr_assert_eq(hear(&again, t.said[0], t.size[0]), HANDSHAKE_MORE);
        again.out_size = 0;
        cr_assert_eq(hear(&again, t.said[2], t.size[2]), HANDSHAKE_REFUSED);
        cr_assert_eq(again.out_size, 0, "it learns nothing");
}

Test(handshake, a_recorded_acceptor_is_refused)
{
        struct talk t;
        struct handshake again;
        set_up(&t);
        talk_all(&t);
        handshake_dial(&again, &t.of_a, 1, CHANNEL_LINK, TOKEN);
        again.out_size = 0;
        cr_assert_eq(hear(&again, t.said[1], t.size[1]), HANDSHAKE_MORE);
        cr_assert_eq(hear(&again, t.said[3], t.size[3]), HANDSHAKE_REFUSED);
}

Test(handshake, a_dialler_refuses_its_own_words)
{
        struct talk t;
        set_up(&t);
        meet(&t);
        listen_to(&t, &t.a, 0);
        cr_assert_eq(hear(&t.a, t.said[0], t.size[0]), HANDSHAKE_REFUSED);
}

/* The thief answers a's proof with the same proof in an acceptor's message. */
Test(handshake, a_diallers_proof_is_no_acceptors_proof)
{
        struct talk t;
        set_up(&t);
        talk_on(&t, 3, -1, 0);
        uint8_t kind = t.said[3][10];
        talk_on(&t, 1, -1, 0);
        listen_to(&t, &t.a, 2);
        t.said[2][10] = kind;
        cr_assert_eq(hear(&t.a, t.said[2], t.size[2]), HANDSHAKE_REFUSED);
}

Test(handshake, a_proof_for_one_conversation_fits_no_other)
{
        struct talk t, u;
        set_up(&t);
        set_up(&u);
        talk_on(&t, 1, -1, 0);
        talk_on(&u, 1, -1, 0);
        listen_to(&t, &t.a, 2);
        cr_assert_eq(hear(&u.b, t.said[2], t.size[2]), HANDSHAKE_REFUSED);
}

Test(handshake, what_is_not_zerod_is_refused_at_its_first_byte_without_a_word)
{
        struct talk t;
        size_t taken;
        set_up(&t);
        meet(&t);
        cr_assert_eq(handshake_feed(&t.b, "GET / HTTP/1.1", 14, &taken), HANDSHAKE_REFUSED);
        cr_assert_eq(t.b.out_size, 0);
        cr_assert(strstr(t.b.why, "not zerod"), "%s", t.b.why);
}

Test(handshake, a_name_that_cannot_be_printed_is_refused)
{
        struct talk t;
        set_up(&t);
        t.of_a.nodes[0].name[0] = '\n';
        talk_all(&t);
        cr_assert_eq(t.b_result, HANDSHAKE_REFUSED);
        cr_assert(strstr(t.b.why, "breaks the rules"), "%s", t.b.why);
}
