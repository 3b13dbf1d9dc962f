/* Records that a run leaves when its nodes are lost. */
#include "runs.h"

#include <criterion/criterion.h>
#include <string.h>

#include "steps.h"

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

struct run run_of(uint32_t n, bool mirror, bool finite, bool decided)
{
        struct run run = { .placement = steps_placement(n, mirror), .finite = finite };

        run.n = placement_holders(&run.placement);
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

struct standing standing_of(const struct run *run, uint32_t holder, enum place place)
{
        uint32_t owner = holder_owner(&run->placement, holder);
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

int recover_places(const struct run *run, const enum place *places, struct recovery *ret,
                   uint32_t *ret_odd)
{
        struct standing s[HOLDERS_MAX];
        const struct standing *standings[HOLDERS_MAX];

        for (uint32_t h = 0; h < run->n; h++) {
                s[h] = standing_of(run, h, places[h]);
                standings[h] = places[h] == GONE ? NULL : &s[h];
        }
        return recover(standings, &run->placement, ret, ret_odd, NULL);
}

static bool all_at(const enum place *places, uint32_t n, enum place place)
{
        for (uint32_t h = 0; h < n; h++)
                if (places[h] != GONE && places[h] != place)
                        return false;
        return true;
}

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
                s.decision = decision_of(again, run->placement.n_owners,
                                         again != ATTEMPT || run->finite, s.decision.good_steps);
                s.decided_attempt = again;
                s.version += s.decision.commit;
                s.skipped += s.decision.overflow;
        }
        return (struct recovery){ s.version, s.decided_attempt, s.decision, s.skipped };
}

bool can_be(const enum place *places, uint32_t n)
{
        bool decided = false, not_voted = false;

        for (uint32_t o = 0; o < n; o++) {
                decided = decided || places[o] >= DECIDED;
                not_voted = not_voted || (places[o] != GONE && places[o] < VOTED);
        }
        return !(decided && not_voted);
}

uint32_t each_place(const struct run *run, bool possible, check_places *check)
{
        enum { N = PLACES - 1 };
        uint32_t count = 0, all = 1;

        for (uint32_t h = 0; h < run->n; h++)
                all *= N;
        for (uint32_t c = 0; c < all; c++) {
                enum place places[HOLDERS_MAX];
                uint32_t left = c;

                for (uint32_t h = 0; h < run->n; h++, left /= N)
                        places[h] = 1 + left % N;
                if (can_be(places, run->n) != possible)
                        continue;
                check(run, places);
                count++;
        }
        return count;
}

bool same_recovery(const struct recovery *a, const struct recovery *b)
{
        return a->version == b->version && a->decided_attempt == b->decided_attempt &&
               a->skipped == b->skipped &&
               (!a->decided_attempt || same_decision(&a->decision, &b->decision));
}

void check_truth(const struct run *run, const enum place *places)
{
        const struct recovery expected = truth(run, places);
        struct recovery r;
        uint32_t odd;

        cr_assert_eq(recover_places(run, places, &r, &odd), 0, "%d %d %d", places[0], places[1],
                     run->n > 2 ? (int)places[2] : -1);
        cr_assert(same_recovery(&r, &expected));
}

uint32_t each_combination(bool possible, check_places *check)
{
        uint32_t count = 0;

        for (uint32_t i = 0; i < 12; i++) {
                const struct run run = run_of(2 + (i % 3 == 1), i % 3 == 2, i / 3 % 2, i / 6);

                count += each_place(&run, possible, check);
        }
        return count;
}

bool leave(const struct run *run, const enum place *places, uint32_t left, enum place *ret)
{
        uint32_t owners = 0;

        for (uint32_t h = 0; h < run->n; h++) {
                ret[h] = left >> h & 1 ? places[h] : GONE;
                owners |= (left >> h & 1) << holder_owner(&run->placement, h);
        }
        return owners == (1u << run->placement.n_owners) - 1;
}

void check_refused(const struct run *run, const enum place *places)
{
        struct recovery r = { .version = 99 };
        uint32_t odd = 99;

        cr_assert_eq(recover_places(run, places, &r, &odd), ZERO_ECONFLICT);
        cr_assert_lt(odd, run->n);
        cr_assert(places[odd] == NOT_VOTED || places[odd] == VOTED_IN_VOID,
                  "the one that had not voted is named");
        cr_assert_eq(r.version, 99);
}
