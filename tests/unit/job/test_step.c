/* Conversations with the coordinator's state machine: one step. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "steps.h"

static const uint32_t two_nodes[] = { 0, 0, 1, 1 };

static int ready(struct step *s, uint32_t node, const struct step_params *p, uint32_t rank,
                 enum step_action *ret)
{
        return step_ready(s, node, s->attempt, p, rank, ret, NULL);
}

static enum step_action vote(struct step *s, uint32_t owner, uint64_t attempt, double squared)
{
        struct votes v = steps_vote(squared, true);
        enum step_action action;

        step_vote(s, owner, attempt, &v, &action);
        return action;
}

/* All nodes are ready for the step, so that owners vote. */
static void to_voting(struct step *s, const struct step_params *p)
{
        enum step_action action;

        cr_assert_eq(ready(s, 0, p, 0, &action), 0);
        cr_assert_eq(action, STEP_NOTHING);
        cr_assert_eq(ready(s, 1, p, 2, &action), 0);
        cr_assert_eq(action, STEP_PREPARE);
}

/* ---- ready ---- */

Test(ready, nodes_come_in_any_order_and_nodes_without_ranks_are_not_waited_for)
{
        static const uint32_t nodes[] = { 2, 0 };
        struct step_params p = steps_params();
        enum step_action action;

        for (int i = 0; i < 2; i++) {
                struct step s;

                steps_start(&s, 2, nodes, 4, 2);
                cr_assert_eq(ready(&s, i ? 0 : 2, &p, 0, &action), 0);
                cr_assert_eq(action, STEP_NOTHING);
                cr_assert_eq(ready(&s, i ? 2 : 0, &p, 1, &action), 0);
                cr_assert_eq(action, STEP_PREPARE);
                cr_assert_eq(s.phase, STEP_VOTING);
                step_deinit(&s);
        }
}

Test(ready, twice_from_one_node_does_not_stand_for_the_other)
{
        struct step s;
        struct step_params p = steps_params();
        enum step_action action;

        steps_start(&s, 4, two_nodes, 2, 2);
        for (int i = 0; i < 3; i++) {
                cr_assert_eq(ready(&s, 0, &p, 0, &action), 0);
                cr_assert_eq(action, STEP_NOTHING);
        }
        step_deinit(&s);
}

Test(ready, again_while_owners_vote_waits_for_the_same_decision)
{
        struct step s;
        struct step_params p = steps_params();
        enum step_action action;

        steps_start(&s, 4, two_nodes, 2, 2);
        to_voting(&s, &p);
        cr_assert_eq(ready(&s, 1, &p, 3, &action), 0);
        cr_assert_eq(action, STEP_NOTHING);
        cr_assert_eq(vote(&s, 0, 1, 1), STEP_NOTHING);
        cr_assert_eq(vote(&s, 1, 1, 1), STEP_DECIDE);
        step_deinit(&s);
}

Test(ready, of_an_attempt_that_is_over_changes_nothing)
{
        struct step s;
        struct step_params p = steps_params();
        enum step_action action;

        steps_start(&s, 4, two_nodes, 2, 2);
        cr_assert_eq(step_ready(&s, 0, 0, &p, 0, &action, NULL), 0);
        cr_assert_eq(action, STEP_NOTHING);
        cr_assert(!s.ready[0]);
        step_deinit(&s);
}

Test(ready, of_an_attempt_or_a_node_that_is_not_there_is_refused)
{
        struct step s;
        struct step_params p = steps_params();
        enum step_action action;

        steps_start(&s, 4, two_nodes, 2, 2);
        cr_assert_eq(step_ready(&s, 0, 2, &p, 0, &action, NULL), ZERO_EORDER);
        cr_assert_eq(step_ready(&s, 2, 1, &p, 0, &action, NULL), ZERO_EORDER);
        cr_assert(!s.ready[0]);
        step_deinit(&s);
}

