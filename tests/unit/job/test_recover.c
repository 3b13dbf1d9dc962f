/*
 * Where a job stands after nodes were lost: everything that a crash can leave in the records of
 * two and three owners, and records that none can leave.
 */
#include <criterion/criterion.h>
#include <string.h>

#include "daemon/job/recover.h"
#include "steps.h"

enum { OWNERS_MAX = 3, VERSION = 10 };
enum { VOID_ATTEMPT = 6, ATTEMPT = 7, NEXT_ATTEMPT = 8 };

/* ---- material ---- */

static struct step_params params(void)
{
        struct step_params p = steps_params();

        p.clip_norm = 0.3;
        p.growth_interval = 2;
        return p;
}

/* Sums whose bits depend on every owner's vote. */
static struct votes vote_of(uint32_t owner, uint64_t attempt, bool finite)
{
        return steps_vote(1.0 / (owner + 3) + 1e-3 * (double)attempt, finite);
}

static struct decision decision_of(uint64_t attempt, uint32_t n, bool finite, uint32_t good_steps)
{
        const struct step_params p = params();
        struct votes all = { .finite = true };

        exact_sum_init(&all.norm);
        for (uint32_t o = 0; o < n; o++) {
                const struct votes v = vote_of(o, attempt, finite || o > 0);

                exact_sum_merge(&all.norm, &v.norm);
                all.finite = all.finite && v.finite;
        }
        return decide(&all, &p, good_steps);
}

static bool same_decision(const struct decision *a, const struct decision *b)
{
        return a->commit == b->commit && a->finite == b->finite && a->overflow == b->overflow &&
               memcmp(&a->grad_norm, &b->grad_norm, sizeof a->grad_norm) == 0 &&
               memcmp(&a->grad_scale, &b->grad_scale, sizeof a->grad_scale) == 0 &&
               a->loss_scale == b->loss_scale && a->good_steps == b->good_steps;
}

/* A run up to ATTEMPT, of n owners; decided: whether there was a step before. */
struct run {
        uint32_t n;
        bool finite; /* the gradient of ATTEMPT */
        struct standing before, after;
};

static struct run run_of(uint32_t n, bool finite, bool decided)
{
        struct run run = { .n = n, .finite = finite };

        run.before = (struct standing){ .version = VERSION, .skipped = 4, .done = true };
        exact_sum_init(&run.before.vote.norm);
        if (decided) {
                run.before.decided_attempt = 5;
                run.before.decision = decision_of(5, n, true, 0);
        }
        run.after = run.before;
        run.after.decision = decision_of(ATTEMPT, n, finite, run.before.decision.good_steps);
        run.after.decided_attempt = ATTEMPT;
        run.after.version += run.after.decision.commit;
        run.after.skipped += run.after.decision.overflow;
        return run;
}

static void prepare(struct standing *s, uint32_t owner, uint64_t attempt, bool finite)
{
        s->prepared_attempt = attempt;
        s->vote = vote_of(owner, attempt, finite || owner > 0);
        s->params = params();
}

/* How far an owner has come. */
enum place { NOT_VOTED, VOTED_IN_VOID, VOTED, DECIDED, CARRIED_OUT, VOTED_NEXT, PLACES };

static struct standing standing_of(const struct run *run, uint32_t owner, enum place place)
{
        struct standing s = place < DECIDED ? run->before : run->after;

        if (place == VOTED_IN_VOID)
                prepare(&s, owner, VOID_ATTEMPT, true);
        else if (place == VOTED)
                prepare(&s, owner, ATTEMPT, run->finite);
        else if (place == DECIDED)
                s.done = false;
        else if (place == VOTED_NEXT)
                prepare(&s, owner, NEXT_ATTEMPT, true);
        return s;
}

