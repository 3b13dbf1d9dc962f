/*
 * This node's side of a gradient.
 *
 * What ranks push (contributions.c) is summed in fp32 in rank order and rounded once to the wire
 * dtype.  The result is a node gradient (node_gradient.c), which is offered to every owner of the
 * group (offering.c) and lives until each has taken its range.  A single contribution that has the
 * wire dtype is its own node gradient, in place, unless it lies away from the host, where no owner
 * of this node has its states.  Where all ranks and owners are on this node, and states and
 * contributions in one place, the owners add the contributions up themselves (accumulator.c), with
 * the same rounding; some leave it to the update (vote.c).  Where no rank has anything, the offer
 * is empty.
 *
 * Invariants: node gradients of a group are offered in the order of micro-batches; the last one is
 * marked.
 */
#include "daemon/step/reduce/accumulator.h"
#include "daemon/step/reduce/node_gradient.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "daemon/floor/base/buffer.h"
#include "proto/cleanup.h"

int reduce_resize(struct job *job, uint32_t world_size)
{
        struct reduce *r = job->reduce;
        size_t n = (size_t)job->layout->n_groups * world_size;
        struct contributor *contributors = calloc(n, sizeof *contributors);
        uint32_t *waiting = calloc(world_size, sizeof *waiting);
        bool *spilled = calloc(world_size, sizeof *spilled);

        if (!contributors || !waiting || !spilled) {
                free(contributors);
                free(waiting);
                free(spilled);
                return -ENOMEM;
        }
        for (size_t i = 0; i < n; i++)
                list_init(&contributors[i].queue);
        free(r->contributors);
        free(r->waiting);
        free(r->spilled);
        r->contributors = contributors;
        r->waiting = waiting;
        r->spilled = spilled;
        return 0;
}

static int reduce_init(struct job *job)
{
        struct reduce *r = job->reduce;

        r->job = job;
        list_init(&r->node_gradients);
        pool_init(&r->pool, job);
        r->pool.what = "sums of gradients";
        r->pool.instead = "gradients are summed in host memory";
        r->pool.came = reduce_feed;
        r->ready = group_offer;
        r->groups = calloc(job->layout->n_groups, sizeof *r->groups);
        r->nodes = calloc(job->layout->n_groups, sizeof *r->nodes);
        return r->groups && r->nodes && reduce_resize(job, job->world_size) == 0 ? 0 : -ENOMEM;
}

static void reduce_free(struct job *job)
{
        struct reduce *r = job->reduce;

        if (!r)
                return;
        assert(list_empty(&r->node_gradients));
        pool_deinit(&r->pool);
        free(r->groups);
        free(r->nodes);
        free(r->contributors);
        free(r->waiting);
        free(r->spilled);
}

void reduce_placed(struct job *job)
{
        for (uint32_t g = 0; g < job->layout->n_groups; g++) {
                node_set *nodes = &job->reduce->nodes[g];

                *nodes = NODE_SET_NONE;
                for (uint32_t r = 0; r < job->world_size; r++)
                        if (job->node_of_rank[r] < job->x->cluster->n_nodes &&
                            layout_group_has_rank(&job->layout->groups[g], r))
                                node_set_add(nodes, job->node_of_rank[r]);
        }
}

uint64_t reduce_elements_sent(const struct reduce *r)
{
        return r->elements_sent;
}

uint64_t reduce_deferred(const struct reduce *r)
{
        return r->deferred;
}

void reduce_reclaim(struct job *job, uint32_t group)
{
        job->reduce->groups[group].several = true;
        for_replicas (job, h)
                accumulator_advance(h, group);
}

/* A decision means that every contribution was taken, even if this node has not heard of that. */
void reduce_reset(struct job *job, bool decided)
{
        struct reduce *r = job->reduce;
        size_t n = (size_t)job->layout->n_groups * job->world_size;

        for (size_t i = 0; i < n; i++) {
                struct contributor *c = &r->contributors[i];

                while (!list_empty(&c->queue)) {
                        struct contribution *x =
                                CONTAINER_OF(c->queue.next, struct contribution, link);

                        contribution_take(x);
                        contribution_abort(x, job);
                }
                c->pushed = 0;
                c->finished = false;
        }
        for (uint32_t g = 0; g < job->layout->n_groups; g++)
                r->groups[g] = (struct reduce_group){
                        .several =
                                r->groups[g].micro_batch > 1 || (!decided && r->groups[g].several),
                };
        list_for_each (&r->node_gradients, item) {
                struct node_gradient *p = CONTAINER_OF(item, struct node_gradient, link);

                if (p->void_)
                        continue;
                p->void_ = true;
                p->aborted = !decided;
                if (p->aborted)
                        node_gradient_withdraw(p);
                if (!p->summing && p->readers == 0)
                        node_gradient_free(p);
        }
}

/* ---- what the node goes through ---- */

void reduce_vacate(struct job *job)
{
        buffers_vacate();
        pool_vacate(&job->reduce->pool);
        for_replicas (job, h)
                pool_vacate(&h->accumulator->pool);
}

static void reduce_job_dropped(struct job *job, int status, const char *text)
{
        for_replicas (job, h)
                accumulator_reset(h);
        reduce_reset(job, false);
}

/* Goes on where memory was lacking. */
static void reduce_again(struct job *job)
{
        job->reduce->lacking = false;
        job_ref(job);
        reduce_feed(job);
        for (uint32_t g = 0; g < job->layout->n_groups; g++) {
                reduce_advance(job, g);
                group_offer(job, g);
        }
        spill_check(job);
        for_replicas (job, h) {
                for (uint32_t g = 0; g < job->layout->n_groups; g++)
                        accumulator_advance(h, g);
                accumulator_vote(h);
        }
        job_unref(job);
}

static void reduce_tick(struct engine *x)
{
        list_for_each (&x->jobs, item) {
                struct job *job = CONTAINER_OF(item, struct job, link);

                pool_tick(&job->reduce->pool);
                for_replicas (job, h) {
                        pool_tick(&h->accumulator->pool);
                        accumulator_tick(h);
                }
                if (job->reduce->lacking)
                        reduce_again(job);
        }
}

static void reduce_progress(struct engine *x)
{
        buffers_rest(1);
}

const struct module reduce_module = { .job_at = offsetof(struct job, reduce),
                                      .job_bytes = sizeof(struct reduce),
                                      .job_init = reduce_init,
                                      .tick = reduce_tick,
                                      .progress = reduce_progress,
                                      .node_down = accumulators_node_down,
                                      .job_dropped = reduce_job_dropped,
                                      .job_free = reduce_free };
