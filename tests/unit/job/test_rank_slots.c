/* Conversations with the coordinator's state machine: ranks, nodes and links come and go. */
#include <criterion/criterion.h>
#include <string.h>

#include "steps.h"

static const uint32_t two_nodes[] = { 0, 0, 1, 1 };
static const struct placement one_owner = { .n_owners = 1, .copies = 1, .node = { 0 } };
static const struct placement two_owners = { .n_owners = 2, .copies = 1, .node = { 0, 1 } };

static enum step_action join(struct step *s, uint32_t rank, uint32_t node)
{
        enum step_action action = STEP_NOTHING;

        cr_assert_eq(step_join(s, rank, node, &action, NULL), 0);
        return action;
}

static enum step_action vote(struct step *s, uint32_t owner, uint64_t attempt, double squared)
{
        struct votes v = steps_vote(squared, true);
        enum step_action action;

        step_vote(s, owner, attempt, &v, &action);
        return action;
}

/* ---- the start ---- */

Test(start, the_last_rank_makes_it_startable_in_any_order)
{
        static const uint32_t orders[][3] = { { 0, 1, 2 }, { 0, 2, 1 }, { 1, 0, 2 },
                                              { 1, 2, 0 }, { 2, 0, 1 }, { 2, 1, 0 } };

        for (size_t i = 0; i < sizeof orders / sizeof orders[0]; i++) {
                struct step s;

                cr_assert_eq(step_init(&s, 3, 2, &one_owner), 0);
                step_node_open(&s, 0);
                step_node_open(&s, 1);
                for (int k = 0; k < 3; k++) {
                        cr_assert(!step_startable(&s));
                        cr_assert_eq(join(&s, orders[i][k], orders[i][k] % 2), STEP_NOTHING);
                }
                cr_assert(step_startable(&s));
                cr_assert_eq(s.phase, STEP_FORMING);
                step_deinit(&s);
        }
}

Test(start, begins_the_next_attempt_of_the_same_version)
{
        struct step s;

        steps_form(&s, 4, two_nodes, 2, 2);
        s.attempt = 7;
        s.version = 3;
        step_start(&s);
        cr_assert(s.phase == STEP_COLLECTING && s.started && s.attempt == 8 && s.version == 3);
        cr_assert(!step_startable(&s), "what runs is not started");
        step_deinit(&s);
}

Test(start, begins_an_attempt_that_no_node_has_heard_of)
{
        struct step s;

        steps_form(&s, 4, two_nodes, 2, 2);
        step_heard(&s, 9);
        step_heard(&s, 4);
        step_start(&s);
        cr_assert_eq(s.attempt, 10);
        step_deinit(&s);
}

Test(start, a_running_attempt_stays_what_it_is_when_a_node_has_heard_of_a_later_one)
{
        struct step_params p = steps_params();
        struct step s;

        steps_start(&s, 4, two_nodes, 2, 2);
        step_heard(&s, 9);
        cr_assert_eq(steps_decide(&s, &p), STEP_DECIDE);
        cr_assert(s.decided_attempt == 1 && s.attempt == 2);
        steps_done(&s);
        step_node_lost(&s, 1);
        step_node_open(&s, 1);
        for (uint32_t r = 2; r < 4; r++)
                join(&s, r, 1);
        step_start(&s);
        cr_assert_eq(s.attempt, 10);
        step_deinit(&s);
}

Test(adopt, the_next_attempt_is_beyond_the_one_owners_go_on_to)
{
        struct step_params p = steps_params();
        const struct votes v = steps_vote(4, true);
        const struct recovery r = {
                .version = 3, .decided_attempt = 8, .decision = decide(&v, &p, 0), .skipped = 2
        };
        struct step s;

        steps_form(&s, 4, two_nodes, 2, 2);
        step_heard(&s, 8); /* all owners have voted in it, none knows the decision */
        step_adopt(&s, &r);
        cr_assert(s.version == 3 && s.decided_attempt == 8 && s.skipped == 2);
        step_start(&s);
        cr_assert_eq(s.attempt, 10, "owners are in attempt 9 when they have heard the decision");
        step_deinit(&s);
}

