/*
 * Members: nodes of a cluster in one loop find each other in any order, exchange messages
 * in order, and find each other again.
 */
#include "daemon/fabric/link/link.h"
#include "nodes.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

enum { NODES = 3, SOON_MS = 10000 };

static const struct members_options fast = {
        .heartbeat = 40,
        .silence = 2000,
        .handshake = 2000,
        .dial_first = 4,
        .dial_last = 40,
        .queue_max = (size_t)256 << 20,
};

struct node {
        struct cluster cluster;
        struct members *members;
        uint32_t ups[NODES], downs[NODES]; /* by node */
        uint64_t messages, out_of_order;
        size_t text_size;
        char why[256];
        bool closed, close_on_up, close_on_message;
};

struct scene {
        uv_loop_t loop;
        struct node nodes[NODES];
        uint32_t n;
};

static void close_node(struct node *node)
{
        members_close(node->members, set_true, &node->closed);
        node->members = NULL;
}

static void on_up(void *arg, uint32_t peer)
{
        struct node *node = arg;
        node->ups[peer]++;
        if (node->close_on_up)
                close_node(node);
}

static void on_down(void *arg, uint32_t peer, const char *why)
{
        struct node *node = arg;
        node->downs[peer]++;
        snprintf(node->why, sizeof node->why, "%s", why);
}

static void on_message(void *arg, uint32_t peer, const Zero__LinkMessage *m)
{
        struct node *node = arg;
        node->messages++;
        if (m->call != node->messages)
                node->out_of_order++;
        node->text_size = strlen(m->text);
        if (node->close_on_message)
                close_node(node);
}

static void on_bulk(void *arg, struct channel *channel)
{
        channel_close(channel);
}

static void init(struct scene *s, uint32_t n)
{
        memset(s, 0, sizeof *s);
        uv_loop_init(&s->loop);
        s->n = n;
        for (uint32_t i = 0; i < n; i++)
                make_cluster(&s->nodes[i].cluster, n, i);
}

static void start(struct scene *s, uint32_t i)
{
        struct node *node = &s->nodes[i];
        struct members_events events = {
                .up = on_up, .down = on_down, .message = on_message, .bulk = on_bulk, .arg = node
        };
        struct fault fault;
        node->closed = false;
        cr_assert_eq(
                members_new_with(&s->loop, &node->cluster, &fast, &events, &node->members, &fault),
                0, "%s", fault.text);
}

static bool is_up(struct scene *s, uint32_t i, uint32_t peer)
{
        struct member_info info;
        members_info(s->nodes[i].members, peer, &info);
        return info.up;
}

static bool all_up(void *arg)
{
        struct scene *s = arg;
        for (uint32_t i = 0; i < s->n; i++) {
                for (uint32_t k = 0; k < s->n; k++) {
                        if (i != k && !is_up(s, i, k))
                                return false;
                }
        }
        return true;
}

static void start_all(struct scene *s)
{
        for (uint32_t i = 0; i < s->n; i++)
                start(s, i);
        run_until(&s->loop, all_up, s, SOON_MS);
}

static void stop(struct scene *s, uint32_t i)
{
        struct node *node = &s->nodes[i];
        if (node->members)
                close_node(node);
        run_until(&s->loop, is_true, &node->closed, SOON_MS);
}

static void end(struct scene *s)
{
        for (uint32_t i = 0; i < s->n; i++)
                stop(s, i);
        end_loop(&s->loop);
}

static int say(struct scene *s, uint32_t from, uint32_t to, uint64_t call, char *text)
{
        Zero__LinkMessage m = ZERO__LINK_MESSAGE__INIT;
        m.call = call;
        m.text = text;
        return members_send(s->nodes[from].members, to, &m);
}

/* The text of a message that has that length when packed. */
static char *text_for(size_t packed)
{
        Zero__LinkMessage m = ZERO__LINK_MESSAGE__INIT;
        char *text = malloc(packed);
        memset(text, 'x', packed);
        size_t n = packed - 16;
        text[n] = '\0';
        m.text = text;
        size_t more = packed - zero__link_message__get_packed_size(&m);
        text[n] = 'x';
        text[n + more] = '\0';
        cr_assert_eq(zero__link_message__get_packed_size(&m), packed);
        return text;
}