Test(ready, a_conflict_names_both_ranks_and_the_first_difference)
{
        struct step s;
        struct step_params p = steps_params(), q = steps_params();
        enum step_action action;
        struct fault fault;

        steps_start(&s, 4, two_nodes, 2, 2);
        cr_assert_eq(ready(&s, 0, &p, 1, &action), 0);
        q.sets[0].value[0] = 0.5;
        p = q;
        cr_assert_eq(step_ready(&s, 1, 1, &p, 3, &action, &fault), ZERO_ECONFLICT);
        cr_assert(strstr(fault.text, "ranks 1 and 3") && strstr(fault.text, "set 0: lr 0.001") &&
                          strstr(fault.text, "0.5"),
                  "%s", fault.text);
        cr_assert_eq(s.phase, STEP_COLLECTING);
        p = steps_params();
        cr_assert_eq(ready(&s, 1, &p, 3, &action), 0);
        cr_assert_eq(action, STEP_PREPARE);
        step_deinit(&s);
}

Test(ready, norm_and_step_are_not_mixed)
{
        struct step s;
        struct step_params p = steps_params();
        enum step_action action;
        struct fault fault;

        steps_start(&s, 4, two_nodes, 2, 2);
        cr_assert_eq(ready(&s, 0, NULL, 0, &action), 0);
        cr_assert_eq(step_ready(&s, 1, 1, &p, 2, &action, &fault), ZERO_ECONFLICT);
        cr_assert_str_eq(fault.text, "rank 2 calls zero_step while rank 0 calls zero_norm");
        step_deinit(&s);
}

/* ---- votes ---- */

Test(vote, a_commit_moves_version_and_attempt_by_one)
{
        struct step s;
        struct step_params p = steps_params();

        steps_start(&s, 4, two_nodes, 2, 2);
        for (uint64_t n = 0; n < 5; n++) {
                cr_assert_eq(s.attempt, n + 1);
                cr_assert_eq(s.version, n);
                to_voting(&s, &p);
                vote(&s, 0, s.attempt, 1);
                cr_assert_eq(vote(&s, 1, s.attempt, 1), STEP_DECIDE);
                cr_assert_eq(s.phase, STEP_COLLECTING);
        }
        step_deinit(&s);
}

Test(vote, a_skip_moves_the_attempt_alone)
{
        struct step s;
        struct step_params p = steps_params();
        struct votes bad = steps_vote(0, false);
        enum step_action action;

        steps_start(&s, 4, two_nodes, 2, 2);
        to_voting(&s, &p);
        vote(&s, 1, 1, 1);
        step_vote(&s, 0, 1, &bad, &action);
        cr_assert_eq(action, STEP_DECIDE);
        cr_assert_eq(s.version, 0);
        cr_assert_eq(s.attempt, 2);
        cr_assert_eq(s.skipped, 1);
        cr_assert(s.decision.overflow);
        step_deinit(&s);
}

Test(vote, a_refused_step_leaves_the_attempt_to_another_call)
{
        struct step s;
        struct step_params p = steps_params();
        struct votes no = steps_vote(1, true);
        enum step_action action;

        fault_set(&no.refused, ZERO_EINVAL, "no");
        steps_start(&s, 4, two_nodes, 2, 2);
        to_voting(&s, &p);
        step_vote(&s, 0, 1, &no, &action);
        cr_assert_eq(action, STEP_NOTHING, "votes under way must not count for the next call");
        cr_assert_eq(vote(&s, 1, 1, 1), STEP_REFUSE);
        cr_assert_eq(s.refusal.status, ZERO_EINVAL);
        cr_assert_str_eq(s.refusal.text, "no");
        cr_assert(s.version == 0 && s.attempt == 1 && s.decided_attempt == 0);
        p.sets[0].value[0] = 2;
        to_voting(&s, &p);
        vote(&s, 0, 1, 1);
        cr_assert_eq(vote(&s, 1, 1, 1), STEP_DECIDE);
        cr_assert(s.version == 1 && s.attempt == 2 && s.params.sets[0].value[0] == 2);
        step_deinit(&s);
}

Test(vote, repeated_ones_and_those_of_other_attempts_are_ignored)
{
        struct step s;
        struct step_params p = steps_params();

        steps_start(&s, 4, two_nodes, 2, 2);
        cr_assert_eq(vote(&s, 0, 1, 100), STEP_NOTHING); /* nobody has asked */
        to_voting(&s, &p);
        cr_assert_eq(vote(&s, 0, 1, 9), STEP_NOTHING);
        cr_assert_eq(vote(&s, 0, 1, 100), STEP_NOTHING);
        cr_assert_eq(vote(&s, 1, 0, 100), STEP_NOTHING);
        cr_assert_eq(vote(&s, 1, 2, 100), STEP_NOTHING);
        cr_assert_eq(vote(&s, 2, 1, 100), STEP_NOTHING);
        cr_assert_eq(vote(&s, 1, 1, 16), STEP_DECIDE);
        cr_assert_float_eq(s.decision.grad_norm, 5, 1e-15);
        step_deinit(&s);
}