Test(start, waits_for_every_owner_and_every_node_with_ranks)
{
        static const uint32_t nodes[] = { 1, 2 }; /* node 0 only owns, node 3 is not needed */

        for (uint32_t n = 0; n < 4; n++) {
                struct step s;

                steps_form(&s, 2, nodes, 4, 2);
                node_set_remove(&s.open, n);
                cr_assert_eq(step_startable(&s), n == 3, "node %u", n);
                step_deinit(&s);
        }
}

Test(start, waits_for_every_link_that_the_job_needs)
{
        static const uint32_t nodes[] = { 0, 1, 2 };

        for (uint32_t from = 0; from < 4; from++)
                for (uint32_t to = 0; to < 4; to++) {
                        struct step s;

                        steps_form(&s, 3, nodes, 4, 2);
                        step_links(&s, from, node_set_of(to));
                        cr_assert_eq(step_startable(&s), from == 3 || to == 3, "%u to %u", from,
                                     to);
                        step_deinit(&s);
                }
}

Test(start, waits_until_every_owner_has_carried_the_last_decision_out)
{
        struct step_params p = steps_params();
        struct step s;

        steps_start(&s, 4, two_nodes, 2, 2);
        steps_decide(&s, &p);
        step_links(&s, 0, node_set_of(1));
        step_links(&s, 0, NODE_SET_NONE);
        cr_assert_eq(s.phase, STEP_FORMING);
        step_done(&s, 0, 1);
        cr_assert(!step_startable(&s), "owner 1 still updates");
        step_done(&s, 1, 1);
        cr_assert(step_startable(&s));
        step_deinit(&s);
}

/* ---- ranks ---- */

Test(join, a_taken_rank_is_refused_and_stays_with_the_first)
{
        struct step s;
        enum step_action action;
        struct fault fault;

        cr_assert_eq(step_init(&s, 2, 2, &one_owner), 0);
        join(&s, 0, 0);
        cr_assert_eq(step_join(&s, 0, 1, &action, &fault), ZERO_ERANK);
        cr_assert_str_eq(fault.text, "rank 0 is taken");
        cr_assert_eq(s.node_of_rank[0], 0);
        cr_assert_eq(s.phase, STEP_FORMING);
        step_deinit(&s);
}

Test(join, a_rank_outside_the_world_is_refused)
{
        struct step s;
        enum step_action action;

        cr_assert_eq(step_init(&s, 2, 2, &one_owner), 0);
        cr_assert_eq(step_join(&s, 2, 0, &action, NULL), ZERO_ERANK);
        cr_assert_eq(step_join(&s, UINT32_MAX, 0, &action, NULL), ZERO_ERANK);
        step_deinit(&s);
}

Test(lost, a_rank_leaves_the_attempt_as_it_is)
{
        struct step_params p = steps_params();
        struct step s;

        steps_start(&s, 4, two_nodes, 2, 2);
        step_part(&s, 3, false);
        cr_assert(s.phase == STEP_COLLECTING && s.rank_slots[3] == RANK_SLOT_LOST &&
                  s.node_of_rank[3] == 1);
        cr_assert(step_node_has_ranks(&s, 1), "its node still owes what it handed in");
        cr_assert_eq(steps_decide(&s, &p), STEP_DECIDE);
        step_deinit(&s);
}

Test(lost, a_successor_on_the_same_node_is_in_the_attempt_at_once)
{
        struct step s;

        steps_start(&s, 4, two_nodes, 2, 2);
        step_part(&s, 3, false);
        cr_assert_eq(join(&s, 3, 1), STEP_REJOIN);
        cr_assert(s.phase == STEP_COLLECTING && s.attempt == 1 &&
                  s.rank_slots[3] == RANK_SLOT_HERE);
        step_deinit(&s);
}

Test(lost, a_successor_may_come_while_owners_vote)
{
        struct step_params p = steps_params();
        struct step s;

        steps_start(&s, 4, two_nodes, 2, 2);
        cr_assert_eq(steps_ready(&s, &p), STEP_PREPARE);
        vote(&s, 0, 1, 1);
        step_part(&s, 0, false);
        cr_assert_eq(join(&s, 0, 0), STEP_REJOIN);
        cr_assert_eq(vote(&s, 1, 1, 1), STEP_DECIDE);
        step_deinit(&s);
}

