/* Recovers a job's last decision.  Pure. */
#include "daemon/job/rules/recover.h"

#include <assert.h>
#include <string.h>

static bool same_bits(double a, double b)
{
        return memcmp(&a, &b, sizeof a) == 0;
}

/* Compares two decisions of one attempt in what an update needs and what the next decision depends
 * on. */
static bool same_decision(const struct standing *s, const struct recovery *now)
{
        const struct decision *a = &s->decision, *b = &now->decision;

        return a->commit == b->commit && same_bits(a->grad_norm, b->grad_norm) &&
               same_bits(a->grad_scale, b->grad_scale) && same_bits(a->loss_scale, b->loss_scale) &&
               a->good_steps == b->good_steps && s->skipped == now->skipped;
}

int recover_one(const struct standing *s, const struct recovery *now, bool *ret_behind,
                struct fault *fault)
{
        uint64_t version = s->version;
        bool behind = s->decided_attempt < now->decided_attempt;

        if (s->decided_attempt > now->decided_attempt)
                return fault_set(fault, ZERO_ECONFLICT,
                                 "its state knows a decision (attempt %llu) that the others do not "
                                 "know",
                                 (unsigned long long)s->decided_attempt);
        if (behind && s->prepared_attempt != now->decided_attempt)
                return fault_set(fault, ZERO_ECONFLICT,
                                 "its state (version %llu) is older than the last step of the "
                                 "others (version %llu)",
                                 (unsigned long long)version, (unsigned long long)now->version);
        version += behind && now->decision.commit;
        if (version != now->version)
                return fault_set(fault, ZERO_ECONFLICT, "its state is at version %llu, not %llu",
                                 (unsigned long long)version, (unsigned long long)now->version);
        if (!behind && now->decided_attempt && !same_decision(s, now))
                return fault_set(fault, ZERO_ECONFLICT,
                                 "its state knows another decision of attempt %llu than the "
                                 "others'",
                                 (unsigned long long)now->decided_attempt);
        *ret_behind = behind;
        return 0;
}

/* The standings that exist, and their holders. */
struct present {
        const struct standing *standings[HOLDER_MAX];
        uint32_t holders[HOLDER_MAX], n;
};

static struct present present_of(const struct standing *const *standings,
                                 const struct placement *placement)
{
        struct present p = { .n = 0 };

        for (uint32_t h = 0; h < placement_holders(placement); h++)
                if (standings[h]) {
                        p.standings[p.n] = standings[h];
                        p.holders[p.n++] = h;
                }
        return p;
}

/* The standing of the owner's own copy, or else of its mirror. */
static const struct standing *of_owner(const struct standing *const *standings,
                                       const struct placement *placement, uint32_t owner)
{
        for (uint32_t copy = 0; copy < placement->copies; copy++)
                if (standings[holder_of(placement, owner, copy)])
                        return standings[holder_of(placement, owner, copy)];
        return NULL;
}

int32_t recover_lost(const struct standing *const *standings, const struct placement *placement)
{
        for (uint32_t o = 0; o < placement->n_owners; o++)
                if (!of_owner(standings, placement, o))
                        return (int32_t)o;
        return NO_OWNER;
}

/* The standing with the latest decision. */
static const struct standing *newest(const struct present *p)
{
        const struct standing *best = p->standings[0];

        for (uint32_t i = 1; i < p->n; i++)
                if (p->standings[i]->decided_attempt > best->decided_attempt)
                        best = p->standings[i];
        return best;
}

/* True if all have voted in the same attempt and none knows a decision of it. */
static bool all_voted(const struct present *p)
{
        const struct standing *first = p->standings[0];

        for (uint32_t i = 0; i < p->n; i++)
                if (p->standings[i]->prepared_attempt == 0 ||
                    p->standings[i]->prepared_attempt != first->prepared_attempt ||
                    p->standings[i]->decided_attempt != first->decided_attempt)
                        return false;
        return true;
}

/* Checks that all have voted for the same step. */
static int params_check(const struct present *p, uint32_t *ret_odd, struct fault *fault)
{
        char text[240];

        for (uint32_t i = 1; i < p->n; i++) {
                if (step_params_equal(&p->standings[0]->params, &p->standings[i]->params, text,
                                      sizeof text))
                        continue;
                *ret_odd = p->holders[i];
                return fault_set(fault, ZERO_ECONFLICT,
                                 "its vote is for another step than the others': %s", text);
        }
        return 0;
}

static int twins_check(const struct standing *const *standings, const struct placement *placement,
                       uint32_t *ret_odd, struct fault *fault)
{
        for (uint32_t h = placement->n_owners; h < placement_holders(placement); h++) {
                const struct standing *own = standings[holder_owner(placement, h)];

                if (!standings[h] || !own || votes_equal(&standings[h]->vote, &own->vote))
                        continue;
                *ret_odd = h;
                return fault_set(fault, ZERO_ECONFLICT,
                                 "its vote differs from that of the owner that it mirrors: the "
                                 "memory of one of the two nodes is damaged");
        }
        return 0;
}

/* Each owner's vote counts once. */
static void decide_again(const struct standing *const *standings, const struct placement *placement,
                         struct recovery *r)
{
        const struct standing *first = of_owner(standings, placement, 0);
        struct votes votes = { .finite = true };

        exact_sum_init(&votes.norm);
        for (uint32_t o = 0; o < placement->n_owners; o++) {
                const struct standing *s = of_owner(standings, placement, o);

                exact_sum_merge(&votes.norm, &s->vote.norm);
                votes.finite = votes.finite && s->vote.finite;
        }
        r->decision = decide(&votes, &first->params, first->decision.good_steps);
        r->decided_attempt = first->prepared_attempt;
        r->version += r->decision.commit;
        r->skipped += r->decision.overflow;
}

int recover(const struct standing *const *standings, const struct placement *placement,
            struct recovery *ret, uint32_t *ret_odd, struct fault *fault)
{
        const struct present present = present_of(standings, placement);
        const struct standing *best = newest(&present);
        struct recovery r = { .version = best->version,
                              .decided_attempt = best->decided_attempt,
                              .decision = best->decision,
                              .skipped = best->skipped };

        assert(recover_lost(standings, placement) == NO_OWNER);
        for (uint32_t i = 0; i < present.n; i++) {
                bool behind;
                int status = recover_one(present.standings[i], &r, &behind, fault);

                if (status) {
                        *ret_odd = present.holders[i];
                        return status;
                }
        }
        if (all_voted(&present)) {
                int status = params_check(&present, ret_odd, fault);

                if (!status)
                        status = twins_check(standings, placement, ret_odd, fault);
                if (status)
                        return status;
                decide_again(standings, placement, &r);
        }
        *ret = r;
        return 0;
}