Test(members, nodes_find_each_other_in_any_order)
{
        static const uint32_t orders[][NODES] = { { 0, 1, 2 }, { 0, 2, 1 }, { 1, 0, 2 },
                                                  { 1, 2, 0 }, { 2, 0, 1 }, { 2, 1, 0 } };
        for (size_t k = 0; k < sizeof orders / sizeof *orders; k++) {
                struct scene s;
                init(&s, NODES);
                for (uint32_t i = 0; i < NODES; i++) {
                        start(&s, orders[k][i]);
                        for (int turns = 0; turns < 4; turns++)
                                uv_run(&s.loop, UV_RUN_NOWAIT);
                }
                run_until(&s.loop, all_up, &s, SOON_MS);
                cr_assert_eq(s.nodes[0].ups[1] + s.nodes[0].ups[2], 2, "one link a pair");
                end(&s);
        }
}

Test(members, a_cluster_of_one_just_runs)
{
        struct scene s;
        init(&s, 1);
        s.nodes[0].cluster.has_key = false;
        start(&s, 0);
        uv_run(&s.loop, UV_RUN_NOWAIT);
        end(&s);
}

static bool is_gone(void *arg)
{
        return !is_up(arg, 1, 0);
}

static enum goodbye said_by_first(struct scene *s)
{
        struct member_info info;
        members_info(s->nodes[1].members, 0, &info);
        return info.goodbye;
}

Test(members, a_node_that_says_goodbye_is_told_from_a_lost_one)
{
        static const enum goodbye said[] = { GOODBYE_DRAINED, GOODBYE_NONE, GOODBYE_STOPPED };
        struct scene s;
        init(&s, 2);
        start_all(&s);
        for (size_t i = 0; i < sizeof said / sizeof *said; i++) {
                Zero__Goodbye goodbye = ZERO__GOODBYE__INIT;
                Zero__LinkMessage m = ZERO__LINK_MESSAGE__INIT;
                goodbye.drained = said[i] == GOODBYE_DRAINED;
                m.body_case = ZERO__LINK_MESSAGE__BODY_GOODBYE;
                m.goodbye = &goodbye;
                if (said[i] != GOODBYE_NONE)
                        cr_assert_eq(members_send(s.nodes[0].members, 1, &m), 0);
                stop(&s, 0);
                run_until(&s.loop, is_gone, &s, SOON_MS);
                cr_assert_eq(said_by_first(&s), said[i]);
                start(&s, 0);
                run_until(&s.loop, all_up, &s, SOON_MS);
                cr_assert_eq(said_by_first(&s), GOODBYE_NONE);
        }
        cr_assert_eq(s.nodes[1].messages, 0);
        end(&s);
}

static bool got_thousand(void *arg)
{
        return ((struct node *)arg)->messages >= 1000;
}

Test(members, messages_come_in_order)
{
        struct scene s;
        init(&s, 2);
        start_all(&s);
        for (uint64_t i = 1; i <= 1000; i++)
                cr_assert_eq(say(&s, 1, 0, i, ""), 0);
        run_until(&s.loop, got_thousand, &s.nodes[0], SOON_MS);
        cr_assert_eq(s.nodes[0].messages, 1000);
        cr_assert_eq(s.nodes[0].out_of_order, 0);
        end(&s);
}

static bool got_one(void *arg)
{
        return ((struct node *)arg)->messages > 0;
}

Test(members, the_largest_message_passes_and_a_larger_one_is_refused)
{
        struct scene s;
        init(&s, 2);
        start_all(&s);
        char *fits = text_for(LINK_MESSAGE_MAX), *too_long = text_for(LINK_MESSAGE_MAX + 1);
        cr_assert_eq(say(&s, 0, 1, 0, too_long), -EMSGSIZE);
        cr_assert_eq(say(&s, 0, 1, 0, fits), 0);
        run_until(&s.loop, got_one, &s.nodes[1], 4 * SOON_MS);
        cr_assert_eq(s.nodes[1].text_size, strlen(fits));
        free(fits);
        free(too_long);
        end(&s);
}

static bool is_measured(void *arg)
{
        struct scene *s = arg;
        struct member_info info[2];
        for (uint32_t i = 0; i < 2; i++)
                members_info(s->nodes[i].members, 1 - i, &info[i]);
        return info[0].round_trip_ns > 0 && info[1].round_trip_ns > 0;
}

