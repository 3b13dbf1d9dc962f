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
#include "daemon/reduce/accumulator.h"
#include "daemon/reduce/node_gradient.h"

#include <stdlib.h>

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

/* ---- the norm ---------------------------------------------------------------------- */

/* Takes the norm of all on an offload thread. */
struct deferred_task {
        struct offload_task task;
        struct replica *replica;
        uint64_t generation;
        struct group_norm norm;
        uint32_t n;
        struct offer *offers[];
};

static void deferred_run(struct offload_task *task, uint32_t worker)
{
        struct deferred_task *t = CONTAINER_OF(task, struct deferred_task, task);

        deferred_norm(t->replica, t->offers, t->n, &t->norm);
}

/* The attempt is over, or the group's pushed memory is wanted back: nobody may take the offer while
 * its norm was being taken. */
static void deferred_go_on(struct replica *h, struct offer *o, bool over)
{
        struct accumulator_group *lg = &h->accumulator->groups[o->group];
        uint32_t group = o->group;

        lg->busy = false;
        lg->measured = !over;
        if (over) {
                accumulator_forget_present(h, group);
                deferred_release(deferred_take(h, group));
                accumulator_advance(h, group);
        } else if (h->accumulator->left) {
                offer_settle(deferred_take(h, group));
        }
}

/* The sum of squares is one number for all groups: the first one keeps it. */
static void deferred_done(struct offload_task *task)
{
        struct deferred_task *t = CONTAINER_OF(task, struct deferred_task, task);
        struct replica *h = t->replica;
        struct job *job = h->job;
        bool over = t->generation != h->accumulator->generation;

        if (!over)
                h->accumulator->groups[t->offers[0]->group].norm = t->norm;
        for (uint32_t i = 0; i < t->n; i++)
                deferred_go_on(h, t->offers[i], over);
        free(t);
        if (!over) {
                accumulator_vote(h);
                shard_settled(job);
        }
        job_unref(job);
}

static bool is_unmeasured(const struct accumulator_group *lg)
{
        return lg->deferred && !lg->measured && !lg->busy;
}

/* 0 as long as a sum is not complete. */
static uint32_t unmeasured(const struct replica *h)
{
        uint32_t n = 0;

        for (uint32_t g = 0; g < h->job->layout->n_groups; g++) {
                const struct accumulator_group *lg = &h->accumulator->groups[g];

                if (accumulator_has(h, g) && !lg->complete)
                        return 0;
                n += is_unmeasured(lg);
        }
        return n;
}

void deferred_measure(struct replica *h)
{
        struct accumulator *l = h->accumulator;
        uint32_t n = unmeasured(h);
        struct deferred_task *t = n ? calloc(1, sizeof *t + n * sizeof t->offers[0]) : NULL;

        if (!t) /* out of memory: the step's deadline will say so */
                return;
        t->replica = h;
        job_ref(h->job);
        t->generation = l->generation;
        for (uint32_t g = 0; g < h->job->layout->n_groups; g++) {
                if (!is_unmeasured(&l->groups[g]))
                        continue;
                l->groups[g].busy = true;
                group_norm_init(&l->groups[g].norm, h->job, g);
                t->offers[t->n++] = l->groups[g].deferred;
        }
        group_norm_init(&t->norm, h->job, t->offers[0]->group);
        t->task.run = deferred_run;
        t->task.done = deferred_done;
        job_compute(h->job, OFFLOAD_STEP, &t->task);
}
