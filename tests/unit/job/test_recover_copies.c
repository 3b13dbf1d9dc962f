/*
 * Where a job of mirrored owners stands after nodes were lost for good: any copies may be gone
 * except one of each owner.
 */
#include <criterion/criterion.h>
#include <string.h>

#include "runs.h"
#include "steps.h"

/* Tries every choice of the copies that are left. */
static void check_copies(const struct run *run, const enum place *places)
{
        struct recovery with_all, r;
        uint32_t odd;

        cr_assert_eq(recover_places(run, places, &with_all, &odd), 0);
        for (uint32_t left = 0; left < 1u << run->n; left++) {
                enum place some[HOLDERS_MAX];

                if (!leave(run, places, left, some))
                        continue;
                check_truth(run, some);
                recover_places(run, some, &r, &odd);
                /* A decision stays; a later, undecided attempt may be decided now. */
                cr_assert_geq(r.decided_attempt, with_all.decided_attempt);
                if (r.decided_attempt == with_all.decided_attempt)
                        cr_assert(same_recovery(&r, &with_all));
        }
}

Test(copies, of_two_owners_one_copy_each_is_enough)
{
        for (uint32_t i = 0; i < 4; i++) {
                const struct run run = run_of(2, true, i % 2, i / 2);

                cr_assert_gt(each_place(&run, true, check_copies), 100);
        }
}

Test(copies, of_three_owners_one_copy_each_is_enough)
{
        struct rng rng = { 3 };
        uint32_t count = 0;

        while (count < 500) {
                const struct run run = run_of(3, true, rng_below(&rng, 2), rng_below(&rng, 2));
                enum place places[HOLDERS_MAX];

                /* makes equal places more frequent than chance would */
                for (uint32_t h = 0; h < run.n; h++)
                        places[h] = h && rng_below(&rng, 3) ? places[h - 1]
                                                            : 1 + rng_below(&rng, PLACES - 1);
                if (!can_be(places, run.n))
                        continue;
                check_copies(&run, places);
                count++;
        }
}

Test(copies, each_owner_must_have_one)
{
        const struct run run = run_of(3, true, true, true);
        const struct standing s = standing_of(&run, 0, CARRIED_OUT);
        const struct standing *standings[HOLDERS_MAX];

        for (uint32_t left = 0; left < 1u << run.n; left++) {
                uint32_t lost = 0;

                for (uint32_t h = 0; h < run.n; h++)
                        standings[h] = left >> h & 1 ? &s : NULL;
                while (lost < 3 && (left | left >> 3) >> lost & 1)
                        lost++;
                cr_assert_eq(recover_lost(standings, &run.placement),
                             lost < 3 ? (int32_t)lost : NO_OWNER);
        }
}

/* Two owners and their mirrors that have all voted; one's vote is changed. */
struct liar {
        struct run run;
        struct standing s[4];
        const struct standing *standings[4];
};

static void liar_of(struct liar *l, uint32_t holder, double squared, bool finite)
{
        l->run = run_of(2, true, true, true);
        for (uint32_t h = 0; h < 4; h++) {
                l->s[h] = standing_of(&l->run, h, VOTED);
                l->standings[h] = &l->s[h];
        }
        if (squared > 0)
                exact_sum_add(&l->s[holder].vote.norm, squared);
        l->s[holder].vote.finite = finite;
}

Test(copies, that_have_voted_otherwise_are_refused_and_the_mirror_is_named)
{
        for (uint32_t h = 0; h < 4; h++)
                for (int finite = 0; finite < 2; finite++) {
                        struct recovery r = { .version = 99 };
                        struct fault fault = { 0 };
                        struct liar l;
                        uint32_t odd = 99;

                        liar_of(&l, h, finite ? 1e-300 : 0, finite);
                        cr_assert_eq(recover(l.standings, &l.run.placement, &r, &odd, &fault),
                                     ZERO_ECONFLICT);
                        cr_assert_eq(odd, 2 + h % 2);
                        cr_assert(strstr(fault.text, "damaged"), "%s", fault.text);
                        cr_assert_eq(r.version, 99);
                }
}

Test(copies, that_have_voted_otherwise_do_not_matter_in_a_void_attempt)
{
        struct recovery r;
        struct liar l;
        uint32_t odd;

        liar_of(&l, 2, 1, true);
        l.s[1] = standing_of(&l.run, 1, NOT_VOTED);
        cr_assert_eq(recover(l.standings, &l.run.placement, &r, &odd, NULL), 0);
        cr_assert_eq(r.version, VERSION);
}

Test(copies, when_one_of_two_that_differ_is_given_up_the_other_counts)
{
        for (uint32_t gone = 0; gone < 4; gone += 2) {
                struct votes all = { .finite = true };
                struct recovery r;
                struct liar l;
                uint32_t odd;

                liar_of(&l, 0, 1, true);
                l.standings[gone] = NULL;
                exact_sum_init(&all.norm);
                exact_sum_merge(&all.norm, &l.s[2 - gone].vote.norm);
                exact_sum_merge(&all.norm, &l.s[1].vote.norm);
                cr_assert_eq(recover(l.standings, &l.run.placement, &r, &odd, NULL), 0);
                cr_assert_eq(r.decided_attempt, ATTEMPT);
                cr_assert_eq(r.decision.grad_norm, votes_norm(&all));
        }
}

Test(copies, the_same_sum_in_other_bins_is_the_same_vote)
{
        struct recovery r;
        struct liar l;
        uint32_t odd;

        liar_of(&l, 2, 0, true);
        l.s[2].vote.norm.bin[20] -= 3;
        l.s[2].vote.norm.bin[19] += (int64_t)3 << 32;
        cr_assert_eq(recover(l.standings, &l.run.placement, &r, &odd, NULL), 0);
        cr_assert_eq(r.decided_attempt, ATTEMPT);
}

static void check_refused_of_some(const struct run *run, const enum place *places)
{
        enum place some[HOLDERS_MAX];

        for (uint32_t left = 0; left < 1u << run->n; left++)
                if (leave(run, places, left, some) && !can_be(some, run->n))
                        check_refused(run, some);
}

Test(copies, one_that_had_not_voted_for_what_others_decided_is_named)
{
        const struct run run = run_of(2, true, true, true);

        cr_assert_gt(each_place(&run, false, check_refused_of_some), 100);
}
