/* Recovery of a job's last decision.  Pure. */
#include "daemon/job/recover.h"

#include <string.h>

static bool same_bits(double a, double b)
{
        return memcmp(&a, &b, sizeof a) == 0;
}

/* Of one attempt: what an update is carried out with, and what the next decision follows from. */
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
                                 "its state knows a decision (attempt %llu) that the others do not",
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

/* The owner that knows the most. */
static const struct standing *newest(const struct standing *const *standings, uint32_t n)
{
        const struct standing *best = standings[0];

        for (uint32_t i = 1; i < n; i++)
                if (standings[i]->decided_attempt > best->decided_attempt)
                        best = standings[i];
        return best;
}

/* Whether all owners have voted in the same attempt, of which nobody knows a decision. */
static bool all_voted(const struct standing *const *standings, uint32_t n)
{
        for (uint32_t i = 0; i < n; i++)
                if (standings[i]->prepared_attempt == 0 ||
                    standings[i]->prepared_attempt != standings[0]->prepared_attempt ||
                    standings[i]->decided_attempt != standings[0]->decided_attempt)
                        return false;
        return true;
}

/* All have voted for the same step. */
static int params_check(const struct standing *const *standings, uint32_t n, uint32_t *ret_odd,
                        struct fault *fault)
{
        char text[240];

        for (uint32_t i = 1; i < n; i++) {
                if (step_params_equal(&standings[0]->params, &standings[i]->params, text,
                                      sizeof text))
                        continue;
                *ret_odd = i;
                return fault_set(fault, ZERO_ECONFLICT,
                                 "its vote is for another step than the others': %s", text);
        }
        return 0;
}

static void decide_again(const struct standing *const *standings, uint32_t n, struct recovery *r)
{
        const struct standing *first = standings[0];
        struct votes votes = { .finite = true };

        exact_sum_init(&votes.norm);
        for (uint32_t i = 0; i < n; i++) {
                exact_sum_merge(&votes.norm, &standings[i]->vote.norm);
                votes.finite = votes.finite && standings[i]->vote.finite;
        }
        r->decision = decide(&votes, &first->params, first->decision.good_steps);
        r->decided_attempt = first->prepared_attempt;
        r->version += r->decision.commit;
        r->skipped += r->decision.overflow;
}

int recover(const struct standing *const *standings, uint32_t n, struct recovery *ret,
            uint32_t *ret_odd, struct fault *fault)
{
        const struct standing *best = newest(standings, n);
        struct recovery r = { .version = best->version,
                              .decided_attempt = best->decided_attempt,
                              .decision = best->decision,
                              .skipped = best->skipped };

        for (uint32_t i = 0; i < n; i++) {
                bool behind;
                int status = recover_one(standings[i], &r, &behind, fault);

                if (status) {
                        *ret_odd = i;
                        return status;
                }
        }
        if (all_voted(standings, n)) {
                int status = params_check(standings, n, ret_odd, fault);

                if (status)
                        return status;
                decide_again(standings, n, &r);
        }
        *ret = r;
        return 0;
}