/* The others have their norm and go on to the step: nobody would answer the successor's
 * zero_norm(). */
Test(lost, a_successor_after_a_norm_voids_the_attempt)
{
        struct step_params p = steps_params();
        struct step s;

        steps_start(&s, 4, two_nodes, 2, 2);
        cr_assert_eq(steps_ready(&s, NULL), STEP_PREPARE);
        vote(&s, 0, 1, 1);
        cr_assert_eq(vote(&s, 1, 1, 1), STEP_DECIDE);
        step_part(&s, 3, false);
        cr_assert_eq(join(&s, 3, 1), STEP_NOTHING);
        cr_assert(step_startable(&s));
        step_start(&s);
        step_part(&s, 3, false);
        cr_assert_eq(join(&s, 3, 1), STEP_REJOIN, "the norm was another attempt's");
        cr_assert_eq(steps_decide(&s, &p), STEP_DECIDE);
        step_deinit(&s);
}

Test(lost, a_successor_on_another_node_voids_the_attempt)
{
        struct step s;

        steps_start(&s, 4, two_nodes, 2, 2);
        step_part(&s, 3, false);
        cr_assert_eq(join(&s, 3, 0), STEP_NOTHING);
        cr_assert(s.phase == STEP_FORMING && s.node_of_rank[3] == 0);
        cr_assert(step_startable(&s));
        step_start(&s);
        cr_assert(s.attempt == 2 && s.version == 0);
        step_deinit(&s);
}

Test(lost, where_nobody_waits_for_a_successor_the_attempt_is_void)
{
        struct step_params p = steps_params();
        struct step s;
        enum step_action action;
        struct fault fault;

        steps_start(&s, 4, two_nodes, 2, 2);
        s.fail_on_lost = true;
        step_part(&s, 2, false);
        cr_assert_eq(s.phase, STEP_FORMING);
        cr_assert_eq(step_ready(&s, 0, 1, &p, 0, &action, &fault), ZERO_ELOSTRANK);
        cr_assert_str_eq(fault.text, "rank 2 was lost: its session ended");
        step_deinit(&s);
}

Test(part, of_a_rank_that_leaves_voids_the_attempt_and_names_it)
{
        struct step_params p = steps_params();
        struct step s;
        enum step_action action;
        struct fault fault;

        steps_start(&s, 4, two_nodes, 2, 2);
        step_part(&s, 1, true);
        cr_assert_eq(s.phase, STEP_FORMING);
        cr_assert_eq(step_ready(&s, 0, 1, &p, 0, &action, &fault), ZERO_ELOSTRANK);
        cr_assert_str_eq(fault.text, "rank 1 has left the job");
        step_deinit(&s);
}

Test(part, what_was_ready_or_voted_before_counts_no_more)
{
        struct step_params p = steps_params();
        struct step s;

        steps_start(&s, 4, two_nodes, 2, 2);
        steps_ready(&s, &p);
        vote(&s, 0, 1, 1);
        step_part(&s, 0, true);
        cr_assert_eq(vote(&s, 1, 1, 1), STEP_NOTHING, "the attempt is void");
        join(&s, 0, 0);
        step_start(&s);
        steps_ready(&s, &p);
        cr_assert_eq(vote(&s, 1, 2, 4), STEP_NOTHING);
        cr_assert_eq(vote(&s, 0, 2, 5), STEP_DECIDE);
        cr_assert_float_eq(s.decision.grad_norm, 3, 1e-15);
        step_deinit(&s);
}

Test(part, of_an_unknown_rank_changes_nothing)
{
        struct step s;

        steps_start(&s, 4, two_nodes, 2, 2);
        step_part(&s, 4, false);
        cr_assert_eq(s.phase, STEP_COLLECTING);
        step_deinit(&s);
}

Test(part, a_rank_that_has_not_come_yet_has_not_left)
{
        struct step_params p = steps_params();
        struct step s;
        enum step_action action;

        cr_assert_eq(step_init(&s, 2, 2, &two_owners), 0);
        s.attempt = 5; /* a coordinator that was away */
        join(&s, 0, 0);
        cr_assert_eq(step_ready(&s, 0, 5, &p, 0, &action, NULL), 0);
        cr_assert_eq(action, STEP_NOTHING);
        step_deinit(&s);
}