Test(vote, the_norm_ends_nothing)
{
        struct step s;
        struct step_params p = steps_params();
        enum step_action action;

        steps_start(&s, 4, two_nodes, 2, 2);
        ready(&s, 0, NULL, 0, &action);
        ready(&s, 1, NULL, 2, &action);
        cr_assert_eq(action, STEP_PREPARE);
        cr_assert(s.norm_only);
        vote(&s, 0, 1, 9);
        cr_assert_eq(vote(&s, 1, 1, 16), STEP_DECIDE);
        cr_assert_eq(s.norm, 5);
        cr_assert_eq(s.attempt, 1);
        cr_assert_eq(s.version, 0);
        to_voting(&s, &p);
        cr_assert(!s.norm_only);
        vote(&s, 0, 1, 9);
        cr_assert_eq(vote(&s, 1, 1, 16), STEP_DECIDE);
        cr_assert_eq(s.version, 1);
        step_deinit(&s);
}

Test(vote, the_norm_of_gradients_that_are_not_finite_is_nan)
{
        struct step s;
        struct votes bad = steps_vote(1, false);
        enum step_action action;

        steps_start(&s, 4, two_nodes, 2, 1);
        ready(&s, 0, NULL, 0, &action);
        ready(&s, 1, NULL, 2, &action);
        step_vote(&s, 0, 1, &bad, &action);
        cr_assert_eq(action, STEP_DECIDE);
        cr_assert(isnan(s.norm));
        step_deinit(&s);
}

/* Doubles whose plain sum depends on the order. */
static double awkward(struct rng *rng)
{
        return ldexp((double)(rng_next(rng) >> 12) + 1, (int)rng_below(rng, 400) - 200);
}

Test(vote, the_decision_is_that_of_the_merged_votes_in_any_order)
{
        enum { OWNERS = 9, ROUNDS = 200 };
        struct rng rng = { 7 };

        for (int round = 0; round < ROUNDS; round++) {
                struct step_params p = steps_params();
                struct votes votes[OWNERS], all = { .finite = true };
                struct decision expected;
                struct step s;
                enum step_action action;
                uint32_t order[OWNERS];

                p.clip_norm = 1;
                steps_start(&s, 4, two_nodes, OWNERS, OWNERS);
                to_voting(&s, &p);
                exact_sum_init(&all.norm);
                for (uint32_t o = 0; o < OWNERS; o++) {
                        votes[o] = steps_vote(awkward(&rng), rng_below(&rng, 40) != 0);
                        exact_sum_merge(&all.norm, &votes[o].norm);
                        all.finite = all.finite && votes[o].finite;
                        order[o] = o;
                }
                expected = decide(&all, &p, 0);
                for (uint32_t i = OWNERS - 1; i > 0; i--) {
                        uint32_t k = rng_below(&rng, i + 1), swap = order[i];

                        order[i] = order[k];
                        order[k] = swap;
                }
                for (uint32_t i = 0; i < OWNERS; i++) {
                        step_vote(&s, order[i], 1, &votes[order[i]], &action);
                        cr_assert_eq(action, i + 1 == OWNERS ? STEP_DECIDE : STEP_NOTHING);
                }
                cr_assert_eq(s.decision.commit, expected.commit);
                cr_assert_eq(memcmp(&s.decision.grad_norm, &expected.grad_norm, sizeof(double)), 0);
                cr_assert_eq(memcmp(&s.decision.grad_scale, &expected.grad_scale, sizeof(double)),
                             0);
                step_deinit(&s);
        }
}

Test(done, counts_for_the_last_decided_attempt_only)
{
        struct step s;
        struct step_params p = steps_params();

        steps_start(&s, 4, two_nodes, 2, 2);
        to_voting(&s, &p);
        vote(&s, 0, 1, 1);
        vote(&s, 1, 1, 1);
        cr_assert(!s.done[0] && !s.done[1]);
        step_done(&s, 0, 0);
        step_done(&s, 0, 2);
        step_done(&s, 2, 1);
        cr_assert(!s.done[0]);
        step_done(&s, 0, 1);
        cr_assert(s.done[0] && !s.done[1]);
        step_deinit(&s);
}