Test(members, heartbeats_measure_the_round_trip_on_both_sides)
{
        struct scene s;
        init(&s, 2);
        start_all(&s);
        run_until(&s.loop, is_measured, &s, SOON_MS);
        end(&s);
}

static bool counts_agree(void *arg)
{
        struct scene *s = arg;
        struct member_info a, b;
        members_info(s->nodes[0].members, 1, &a);
        members_info(s->nodes[1].members, 0, &b);
        return s->nodes[1].messages == 10 && a.sent_bytes == b.received_bytes &&
               b.sent_bytes == a.received_bytes && a.queued_bytes == 0;
}

Test(members, both_sides_count_the_same_bytes)
{
        struct scene s;
        init(&s, 2);
        start_all(&s);
        for (uint64_t i = 1; i <= 10; i++)
                say(&s, 0, 1, i, "some text");
        run_until(&s.loop, counts_agree, &s, SOON_MS);
        end(&s);
}

static bool has_fallen_and_risen(void *arg)
{
        struct scene *s = arg;
        return s->nodes[0].downs[1] == 1 && s->nodes[1].downs[0] == 1 && all_up(s);
}

Test(members, a_cut_link_is_told_why_and_made_anew)
{
        struct scene s;
        init(&s, 2);
        start_all(&s);
        members_cut(s.nodes[1].members, 0, "it broke a rule");
        cr_assert_eq(say(&s, 1, 0, 1, ""), -ENOTCONN);
        cr_assert_eq(s.nodes[1].downs[0], 0, "no callback inside the call");
        run_until(&s.loop, has_fallen_and_risen, &s, SOON_MS);
        cr_assert_str_eq(s.nodes[1].why, "it broke a rule");
        cr_assert(strstr(s.nodes[0].why, "it ended the link: it broke a rule"), "%s",
                  s.nodes[0].why);
        end(&s);
}

Test(members, bytes_are_counted_over_all_links)
{
        struct scene s;
        struct member_info before, after;
        init(&s, 2);
        start_all(&s);
        members_info(s.nodes[0].members, 1, &before);
        members_cut(s.nodes[0].members, 1, "for the count");
        run_until(&s.loop, has_fallen_and_risen, &s, SOON_MS);
        members_info(s.nodes[0].members, 1, &after);
        cr_assert_gt(after.sent_bytes, before.sent_bytes);
        end(&s);
}

static bool is_alone(void *arg)
{
        struct scene *s = arg;
        return s->nodes[0].downs[1] > 0;
}

Test(members, a_node_that_goes_and_comes_back_is_found_again)
{
        struct scene s;
        init(&s, 2);
        start_all(&s);
        stop(&s, 1);
        run_until(&s.loop, is_alone, &s, SOON_MS);
        cr_assert(strstr(s.nodes[0].why, "going down"), "%s", s.nodes[0].why);
        cr_assert_eq(say(&s, 0, 1, 1, ""), -ENOTCONN);
        start(&s, 1);
        run_until(&s.loop, all_up, &s, SOON_MS);
        end(&s);
}

static bool both_know_why(void *arg)
{
        static const char why[] = "another cluster key";
        struct scene *s = arg;
        struct member_info a, b;
        members_info(s->nodes[0].members, 1, &a);
        members_info(s->nodes[1].members, 0, &b);
        return strstr(a.why, why) && strstr(b.why, why) && !a.up && !b.up;
}

Test(members, why_there_is_no_link_stands_on_both_sides)
{
        struct scene s;
        init(&s, 2);
        make_key(s.nodes[1].cluster.key, 7);
        start(&s, 0);
        start(&s, 1);
        run_until(&s.loop, both_know_why, &s, SOON_MS);
        end(&s);
}

static bool knows_nobody_is_there(void *arg)
{
        struct scene *s = arg;
        struct member_info info;
        members_info(s->nodes[0].members, 1, &info);
        return strstr(info.why, "connection refused") != NULL;
}

Test(members, why_is_forgotten_once_the_link_is_up)
{
        struct scene s;
        struct member_info info;
        init(&s, 2);
        start(&s, 0);
        run_until(&s.loop, knows_nobody_is_there, &s, SOON_MS);
        start(&s, 1);
        run_until(&s.loop, all_up, &s, SOON_MS);
        members_info(s.nodes[0].members, 1, &info);
        cr_assert_str_empty(info.why);
        end(&s);
}