static int recover_places(const struct run *run, const enum place *places, struct recovery *ret,
                          uint32_t *ret_odd)
{
        struct standing s[OWNERS_MAX];
        const struct standing *standings[OWNERS_MAX];
        const struct placement view = steps_view(run->n, false);

        for (uint32_t o = 0; o < run->n; o++) {
                s[o] = standing_of(run, o, places[o]);
                standings[o] = &s[o];
        }
        return recover(standings, &view, ret, ret_odd, NULL);
}

/* ---- what crashes leave ---- */

static bool all_at(const enum place *places, uint32_t n, enum place place)
{
        for (uint32_t o = 0; o < n; o++)
                if (places[o] != place)
                        return false;
        return true;
}

/* Where the run stands for one who sees all votes and decisions. */
static struct recovery truth(const struct run *run, const enum place *places)
{
        struct standing s = run->before;
        uint64_t again = 0;

        for (uint32_t o = 0; o < run->n; o++)
                if (places[o] >= DECIDED)
                        s = run->after;
        if (all_at(places, run->n, VOTED_IN_VOID))
                again = VOID_ATTEMPT;
        if (all_at(places, run->n, VOTED))
                again = ATTEMPT;
        if (all_at(places, run->n, VOTED_NEXT))
                again = NEXT_ATTEMPT;
        if (again) {
                s.decision = decision_of(again, run->n, again != ATTEMPT || run->finite,
                                         s.decision.good_steps);
                s.decided_attempt = again;
                s.version += s.decision.commit;
                s.skipped += s.decision.overflow;
        }
        return (struct recovery){ s.version, s.decided_attempt, s.decision, s.skipped };
}

/* Once one owner knows the decision all have voted for it. */
static bool can_be(const enum place *places, uint32_t n)
{
        bool decided = false, not_voted = false;

        for (uint32_t o = 0; o < n; o++) {
                decided = decided || places[o] >= DECIDED;
                not_voted = not_voted || places[o] < VOTED;
        }
        return !(decided && not_voted);
}

typedef void check_places(const struct run *run, const enum place *places);

/* All places of all owners; those that can be, or those that cannot. */
static uint32_t each_combination(bool possible, check_places *check)
{
        uint32_t count = 0;

        for (uint32_t i = 0; i < 8; i++) {
                const struct run run = run_of(2 + i % 2, i / 2 % 2, i / 4);
                uint32_t all = run.n == 2 ? PLACES * PLACES : PLACES * PLACES * PLACES;

                for (uint32_t c = 0; c < all; c++) {
                        const enum place places[] = { c % PLACES, c / PLACES % PLACES,
                                                      c / PLACES / PLACES };

                        if (can_be(places, run.n) != possible)
                                continue;
                        check(&run, places);
                        count++;
                }
        }
        return count;
}

static void check_truth(const struct run *run, const enum place *places)
{
        const struct recovery expected = truth(run, places);
        struct recovery r;
        uint32_t odd;

        cr_assert_eq(recover_places(run, places, &r, &odd), 0, "%d %d %d", places[0], places[1],
                     run->n > 2 ? (int)places[2] : -1);
        cr_assert_eq(r.version, expected.version);
        cr_assert_eq(r.decided_attempt, expected.decided_attempt);
        cr_assert_eq(r.skipped, expected.skipped);
        if (r.decided_attempt)
                cr_assert(same_decision(&r.decision, &expected.decision));
}

Test(recover, finds_the_one_decision_in_whatever_crashes_leave)
{
        cr_assert_gt(each_combination(true, check_truth), 200);
}

