/* Conversations of the register of placements, message by message; tests/model has all orders. */
#include <criterion/criterion.h>
#include <string.h>

#include "daemon/job/rules/paxos.h"

enum { NODES_MAX = 5 };

static struct paxos nodes[NODES_MAX];
static uint32_t n_nodes;

static struct placement placement_of(uint64_t owners)
{
        struct placement p = { .copies = 1 };

        for (uint32_t n = 0; n < 64; n++)
                if (owners >> n & 1)
                        p.node[p.n_owners++] = n;
        return p;
}

static uint64_t owners_at(uint32_t n)
{
        return node_set_to_word(placement_nodes(&nodes[n].record.chosen));
}

static void blank(uint32_t n)
{
        const struct placement first = placement_of((1ull << n_nodes) - 1);

        paxos_init(&nodes[n], n_nodes, n, &first, NULL);
}

static void form(uint32_t n)
{
        n_nodes = n;
        for (uint32_t i = 0; i < n; i++) {
                blank(i);
                nodes[i].record.voter = true;
        }
}

static uint32_t hear(uint32_t to, uint32_t from, const struct paxos_message *m)
{
        const struct paxos_message copy = *m;

        return paxos_hear(&nodes[to], from, &copy);
}

/* The node stands without a record; the others' lists are older than the node. */
static void grow(uint32_t n)
{
        n_nodes = n;
        for (uint32_t i = 0; i < n; i++)
                nodes[i].n_nodes = n;
        blank(n - 1);
}

static uint32_t propose(uint32_t n, uint64_t owners, uint64_t dead)
{
        const struct placement wanted = placement_of(owners);
        uint32_t actions = 0;
        struct fault fault;

        cr_assert_eq(paxos_propose(&nodes[n], &wanted, node_set_from_word(dead), &actions, &fault),
                     0, "%s", fault.text);
        return actions;
}

/* Delivers n's question to `reached` and their answers to n; returns all actions of n. */
static uint32_t round_trip(uint32_t n, uint64_t reached)
{
        const struct paxos_message question = nodes[n].ask;
        uint64_t to = node_set_to_word(nodes[n].to) & reached;
        uint32_t actions = 0;

        for (uint32_t p = 0; p < n_nodes; p++)
                if (to >> p & 1 && hear(p, n, &question) & PAXOS_ANSWER)
                        actions |= hear(n, p, &nodes[p].answer);
        return actions;
}

static void meet(uint32_t a, uint32_t b)
{
        paxos_up(&nodes[a]);
        paxos_up(&nodes[b]);
        const struct paxos_message from_a = nodes[a].answer, from_b = nodes[b].answer;

        if (hear(b, a, &from_a) & PAXOS_ANSWER)
                hear(a, b, &nodes[b].answer);
        if (hear(a, b, &from_b) & PAXOS_ANSWER)
                hear(b, a, &nodes[a].answer);
}

Test(paxos, a_majority_chooses)
{
        uint32_t actions;

        form(3);
        actions = propose(0, 3, 0);
        cr_assert_eq(actions, PAXOS_WRITE | PAXOS_ASK);
        cr_assert_eq(node_set_to_word(nodes[0].to), 6);
        actions = round_trip(0, 2);
        cr_assert_eq(actions, PAXOS_WRITE | PAXOS_ASK);
        cr_assert_eq(nodes[0].ask.kind, PAXOS_ACCEPT);
        actions = round_trip(0, 2);
        cr_assert_eq(actions, PAXOS_WRITE | PAXOS_CHOSEN | PAXOS_OVER | PAXOS_ASK);
        cr_assert(paxos_won(&nodes[0]));
        cr_assert_eq(nodes[0].record.chosen.epoch, 1);
        round_trip(0, 6);
        for (uint32_t n = 0; n < 3; n++)
                cr_assert_eq(owners_at(n), 3);
}

Test(paxos, a_new_node_takes_the_owners_on_record)
{
        form(2);
        grow(3);
        cr_assert_eq(owners_at(2), 7, "as its configuration has it");
        meet(2, 0);
        cr_assert_eq(owners_at(2), 3);
        cr_assert_not(nodes[2].record.voter, "it has not heard from all");
        meet(2, 1);
        cr_assert(nodes[2].record.voter);
        cr_assert(owners_at(0) == 3 && owners_at(1) == 3);
        propose(2, 7, 0);
        round_trip(2, 1);
        round_trip(2, 1);
        cr_assert(owners_at(2) == 7 && nodes[2].record.chosen.epoch == 1);
}