/* The node has no address of its own, so two daemons of one name can only dial. */
static void start_twin_of_0(struct scene *s, uint32_t place)
{
        make_cluster(&s->nodes[place].cluster, 2, 0);
        s->nodes[place].cluster.nodes[0].host[0] = '\0';
        start(s, place);
}

static bool is_alone_at_1(void *arg)
{
        struct scene *s = arg;
        return s->nodes[1].downs[0] > 0;
}

static bool twin_knows_why(void *arg)
{
        struct scene *s = arg;
        struct member_info info;
        members_info(s->nodes[2].members, 1, &info);
        return strstr(info.why, "another daemon that has this node's name, a") != NULL;
}

static bool has_taken_over(void *arg)
{
        struct scene *s = arg;
        return is_up(s, 2, 1);
}

Test(members, a_second_daemon_of_one_name_is_refused_while_the_first_one_lives)
{
        struct scene s;
        init(&s, 2);
        start_all(&s);
        start_twin_of_0(&s, 2);
        run_until(&s.loop, twin_knows_why, &s, SOON_MS);
        cr_assert_eq(s.nodes[1].downs[0], 0, "the first one keeps its link");
        cr_assert_eq(s.nodes[2].ups[1], 0);
        stop(&s, 0);
        run_until(&s.loop, has_taken_over, &s, SOON_MS);
        stop(&s, 2);
        end(&s);
}

static bool claim_is_noted(void *arg)
{
        struct scene *s = arg;
        struct member_info info;
        members_info(s->nodes[1].members, 0, &info);
        return strstr(info.why, "in its name was refused") != NULL;
}

/* The refusal of a stranger that used the node's name stands beside the reason, with the stranger's
 * address. */
Test(members, a_stranger_does_not_set_a_nodes_reason)
{
        struct scene s;
        struct member_info info;
        init(&s, 2);
        start_all(&s);
        stop(&s, 0);
        run_until(&s.loop, is_alone_at_1, &s, SOON_MS);
        make_key(s.nodes[0].cluster.key, 7);
        start(&s, 0);
        run_until(&s.loop, claim_is_noted, &s, SOON_MS);
        members_info(s.nodes[1].members, 0, &info);
        cr_assert(strstr(info.why, "it ended the link: the node is going down; a connection from "
                                   "127."),
                  "%s", info.why);
        end(&s);
}

/* ---- closing at awkward times ---- */

Test(members, closing_while_connecting_leaves_nothing)
{
        for (int turns = 0; turns < 24; turns++) {
                struct scene s;
                init(&s, NODES);
                for (uint32_t i = 0; i < NODES; i++)
                        start(&s, i);
                for (int i = 0; i < turns; i++)
                        uv_run(&s.loop, UV_RUN_NOWAIT);
                end(&s);
        }
}

static bool first_closed(void *arg)
{
        return ((struct scene *)arg)->nodes[0].closed;
}

Test(members, closing_from_up_leaves_nothing)
{
        struct scene s;
        init(&s, 2);
        s.nodes[0].close_on_up = true;
        start(&s, 0);
        start(&s, 1);
        run_until(&s.loop, first_closed, &s, SOON_MS);
        end(&s);
}

Test(members, closing_from_a_message_ends_the_messages)
{
        struct scene s;
        init(&s, 2);
        s.nodes[0].close_on_message = true;
        start_all(&s);
        for (uint64_t i = 1; i <= 10; i++)
                say(&s, 1, 0, i, "");
        run_until(&s.loop, first_closed, &s, SOON_MS);
        cr_assert_eq(s.nodes[0].messages, 1);
        end(&s);
}

Test(members, closing_with_much_to_send_leaves_nothing)
{
        struct scene s;
        init(&s, 2);
        start_all(&s);
        char *text = text_for(8 << 20);
        for (int i = 0; i < 4; i++)
                cr_assert_eq(say(&s, 0, 1, 1, text), 0);
        free(text);
        end(&s);
}

static void on_bulk_done(void *arg, struct channel *channel, const char *why)
{
        cr_assert_null(channel);
        *(bool *)arg = true;
}

Test(members, closing_ends_a_bulk_dial)
{
        struct scene s;
        bool done = false;
        init(&s, 2);
        start(&s, 0);
        cr_assert_eq(members_dial_bulk(s.nodes[0].members, 1, 5, on_bulk_done, &done), 0);
        stop(&s, 0);
        cr_assert(done);
        end_loop(&s.loop);
}
