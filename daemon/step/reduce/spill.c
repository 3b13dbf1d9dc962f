/*
 * Copies pushed gradients aside, so that ranks of a node that push in different orders do not wait
 * for each other's slots forever.
 *
 * Once every local rank either pushes no more, or has in each of its slots a gradient that waits
 * for other ranks, none of them can go on.  Then one of these gradients is copied and its slot
 * given back: at most one per rank at a time.  Orders that differ by more end at the step's
 * deadline, which names them.
 *
 * A contribution is not freed while it is being copied.  If a node gradient takes it meanwhile, the
 * copy is dropped.
 */
#include "daemon/step/reduce/node_gradient.h"

#include <assert.h>
#include <stdlib.h>

#include "daemon/step/reduce/buffer.h"
#include "proto/cleanup.h"

static void spill_copy(struct offload_task *task, uint32_t worker)
{
        struct contribution *c = CONTAINER_OF(task, struct contribution, task);

        c->job->x->ops->copy(c->copy, c->data, c->copy_bytes);
}

static void spill_copied(struct offload_task *task)
{
        struct contribution *c = CONTAINER_OF(task, struct contribution, task);
        struct job *job = c->job;

        c->copying = false;
        if (c->freed) {
                contribution_free(c, ZERO_OK, "");
        } else if (c->queued) {
                if (c->counted)
                        job->reduce->waiting[c->rank]--;
                c->counted = false;
                c->data = c->copy;
                push_window_unref(STEAL(c->window));
                contribution_answer(c, ZERO_OK, "");
        } else {
                spill_end(c);
        }
        job_unref(job);
}

static bool slots_full(const struct job *job, uint32_t rank)
{
        const struct slots *slots = job->ranks[rank].window->slots;

        return !slots->whole && job->reduce->waiting[rank] == slots->n;
}

/* Whether no local rank can push, or will. */
static bool spill_needed(const struct job *job)
{
        for (uint32_t rank = 0; rank < job->world_size; rank++) {
                if (job->node_of_rank[rank] != job->x->cluster->self)
                        continue;
                if (!job->ranks[rank].closed &&
                    (!job->ranks[rank].window || !slots_full(job, rank)))
                        return false;
        }
        return true;
}

static struct contribution *spill_choose(const struct job *job, uint32_t rank)
{
        for (uint32_t g = 0; g < job->layout->n_groups; g++)
                list_for_each (&contributor_of(job->reduce, g, rank)->queue, item) {
                        struct contribution *c = CONTAINER_OF(item, struct contribution, link);

                        if (c->counted)
                                return c;
                }
        return NULL;
}

static void spill_start(struct contribution *c)
{
        struct job *job = c->job;

        c->copy_bytes =
                job->layout->groups[c->group].elements * dtype_size(job->reduce->grad_dtype);
        c->copy = buffer_new(c->copy_bytes);
        if (!c->copy) {
                job->reduce->lacking = true;
                return;
        }
        job->reduce->spilled[c->rank] = true;
        c->copying = true;
        c->task.run = spill_copy;
        c->task.done = spill_copied;
        job_ref(job);
        job_compute(job, OFFLOAD_STEP, &c->task);
}

void spill_check(struct job *job)
{
        if (!spill_needed(job))
                return;
        for (uint32_t rank = 0; rank < job->world_size; rank++) {
                struct contribution *c;

                if (job->node_of_rank[rank] != job->x->cluster->self || job->ranks[rank].closed ||
                    job->reduce->spilled[rank])
                        continue;
                c = spill_choose(job, rank);
                if (c)
                        spill_start(c);
                return;
        }
}