/* The previous list and the dead stay with a placement, even if another node completes it. */
Test(paxos, a_placement_knows_those_before_it)
{
        form(3);
        propose(0, 3, 0);
        for (int i = 0; i < 3; i++)
                round_trip(0, 6);
        propose(1, 2, 1);
        round_trip(1, 4);
        round_trip(1, 0);
        hear(2, 1, &nodes[1].ask); /* accepted, and not known to be chosen */
        paxos_give_up(&nodes[1]);
        propose(2, 4, 0);
        for (int i = 0; i < 3; i++)
                round_trip(2, 3);
        for (uint32_t n = 0; n < 3; n++) {
                const struct placement *p = &nodes[n].record.chosen;

                cr_assert_eq(p->epoch, 2);
                cr_assert_eq(owners_at(n), 2);
                cr_assert_eq(node_set_to_word(p->before[0]), 3);
                cr_assert_eq(node_set_to_word(p->before[1]), 7);
                cr_assert_eq(node_set_to_word(p->dead), 1);
        }
}

Test(paxos, less_than_a_majority_chooses_nothing)
{
        form(4);
        propose(0, 3, 0);
        cr_assert_eq(round_trip(0, 2), 0);
        cr_assert_eq(round_trip(0, 2), 0, "one node has two votes");
        cr_assert_eq(nodes[0].phase, PAXOS_PREPARING);
        cr_assert_eq(nodes[0].record.chosen.epoch, 0);
}

Test(paxos, a_node_that_was_away_learns_when_its_link_is_back)
{
        form(3);
        for (uint64_t owners = 3; owners < 6; owners++) {
                propose(0, owners, 0);
                round_trip(0, 2);
                round_trip(0, 2);
                round_trip(0, 2);
        }
        cr_assert_eq(nodes[2].record.chosen.epoch, 0);
        meet(2, 1);
        cr_assert_eq(nodes[2].record.chosen.epoch, 3);
        cr_assert_eq(owners_at(2), 5);
}

Test(paxos, what_was_accepted_is_completed_and_the_other_is_told_that_it_lost)
{
        form(3);
        propose(0, 3, 0);
        round_trip(0, 2);
        round_trip(0, 0); /* its own acceptance alone */
        hear(1, 0, &nodes[0].ask);
        paxos_give_up(&nodes[0]);
        cr_assert(paxos_undecided(&nodes[1]));
        propose(2, 6, 0);
        round_trip(2, 2);
        if (nodes[2].ask.kind != PAXOS_ACCEPT) { /* the ballot was too low */
                paxos_retry(&nodes[2]);
                round_trip(2, 2);
        }
        cr_assert(round_trip(2, 2) & PAXOS_OVER);
        cr_assert_not(paxos_won(&nodes[2]));
        cr_assert_eq(owners_at(2), 3);
}

Test(paxos, a_beaten_proposer_comes_back_with_a_higher_ballot)
{
        form(3);
        propose(0, 3, 0);
        round_trip(0, 2);
        propose(2, 6, 0);
        paxos_retry(&nodes[2]);
        round_trip(2, 2);
        cr_assert(round_trip(0, 2) & PAXOS_BEATEN);
        paxos_retry(&nodes[0]);
        cr_assert_gt(nodes[0].ballot, nodes[2].ballot);
        round_trip(0, 2);
        cr_assert(round_trip(0, 2) & PAXOS_OVER);
        cr_assert(paxos_won(&nodes[0]));
}

Test(paxos, promises_under_an_earlier_ballot_do_not_count)
{
        form(5);
        propose(0, 3, 0);
        round_trip(0, 2);
        paxos_retry(&nodes[0]);
        cr_assert_eq(round_trip(0, 4), 0, "two of five");
        cr_assert_eq(nodes[0].phase, PAXOS_PREPARING);
        cr_assert(round_trip(0, 8) & PAXOS_ASK);
        cr_assert_eq(nodes[0].phase, PAXOS_ACCEPTING);
}

Test(paxos, nothing_is_said_of_a_change_without_writing_it)
{
        form(3);
        propose(0, 3, 0);
        const struct paxos_message prepare = nodes[0].ask;

        cr_assert_eq(hear(1, 0, &prepare), PAXOS_WRITE | PAXOS_ANSWER);
        cr_assert_eq(hear(1, 0, &prepare), PAXOS_ANSWER, "a second time nothing changes");
        hear(0, 1, &nodes[1].answer);
        const struct paxos_message accept = nodes[0].ask;

        cr_assert_eq(hear(1, 0, &accept), PAXOS_WRITE | PAXOS_ANSWER);
        cr_assert_eq(hear(1, 0, &accept), PAXOS_ANSWER);
}

