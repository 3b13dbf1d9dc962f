/* Votes of other nodes, as they come over the link: a vote with an impossible field is refused. */
#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

#include "daemon/cluster/membership/membership.h"

enum { NODES = 3, ROUNDS = 200000 };

static struct cluster cluster = { .n_nodes = NODES, .self = 0 };
static struct engine x = { .cluster = &cluster };

/* A correct vote of node 1. */
struct vote {
        Zero__Paxos m;
        Zero__Placement chosen, value;
        uint32_t owners[8], proposed[8];
        uint64_t before[PLACEMENT_BEFORE * NODE_SET_WORDS + 1], dead;
};

static void vote_init(struct vote *v, enum paxos_kind kind)
{
        memset(v, 0, sizeof *v);
        zero__paxos__init(&v->m);
        zero__placement__init(&v->chosen);
        zero__placement__init(&v->value);
        v->owners[0] = 2;
        v->owners[1] = 0;
        v->proposed[0] = 1;
        v->chosen.epoch = 4;
        v->chosen.n_owners = 2;
        v->chosen.owners = v->owners;
        v->value.epoch = 5;
        v->value.n_owners = 1;
        v->value.owners = v->proposed;
        v->m.kind = kind;
        v->m.ballot = v->m.promised = v->m.accepted = 9 << PAXOS_NODE_BITS | 1;
        v->m.chosen = &v->chosen;
        v->m.value = &v->value;
}

static int receive(const struct vote *v, struct paxos_message *ret)
{
        return membership_receive(&x, 1, &v->m, ret);
}

Test(membership_message, is_read_as_it_was_sent)
{
        struct paxos_message m;
        struct vote v;

        vote_init(&v, PAXOS_ACCEPT);
        cr_assert_eq(receive(&v, &m), 0);
        cr_assert_eq(m.kind, PAXOS_ACCEPT);
        cr_assert_eq(m.record.chosen.epoch, 4);
        cr_assert_eq(m.record.chosen.node[0], 2);
        cr_assert_eq(m.record.value.n_owners, 1);
        cr_assert_eq(m.record.accepted, m.ballot);
}

Test(membership_message, tells_of_earlier_lists)
{
        struct paxos_message m;
        struct vote v;

        vote_init(&v, PAXOS_ACCEPT);
        v.value.before = v.before;
        v.value.n_before = PLACEMENT_BEFORE * NODE_SET_WORDS;
        v.value.older = (uint64_t[]){ 4 };
        v.value.dead = (uint64_t[]){ 2 };
        v.value.n_older = v.value.n_dead = 1;
        v.before[0] = 5;
        v.before[(PLACEMENT_BEFORE - 1) * NODE_SET_WORDS] = 3;
        cr_assert_eq(receive(&v, &m), 0);
        cr_assert_eq(node_set_to_word(m.record.value.before[0]), 5);
        cr_assert_eq(node_set_to_word(m.record.value.before[PLACEMENT_BEFORE - 1]), 3);
        cr_assert_eq(node_set_to_word(m.record.value.older), 4);
        cr_assert_eq(node_set_to_word(m.record.value.dead), 2);
        v.value.n_before++;
        cr_assert_eq(receive(&v, &m), -EPROTO);
}

Test(membership_message, under_the_ballot_of_another_node_is_refused)
{
        struct paxos_message m;
        struct vote v;

        vote_init(&v, PAXOS_PREPARE);
        v.m.ballot++;
        cr_assert_eq(receive(&v, &m), -EPROTO);
        v.m.kind = PAXOS_PROMISE; /* answers have the asker's ballot */
        cr_assert_eq(receive(&v, &m), 0);
}

Test(membership_message, that_declares_its_receiver_dead_is_refused)
{
        struct paxos_message m;
        struct vote v;

        vote_init(&v, PAXOS_PREPARE);
        v.m.dead = (uint64_t[]){ 1 };
        v.m.n_dead = 1;
        cr_assert_eq(receive(&v, &m), -EPROTO);
        v.m.dead = (uint64_t[]){ 4 };
        cr_assert_eq(receive(&v, &m), 0);
}

Test(membership_message, with_more_nodes_than_a_set_has_is_refused)
{
        uint64_t words[NODE_SET_WORDS + 1] = { 0 };
        struct paxos_message m;
        struct vote v;

        vote_init(&v, PAXOS_ACCEPT);
        v.m.dead = v.value.older = words;
        v.m.n_dead = v.value.n_older = NODE_SET_WORDS + 1;
        cr_assert_eq(receive(&v, &m), 0);
        words[NODE_SET_WORDS] = 1;
        cr_assert_eq(receive(&v, &m), -EPROTO);
        v.m.n_dead = NODE_SET_WORDS;
        cr_assert_eq(receive(&v, &m), -EPROTO);
}

static uint64_t next(uint64_t *state)
{
        *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        return *state >> 33;
}

/* Sets one field to a random value. */
static void spoil(struct vote *v, uint64_t *rng)
{
        uint64_t any = next(rng) % 3 ? next(rng) % 8 : next(rng) << 33 | next(rng);

        switch (next(rng) % 11) {
        case 0:
                v->m.kind = (uint32_t)any;
                break;
        case 1:
                v->m.ballot = any;
                break;
        case 2:
                v->dead = any;
                v->m.dead = &v->dead;
                v->m.n_dead = 1;
                break;
        case 3:
                v->m.promised = any;
                break;
        case 4:
                v->m.accepted = any;
                break;
        case 5:
                v->m.chosen = any % 2 ? &v->chosen : NULL;
                break;
        case 6:
                v->m.value = any % 2 ? &v->value : NULL;
                break;
        case 7:
                v->chosen.n_owners = any % 9;
                break;
        case 8:
                v->chosen.epoch = any;
                break;
        case 9:
                v->value.n_owners = any % 9;
                break;
        default:
                v->owners[any % 8] = (uint32_t)next(rng);
                break;
        }
}

Test(membership_message, with_anything_in_it_is_refused_or_makes_sense)
{
        uint64_t rng = 1, n_good = 0;

        for (int i = 0; i < ROUNDS; i++) {
                struct paxos_message m;
                struct vote v;

                vote_init(&v, (enum paxos_kind)(next(&rng) % PAXOS_KINDS));
                for (uint64_t n = 1 + next(&rng) % 3; n; n--)
                        spoil(&v, &rng);
                if (receive(&v, &m))
                        continue;
                n_good++;
                cr_assert(paxos_record_sane(&m.record, NODES));
                cr_assert(m.kind < PAXOS_KINDS && m.ballot <= PAXOS_BALLOT_MAX);
        }
        cr_assert(n_good > ROUNDS / 20 && n_good < ROUNDS / 2, "%llu", (unsigned long long)n_good);
}
