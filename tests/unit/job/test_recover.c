/*
 * Where a job stands after nodes were lost: all records that a crash can leave with two and three
 * owners, and with two and mirrors; and records that no crash can leave.
 */
#include <criterion/criterion.h>
#include <string.h>

#include "runs.h"
#include "steps.h"

Test(recover, finds_the_one_decision_in_whatever_crashes_leave)
{
        cr_assert_gt(each_combination(true, check_truth), 200);
}

/* Only the bits of their own votes depend on the owners' order. */
static void check_order(const struct run *run, const enum place *places)
{
        static const uint32_t orders[][3] = { { 0, 1, 2 }, { 0, 2, 1 }, { 1, 0, 2 },
                                              { 1, 2, 0 }, { 2, 0, 1 }, { 2, 1, 0 } };
        struct standing s[OWNERS_MAX];
        struct recovery first, r;
        uint32_t odd;

        if (run->placement.copies > 1)
                return;
        for (uint32_t o = 0; o < run->n; o++)
                s[o] = standing_of(run, o, places[o]);
        for (size_t i = 0; i < sizeof orders / sizeof orders[0]; i++) {
                const struct standing *standings[OWNERS_MAX];
                uint32_t n = 0;

                for (uint32_t k = 0; k < 3; k++)
                        if (orders[i][k] < run->n)
                                standings[n++] = &s[orders[i][k]];
                cr_assert_eq(recover(standings, &run->placement, &r, &odd, NULL), 0);
                if (i == 0)
                        first = r;
                cr_assert(same_recovery(&r, &first));
        }
}

Test(recover, does_not_depend_on_the_order_of_the_owners)
{
        each_combination(true, check_order);
}

/* Each holder that follows recover() has nothing left to hear. */
static void check_settles(const struct run *run, const enum place *places)
{
        struct recovery r;
        uint32_t odd;

        cr_assert_eq(recover_places(run, places, &r, &odd), 0);
        for (uint32_t o = 0; o < run->n; o++) {
                struct standing s = standing_of(run, o, places[o]);
                bool behind;

                cr_assert_eq(recover_one(&s, &r, &behind, NULL), 0);
                cr_assert_eq(behind, s.decided_attempt != r.decided_attempt);
                if (!behind)
                        continue;
                s = (struct standing){ .version = s.version + r.decision.commit,
                                       .decided_attempt = r.decided_attempt,
                                       .decision = r.decision,
                                       .skipped = r.skipped };
                cr_assert_eq(recover_one(&s, &r, &behind, NULL), 0);
                cr_assert(!behind);
        }
}

Test(recover, every_holder_can_follow_and_is_behind_once)
{
        each_combination(true, check_settles);
}

Test(recover, an_owner_that_comes_later_fits_what_the_others_went_on_to)
{
        const struct run run = run_of(2, false, true, true);
        const struct recovery now = { run.after.version, ATTEMPT, run.after.decision,
                                      run.after.skipped };
        struct standing s = standing_of(&run, 1, VOTED);
        bool behind;

        cr_assert_eq(recover_one(&s, &now, &behind, NULL), 0);
        cr_assert(behind);
        s = standing_of(&run, 1, CARRIED_OUT);
        cr_assert_eq(recover_one(&s, &now, &behind, NULL), 0);
        cr_assert(!behind);
}

/* ---- what no crash leaves ---- */

Test(odd, a_holder_that_had_not_voted_for_what_others_decided_is_refused_and_named)
{
        cr_assert_gt(each_combination(false, check_refused), 100);
}

/* Checks that `changed` as the record of owner 1, of two that have carried the step out, is refused
 * with the text.
 */
static void refused(const struct standing *changed, const char *text)
{
        const struct run run = run_of(2, false, true, true);
        const struct standing good = standing_of(&run, 0, CARRIED_OUT);
        const struct standing *standings[] = { &good, changed };
        const struct placement p = steps_placement(2, false);
        struct recovery r;
        struct fault fault = { 0 };
        uint32_t odd = 99;

        cr_assert_eq(recover(standings, &p, &r, &odd, &fault), ZERO_ECONFLICT);
        cr_assert_eq(odd, 1);
        cr_assert(strstr(fault.text, text), "%s", fault.text);
}

static struct standing carried_out(void)
{
        const struct run run = run_of(2, false, true, true);

        return standing_of(&run, 1, CARRIED_OUT);
}

Test(odd, another_version_after_the_same_decision_is_refused)
{
        struct standing s = carried_out();

        s.version++;
        refused(&s, "is at version 12, not 11");
}

Test(odd, another_decision_of_the_same_attempt_is_refused)
{
        struct standing s = carried_out();

        s.decision.grad_scale *= 2;
        refused(&s, "another decision of attempt 7");
        s = carried_out();
        s.decision.good_steps++;
        refused(&s, "another decision of attempt 7");
        s = carried_out();
        s.skipped++;
        refused(&s, "another decision of attempt 7");
}

Test(odd, a_record_older_than_the_last_step_is_refused)
{
        const struct run run = run_of(2, false, true, true);
        struct standing s = run.before;

        refused(&s, "is older than the last step of the others");
}

Test(odd, votes_of_one_attempt_for_different_steps_are_refused)
{
        const struct run run = run_of(2, false, true, true);
        struct standing a = standing_of(&run, 0, VOTED), b = standing_of(&run, 1, VOTED);
        const struct standing *standings[] = { &a, &b };
        const struct placement p = steps_placement(2, false);
        struct recovery r;
        struct fault fault = { 0 };
        uint32_t odd = 99;

        b.params.sets[0].value[0] *= 2;
        cr_assert_eq(recover(standings, &p, &r, &odd, &fault), ZERO_ECONFLICT);
        cr_assert_eq(odd, 1);
        cr_assert(strstr(fault.text, "lr"), "%s", fault.text);
}

Test(odd, one_that_comes_later_and_knows_more_is_refused)
{
        const struct run run = run_of(2, false, true, true);
        const struct recovery now = { run.before.version, run.before.decided_attempt,
                                      run.before.decision, run.before.skipped };
        struct standing s = standing_of(&run, 1, DECIDED);
        bool behind;
        struct fault fault = { 0 };

        cr_assert_eq(recover_one(&s, &now, &behind, &fault), ZERO_ECONFLICT);
        cr_assert(strstr(fault.text, "knows a decision (attempt 7)"), "%s", fault.text);
}