/* ---- nodes and links ---- */

Test(node, an_owner_or_a_node_with_ranks_that_is_lost_voids_the_attempt)
{
        static const uint32_t nodes[] = { 1, 2 };

        for (uint32_t n = 0; n < 4; n++) {
                struct step s;

                steps_start(&s, 2, nodes, 4, 2);
                step_node_lost(&s, n);
                cr_assert_eq(s.phase, n == 3 ? STEP_COLLECTING : STEP_FORMING, "node %u", n);
                step_deinit(&s);
        }
}

Test(node, its_ranks_are_lost_with_it_and_may_come_again)
{
        struct step s;

        steps_start(&s, 4, two_nodes, 2, 2);
        step_node_lost(&s, 1);
        cr_assert(s.rank_slots[0] == RANK_SLOT_HERE && s.rank_slots[1] == RANK_SLOT_HERE);
        cr_assert(s.rank_slots[2] == RANK_SLOT_LOST && s.rank_slots[3] == RANK_SLOT_LOST);
        step_node_open(&s, 1);
        cr_assert_eq(join(&s, 2, 1), STEP_NOTHING, "a void attempt takes nobody");
        cr_assert_eq(join(&s, 3, 1), STEP_NOTHING);
        cr_assert(step_startable(&s));
        step_deinit(&s);
}

Test(node, who_waits_in_a_void_attempt_is_not_refused)
{
        struct step_params p = steps_params();
        struct step s;
        enum step_action action;

        steps_start(&s, 4, two_nodes, 2, 2);
        step_node_lost(&s, 1);
        cr_assert_eq(step_ready(&s, 0, 1, &p, 0, &action, NULL), 0);
        cr_assert_eq(action, STEP_NOTHING);
        step_deinit(&s);
}

Test(link, between_two_needed_nodes_that_breaks_voids_the_attempt)
{
        static const uint32_t nodes[] = { 0, 1 };

        for (uint32_t to = 0; to < 4; to++) {
                struct step s;

                steps_start(&s, 2, nodes, 4, 3);
                step_links(&s, 2, node_set_of(to));
                cr_assert_eq(s.phase, to == 3 ? STEP_COLLECTING : STEP_FORMING, "to node %u", to);
                step_deinit(&s);
        }
}

Test(link, that_is_there_again_does_not_bring_the_attempt_back)
{
        struct step s;

        steps_start(&s, 4, two_nodes, 2, 2);
        step_links(&s, 1, node_set_of(0));
        step_links(&s, 1, NODE_SET_NONE);
        cr_assert_eq(s.phase, STEP_FORMING);
        cr_assert(step_startable(&s));
        step_deinit(&s);
}

Test(link, votes_of_a_void_attempt_decide_nothing)
{
        struct step_params p = steps_params();
        struct step s;

        steps_start(&s, 4, two_nodes, 2, 2);
        steps_ready(&s, &p);
        vote(&s, 0, 1, 1);
        step_links(&s, 0, node_set_of(1));
        cr_assert_eq(vote(&s, 1, 1, 1), STEP_NOTHING);
        cr_assert(s.version == 0 && s.decided_attempt == 0);
        step_deinit(&s);
}

/* ---- the world size ---- */

Test(resize, makes_all_rank_slots_empty)
{
        static const uint32_t nodes[] = { 0, 1 };
        struct step s;

        steps_start(&s, 2, nodes, 2, 2);
        step_part(&s, 0, false);
        step_part(&s, 1, true);
        cr_assert(!step_occupied(&s));
        cr_assert_eq(step_resize(&s, 3), 0);
        cr_assert(s.world_size == 3 && s.phase == STEP_FORMING && !step_occupied(&s));
        for (uint32_t r = 0; r < 3; r++) {
                cr_assert(!step_startable(&s));
                join(&s, r, r % 2);
                cr_assert(step_occupied(&s));
        }
        cr_assert(step_startable(&s));
        step_deinit(&s);
}