Test(paxos, one_of_two_chooses_alone_if_the_other_is_dead)
{
        form(2);
        cr_assert_eq(propose(0, 1, 2), PAXOS_WRITE | PAXOS_CHOSEN | PAXOS_OVER | PAXOS_ASK);
        cr_assert_eq(owners_at(0), 1);
        cr_assert_eq(node_set_to_word(nodes[0].to), 2, "it hears of it if it lives");
        meet(1, 0);
        cr_assert_eq(owners_at(1), 1);
}

Test(paxos, two_that_declared_each_other_dead_are_found)
{
        form(2);
        propose(0, 1, 2);
        propose(1, 2, 1);
        paxos_up(&nodes[1]);
        cr_assert_eq(hear(0, 1, &nodes[1].answer), PAXOS_SPLIT);
        cr_assert_eq(owners_at(0), 1);
}

Test(paxos, a_node_without_a_record_votes_when_it_has_heard_all_others)
{
        const struct placement wanted = placement_of(1);
        uint32_t actions;
        struct fault fault;

        form(3);
        blank(1);
        propose(0, 3, 0);
        cr_assert_eq(hear(1, 0, &nodes[0].ask), PAXOS_ANSWER);
        cr_assert_eq(nodes[1].answer.kind, PAXOS_STATE);
        cr_assert_eq(paxos_propose(&nodes[1], &wanted, NODE_SET_NONE, &actions, &fault),
                     ZERO_EPEER);
        paxos_up(&nodes[2]);
        cr_assert_eq(hear(1, 2, &nodes[2].answer), PAXOS_WRITE);
        cr_assert_eq(hear(1, 0, &nodes[0].ask) & PAXOS_ANSWER, PAXOS_ANSWER);
        cr_assert_eq(nodes[1].answer.kind, PAXOS_PROMISE);
}

Test(paxos, a_node_that_lost_its_record_takes_over_what_it_may_have_accepted)
{
        form(3);
        propose(0, 3, 0);
        round_trip(0, 2);
        hear(1, 0, &nodes[0].ask); /* accepted by 0 and 1: chosen, and nobody knows */
        paxos_give_up(&nodes[0]);
        blank(1);
        meet(1, 0);
        meet(1, 2);
        propose(2, 6, 0);
        for (int i = 0; i < 3 && nodes[2].phase != PAXOS_IDLE; i++) {
                if (nodes[2].ask.kind == PAXOS_PREPARE && i)
                        paxos_retry(&nodes[2]);
                round_trip(2, 2);
                round_trip(2, 2);
        }
        cr_assert_eq(owners_at(2), 3);
}

Test(paxos, enough_votes_meet_every_earlier_majority_in_a_node_that_lives)
{
        for (uint32_t n = 2; n <= 9; n++)
                for (uint64_t dead = 1; dead < (1ull << n) - 1; dead++) {
                        uint32_t n_dead = (uint32_t)__builtin_popcountll(dead), left = n - n_dead;
                        uint32_t majority = paxos_quorum(n, NODE_SET_NONE);
                        uint32_t living = majority > n_dead ? majority - n_dead : 0;
                        uint32_t q = paxos_quorum(n, node_set_from_word(dead));

                        cr_assert(q >= 1 && q <= left && 2 * majority > n);
                        cr_assert(living == 0 || q + living > left, "%u nodes, %u dead", n, n_dead);
                        cr_assert_gt(2 * q, left);
                }
}

Test(paxos, records_that_make_no_sense_are_told_from_others)
{
        const struct paxos_record good = { .voter = true,
                                           .chosen = placement_of(7),
                                           .promised = 128,
                                           .accepted = 64,
                                           .value = { .epoch = 1, .n_owners = 1, .copies = 1 } };
        struct paxos_record bad[8];

        for (size_t i = 0; i < 8; i++)
                bad[i] = good;
        bad[0].chosen.n_owners = 0;
        bad[1].chosen.n_owners = 4;
        bad[2].chosen.node[1] = 3;
        bad[3].chosen.node[2] = bad[3].chosen.node[0]; /* parted */
        bad[4].promised = UINT64_MAX;
        bad[5].accepted = 129;
        bad[6].value.epoch = 2;
        bad[7].value.n_owners = NODE_SET_MAX + 1;
        cr_assert(paxos_record_sane(&good, 3));
        for (size_t i = 0; i < 8; i++)
                cr_assert_not(paxos_record_sane(&bad[i], 3), "%zu", i);
}
