/*
 * Sums that nobody writes.
 *
 * If all contributions to a group lie where the states do, away from the host, and may stay there,
 * the owner takes only the norm of the sum, and the update adds the contributions up.  That saves
 * writing and reading the sum, and costs a second reading of the contributions.
 *
 * A push of such a group begins no work.  An offer that need not be the last waits until the ranks
 * end the step, or until one of them needs its slot for another micro-batch (node_gradient.h); then
 * it is added as usual.  The norm of all deferred sums is taken at once, when the coordinator asks
 * for the vote.
 *
 * Invariants: a deferred sum keeps the pushed memory until the group's update has ended, or until
 * there will be no update.  Whoever gives the memory back earlier writes the sum first (settles
 * it).  That happens where nobody knows the outcome of this owner's vote, so that a state with a
 * recorded vote or decision has what it needs wherever it is opened; and where a rank leaves before
 * the vote, so that its successor finds its memory free.  No vote counts a group while it is being
 * settled.  States away from the host end with their process.
 */
#include "daemon/step/reduce/accumulator.h"
#include "daemon/step/reduce/node_gradient.h"

#include "proto/cleanup.h"

static bool group_is_empty(const struct replica *h, uint32_t group)
{
        const struct layout_group *g = &h->job->layout->groups[group];

        for (uint32_t t = 0; t < g->n_tensors; t++)
                if (h->accumulator->present[g->first_tensor + t])
                        return false;
        return true;
}

/* Whether the sum need not be written if nothing follows.  A mirror would need the sum, and so
 * would an update ahead of the decision. */
static bool offer_may_stay(const struct offer *o)
{
        const struct replica *h = o->replica;

        return !h->accumulator->left && !h->job->layout->groups[o->group].eager &&
               o->node_gradient && !state_in_file(h->state) && h->job->placement.copies == 1 &&
               node_gradient_may_stay(o->node_gradient, h->state->id.place) &&
               group_is_empty(h, o->group) && offer_is_alone(o);
}

bool offer_defers(const struct offer *o)
{
        return o->last && offer_may_stay(o);
}

bool offer_waits(const struct offer *o)
{
        if (o->last || !offer_may_stay(o) || !node_gradient_may_wait(o->node_gradient))
                return false;
        node_gradient_keep(o->node_gradient);
        return true;
}

void deferred_keep(struct offer *o)
{
        struct accumulator_group *lg = &o->replica->accumulator->groups[o->group];

        offer_mark_present(o);
        node_gradient_keep(o->node_gradient);
        o->replica->job->reduce->deferred++;
        lg->finished[o->node] = true;
        lg->cursor++;
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
        /* reduce_reset() frees the node gradient, with all others of the attempt */
        node_gradient_read_end(o->node_gradient, o->replica->owner, 0);
        offer_free(o);
}

const struct node_gradient *deferred_node_gradient(const struct offer *o)
{
        return o->node_gradient;
}

bool reduce_could_defer(const struct job *job, uint32_t place)
{
        bool owns = false;

        for_replicas (job, h) {
                if (!h->state || state_in_file(h->state) || h->state->id.place != place)
                        return false;
                owns = true;
        }
        return owns && job->world_size == 1 && job->placement.copies == 1;
}