/* The owners' order does not matter, but for the bits of their own votes. */
static void check_order(const struct run *run, const enum place *places)
{
        static const uint32_t orders[][3] = { { 0, 1, 2 }, { 0, 2, 1 }, { 1, 0, 2 },
                                              { 1, 2, 0 }, { 2, 0, 1 }, { 2, 1, 0 } };
        const struct placement view = steps_view(run->n, false);
        struct standing s[OWNERS_MAX];
        struct recovery first, r;
        uint32_t odd;

        for (uint32_t o = 0; o < run->n; o++)
                s[o] = standing_of(run, o, places[o]);
        for (size_t i = 0; i < sizeof orders / sizeof orders[0]; i++) {
                const struct standing *standings[OWNERS_MAX];
                uint32_t n = 0;

                for (uint32_t k = 0; k < 3; k++)
                        if (orders[i][k] < run->n)
                                standings[n++] = &s[orders[i][k]];
                cr_assert_eq(recover(standings, &view, &r, &odd, NULL), 0);
                if (i == 0)
                        first = r;
                cr_assert_eq(r.version, first.version);
                cr_assert_eq(r.decided_attempt, first.decided_attempt);
                cr_assert_eq(r.skipped, first.skipped);
                cr_assert(same_decision(&r.decision, &first.decision));
        }
}

Test(recover, does_not_depend_on_the_order_of_the_owners)
{
        each_combination(true, check_order);
}

/* Each owner brought to where recover() says has nothing left to hear. */
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

Test(recover, every_owner_can_follow_and_is_behind_once)
{
        each_combination(true, check_settles);
}

Test(recover, an_owner_that_comes_later_fits_what_the_others_went_on_to)
{
        const struct run run = run_of(2, true, true);
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

static void check_refused(const struct run *run, const enum place *places)
{
        struct recovery r = { .version = 99 };
        uint32_t odd = 99;

        cr_assert_eq(recover_places(run, places, &r, &odd), ZERO_ECONFLICT);
        cr_assert_lt(odd, run->n);
        cr_assert_lt(places[odd], VOTED, "the one that had not voted is named");
        cr_assert_eq(r.version, 99);
}

Test(odd, an_owner_that_had_not_voted_for_what_others_decided_is_refused_and_named)
{
        cr_assert_gt(each_combination(false, check_refused), 100);
}

/* Owner 1 of two that have carried the step out, with one thing changed; text says what is wrong.
 */
static void refused(const struct standing *changed, const char *text)
{
        const struct run run = run_of(2, true, true);
        const struct standing good = standing_of(&run, 0, CARRIED_OUT);
        const struct standing *standings[] = { &good, changed };
        const struct placement view = steps_view(2, false);
        struct recovery r;
        struct fault fault = { 0 };
        uint32_t odd = 99;

        cr_assert_eq(recover(standings, &view, &r, &odd, &fault), ZERO_ECONFLICT);
        cr_assert_eq(odd, 1);
        cr_assert(strstr(fault.text, text), "%s", fault.text);
}

static struct standing carried_out(void)
{
        const struct run run = run_of(2, true, true);

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
        const struct run run = run_of(2, true, true);
        struct standing s = run.before;

        refused(&s, "is older than the last step of the others");
}

Test(odd, votes_of_one_attempt_for_different_steps_are_refused)
{
        const struct run run = run_of(2, true, true);
        struct standing a = standing_of(&run, 0, VOTED), b = standing_of(&run, 1, VOTED);
        const struct standing *standings[] = { &a, &b };
        const struct placement view = steps_view(2, false);
        struct recovery r;
        struct fault fault = { 0 };
        uint32_t odd = 99;

        b.params.sets[0].lr *= 2;
        cr_assert_eq(recover(standings, &view, &r, &odd, &fault), ZERO_ECONFLICT);
        cr_assert_eq(odd, 1);
        cr_assert(strstr(fault.text, "lr"), "%s", fault.text);
}

Test(odd, one_that_comes_later_and_knows_more_is_refused)
{
        const struct run run = run_of(2, true, true);
        const struct recovery now = { run.before.version, run.before.decided_attempt,
                                      run.before.decision, run.before.skipped };
        struct standing s = standing_of(&run, 1, DECIDED);
        bool behind;
        struct fault fault = { 0 };

        cr_assert_eq(recover_one(&s, &now, &behind, &fault), ZERO_ECONFLICT);
        cr_assert(strstr(fault.text, "knows a decision (attempt 7)"), "%s", fault.text);
}
