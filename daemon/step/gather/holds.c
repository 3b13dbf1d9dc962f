/*
 * What a client holds: the groups that it has asked for and not yet released.
 *
 * Invariants: a client holds at most `limit` groups, those on their way included.  Each fetch of
 * a group with a slab that ends well has one lease.  The lease is returned once: with its hold, or
 * by holds_return() after it.
 */
#include "daemon/step/gather/entry.h"

#include <assert.h>

static void hold_answered(struct request *r, bool ok)
{
        struct holds *h = r->subject;

        h->of[r->group] = ok ? HOLD_HELD : HOLD_NONE;
        h->n -= !ok;
}

int holds_fetch(struct holds *h, uint32_t group, uint64_t version, struct request *r,
                struct fault *fault)
{
        if (h->unaware)
                holds_end(h, HOLD_PAST);
        if (h->of[group] != HOLD_NONE)
                return fault_set(fault, ZERO_EBUSY, "group '%s' is held already",
                                 h->job->layout->groups[group].name);
        if (h->n >= h->limit)
                return fault_set(fault, ZERO_EHELD,
                                 "%u groups are held, as many as hold_groups allows: release one "
                                 "first, or attach with more",
                                 h->n);
        h->of[group] = HOLD_ASKED;
        h->n++;
        r->subject = h;
        r->group = group;
        r->ended = hold_answered;
        gather_fetch(h->gather, group, version, r);
        return 0;
}

int holds_check(const struct holds *h, uint32_t group, struct fault *fault)
{
        if (h->of[group] == HOLD_HELD)
                return 0;
        return fault_set(fault, ZERO_ENOTHELD, "group '%s' is not held",
                         h->job->layout->groups[group].name);
}

void holds_release(struct holds *h, uint32_t group)
{
        assert(h->of[group] >= HOLD_HELD);
        h->of[group] = HOLD_NONE;
        h->n--;
}

void holds_end(struct holds *h, enum hold least)
{
        for (uint32_t g = 0; g < h->job->layout->n_groups; g++)
                if (h->of[g] >= least) {
                        holds_release(h, g);
                        holds_return(h, g);
                }
        h->unaware = false;
}

int holds_settled(const struct holds *h, struct fault *fault)
{
        for (uint32_t g = 0; g < h->job->layout->n_groups; g++)
                if (h->of[g] == HOLD_ASKED)
                        return fault_set(fault, ZERO_EORDER, "group '%s' is still being fetched",
                                         h->job->layout->groups[g].name);
        return 0;
}

void holds_abort(struct holds *h)
{
        h->unaware = true;
        for (uint32_t g = 0; g < h->job->layout->n_groups; g++)
                if (h->of[g] == HOLD_HELD)
                        h->of[g] = HOLD_PAST;
}
