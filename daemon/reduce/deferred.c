/*
 * Sums that are never written.
 *
 * Where all that is added to a group lies on the GPU of the states, and may stay there, its owner
 * takes the norm of the sum alone: the update adds the contributions up itself.  That saves the
 * accumulator's writing and reading for a second reading of the contributions.
 *
 * Invariants: what is deferred, and with it the memory that was pushed, is kept until the group's
 * update is through, or until there will be none.  Who lets go of it before writes the sum first
 * (settles it): where it is not known what becomes of this owner's vote, so that a state in which a
 * vote or a decision is recorded has what it needs wherever it is opened; and when a rank leaves
 * before the vote, so that a dead rank's memory is there for its successor.  A group that is being
 * settled is not voted for.  States that lie on a GPU end with their process.
 */
#include "daemon/device/gpu/gpu.h"
#include "daemon/reduce/accumulator.h"
#include "daemon/reduce/node_gradient.h"
#include "proto/cleanup.h"

static bool group_is_empty(const struct replica *h, uint32_t group)
{
        const struct layout_group *g = &h->job->layout->groups[group];

        for (uint32_t t = 0; t < g->n_tensors; t++)
                if (h->accumulator->present[g->first_tensor + t])
                        return false;
        return true;
}

/* A mirror would want the sum. */
bool offer_defers(const struct offer *o)
{
        const struct replica *h = o->replica;

        return o->final && o->node_gradient && state_on_gpu(h->state) &&
               h->job->place.copies == 1 &&
               node_gradient_may_stay(o->node_gradient, gpu_of(h->state->grad)) &&
               group_is_empty(h, o->group);
}

void deferred_keep(struct offer *o)
{
        struct accumulator_group *lg = &o->replica->accumulator->groups[o->group];

        node_gradient_keep(o->node_gradient);
        o->replica->job->reduce->deferred++;
        lg->deferred = o;
}

struct offer *deferred_take(struct replica *h, uint32_t group)
{
        return STEAL(h->accumulator->groups[group].deferred);
}

void deferred_release(struct offer *o)
{
        if (!o)
                return;
        /* it goes with all node gradients of its attempt */
        node_gradient_read_end(o->node_gradient, o->replica->owner, 0);
        offer_free(o);
}

const struct node_gradient *deferred_node_gradient(const struct offer *o)
{
        return o->node_gradient;
}
