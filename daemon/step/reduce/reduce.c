/*
 * This node's side of a gradient.
 *
 * Contributions are keyed by (attempt, group, micro-batch, rank).  When every local rank of a group
 * has pushed a micro-batch, or will not push it, the contributions are summed in fp32 in rank order
 * and rounded once to the wire dtype.  The result is a node gradient, which is offered to every
 * owner of the group and lives until each has taken its range.  A single contribution that has the
 * wire dtype is its own node gradient, in place, unless it lies away from the host, where no owner
 * of this node has its states.  Where all ranks and owners are on this node, and states and
 * contributions in one place, the owners add the contributions up themselves (adding.c), with the
 * same rounding; some leave it to the update (deferred.c).  A contribution without data only says
 * that its rank has nothing; where no rank has anything, the offer is empty.
 *
 * Invariants: a contribution is acknowledged exactly once, when its memory is free again; node
 * gradients of a group are offered in the order of micro-batches; the last one is marked.
 */
#include "daemon/job/core/progress.h"
#include "daemon/step/reduce/accumulator.h"
#include "daemon/step/reduce/node_gradient.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/step/reduce/buffer.h"
#include "proto/cleanup.h"

static void reduce_advance(struct job *job, uint32_t group);

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
        return r->groups && reduce_resize(job, job->world_size) == 0 ? 0 : -ENOMEM;
}

static void reduce_free(struct job *job)
{
        struct reduce *r = job->reduce;

        if (!r)
                return;
        assert(list_empty(&r->node_gradients));
        pool_deinit(&r->pool);
        free(r->groups);
        free(r->contributors);
        free(r->waiting);
        free(r->spilled);
}

uint64_t reduce_elements_sent(const struct reduce *r)
{
        return r->elements_sent;
}

uint64_t reduce_deferred(const struct reduce *r)
{
        return r->deferred;
}

/* ---- contributions ------------------------------------------------------- */

/* The session that pushed is gone or has missed its deadline: nobody to acknowledge to. */
static void push_forget(struct request *r)
{
        struct contribution *c = r->subject;

        if (c)
                c->request = NULL;
}

static int push_describe(const struct request *r, struct wait_line *ret)
{
        const struct contribution *c = r->subject;
        int status = job_describe(c->job, ret);

        snprintf(ret->what, sizeof ret->what, "gradient of group '%.80s', micro-batch %u",
                 c->job->layout->groups[r->group].name, c->micro_batch);
        return status;
}

bool reduce_push_waits(const struct job *job)
{
        uint64_t now = engine_now(job->x);

        list_for_each (&job->x->requests.all, item) {
                const struct request *r = CONTAINER_OF(item, struct request, deadline);

                /* a push without a deadline waits for its own rank */
                if (r->describe == push_describe && now - r->since_ms >= PUSH_WAITS_MS &&
                    r->deadline_ms != UINT64_MAX &&
                    ((const struct contribution *)r->subject)->job == job)
                        return true;
        }
        return false;
}

static int push_check(const struct pusher *from, const Zero__Push *push, struct fault *fault)
{
        struct job *job = from->job;
        const struct layout_group *g;
        const struct contributor *c;
        const struct slots *slots = from->window->slots;

        if (push->group >= job->layout->n_groups)
                return fault_set(fault, ZERO_ENOGROUP, "there is no group %u", push->group);
        g = &job->layout->groups[push->group];
        if (push->attempt != job->attempt)
                return fault_set(fault, ZERO_EABORTED, "attempt %llu is over, replay the step",
                                 (unsigned long long)push->attempt);
        if (!layout_group_trainable(job->layout, push->group))
                return fault_set(fault, ZERO_EINVAL, "group '%s' is frozen: it takes no gradient",
                                 g->name);
        if (!layout_group_has_rank(g, from->rank))
                return fault_set(fault, ZERO_ERANK, "rank %u is not in the rank set of group '%s'",
                                 from->rank, g->name);
        c = contributor_of(job->reduce, push->group, from->rank);
        if (push->micro_batch < c->pushed)
                return 0;
        if (job->ranks[from->rank].closed || c->finished)
                return fault_set(fault, ZERO_EORDER,
                                 "group '%s': the last gradient of this step is pushed already",
                                 g->name);
        if (push->micro_batch != c->pushed)
                return fault_set(fault, ZERO_EORDER,
                                 "group '%s': micro-batch %u was pushed, but %u is next", g->name,
                                 push->micro_batch, c->pushed);
        if (push->micro_batch + 1 >=
            MICRO_BATCHES_MAX) /* the empty offer that ends a group has the last number */
                return fault_set(fault, ZERO_ERANGE,
                                 "group '%s': a step has at most %d micro-batches", g->name,
                                 MICRO_BATCHES_MAX - 1);
        if (!push->empty && (slots->whole ? push->slot != push->group : push->slot >= slots->n))
                return fault_set(fault, ZERO_ERANGE,
                                 "group '%s': the session has no slot %u for the group", g->name,
                                 push->slot);
        if (push->present.len && push->present.len != g->n_tensors)
                return fault_set(fault, ZERO_EINVAL,
                                 "group '%s': the mask of present tensors has %zu bytes, but the "
                                 "group has %u tensors",
                                 g->name, push->present.len, g->n_tensors);
        return 0;
}

static bool contribution_is_in(const struct contribution *c, const struct pusher *from,
                               uint32_t slot)
{
        return c && c->window == from->window && c->slot == slot;
}

/*
 * Compares slots, not addresses: empty groups share addresses with others.  Readers of an aborted
 * attempt do not count: what they read may change.
 */
static bool slot_busy(const struct pusher *from, uint32_t slot)
{
        struct job *job = from->job;

        for (uint32_t g = 0; g < job->layout->n_groups; g++)
                list_for_each (&contributor_of(job->reduce, g, from->rank)->queue, item) {
                        if (contribution_is_in(CONTAINER_OF(item, struct contribution, link), from,
                                               slot))
                                return true;
                }
        list_for_each (&job->reduce->node_gradients, item) {
                struct node_gradient *p = CONTAINER_OF(item, struct node_gradient, link);

                for (uint32_t i = 0; !p->aborted && i < p->n_sources; i++)
                        if (contribution_is_in(p->sources[i], from, slot))
                                return true;
        }
        return false;
}

static struct contribution *contribution_new(const struct pusher *from, const Zero__Push *push)
{
        struct contribution *c = calloc(1, sizeof *c);

        if (c && !push->empty && push->present.len) {
                c->present = malloc(push->present.len);
                if (!c->present) {
                        free(c);
                        return NULL;
                }
                memcpy(c->present, push->present.data, push->present.len);
        }
        if (!c)
                return NULL;
        c->job = from->job;
        c->group = push->group;
        c->rank = from->rank;
        c->micro_batch = push->micro_batch;
        if (push->empty)
                return c;
        c->window = from->window;
        c->window->references++;
        c->slot = push->slot;
        c->data = push_window_slot(c->window, push->slot);
        return c;
}

static void contribution_queue(struct contribution *c, struct contributor *to)
{
        list_insert(&to->queue, &c->link);
        c->queued = true;
        c->counted = c->window != NULL;
        c->job->reduce->waiting[c->rank] += c->counted;
}

/* A contribution without data keeps no memory, so it is acknowledged at once. */
static void contribution_wait(struct contribution *c, struct request *r, uint32_t group)
{
        if (!c->data) {
                request_end(r, ZERO_OK, NULL);
                return;
        }
        c->request = r;
        r->subject = c;
        r->group = group;
        r->describe = push_describe;
        r->forget = push_forget;
}

/* The last contribution in the queue if it has no data.  Such a contribution counts those that
 * follow, so missing gradients take no memory. */
static struct contribution *contribution_empty(const struct contributor *from)
{
        struct contribution *c = CONTAINER_OF(from->queue.prev, struct contribution, link);

        return list_empty(&from->queue) || c->data ? NULL : c;
}

int reduce_push(const struct pusher *from, const Zero__Push *push, struct request *r,
                struct fault *fault)
{
        struct job *job = from->job;
        struct contributor *contributor;
        struct contribution *c;
        int status = push_check(from, push, fault);

        if (status)
                return status;
        if (push->micro_batch < reduce_pushed(job, push->group, from->rank)) {
                request_end(r, ZERO_OK, NULL); /* an earlier session has pushed this */
                return 0;
        }
        if (!push->empty && slot_busy(from, push->slot))
                return fault_set(fault, ZERO_EBUSY,
                                 "slot %u still holds a gradient that is being read", push->slot);
        contributor = contributor_of(job->reduce, push->group, from->rank);
        c = push->empty ? contribution_empty(contributor) : NULL;
        if (c) {
                c->more++;
                request_end(r, ZERO_OK, NULL);
        } else {
                c = contribution_new(from, push);
                if (!c)
                        return fault_set(fault, ZERO_ENOMEM, "out of memory");
                contribution_queue(c, contributor);
                contribution_wait(c, r, push->group);
        }
        contributor->pushed++;
        contributor->finished = push->last;
        reduce_advance(job, push->group);
        spill_check(job);
        return 0;
}

void reduce_reclaim(struct job *job, uint32_t group)
{
        job->reduce->groups[group].several = true;
        for_replicas (job, h)
                accumulator_advance(h, group);
}

void reduce_close(struct job *job, uint32_t rank)
{
        for (uint32_t g = 0; g < job->layout->n_groups; g++) {
                if (!is_local(job, g, rank))
                        continue;
                contributor_of(job->reduce, g, rank)->finished = true;
                reduce_advance(job, g);
        }
        spill_check(job);
}

/* ---- reducing ------------------------------------------------------------------ */

/* Reduces every micro-batch of the group that all local ranks have pushed or left out. */
static void reduce_advance(struct job *job, uint32_t group)
{
        struct reduce *r = job->reduce;
        struct reduce_group *g = &r->groups[group];

        while (!g->ended) {
                uint32_t queued = 0, local = 0;
                struct node_gradient *p;

                for (uint32_t rank = 0; rank < job->world_size; rank++) {
                        struct contributor *c = contributor_of(r, group, rank);

                        if (!is_local(job, group, rank))
                                continue;
                        local++;
                        if (list_empty(&c->queue) && !c->finished)
                                return;
                        queued += !list_empty(&c->queue);
                }
                if (local == 0)
                        return;
                if (queued == 0) {
                        g->ended = true;
                        g->ends_empty = layout_group_trainable(job->layout, group);
                        group_offer(job, group);
                        return;
                }
                p = node_gradient_new(job, group, queued);
                if (!p) {
                        r->lacking = true;
                        return;
                }
                g->micro_batch++;
                g->ended = p->last;
                node_gradient_start(p);
        }
}

void reduce_fail(struct job *job, int status, const char *text)
{
        struct reduce *r = job->reduce;
        size_t n = (size_t)job->layout->n_groups * job->world_size;

        for (size_t i = 0; i < n; i++)
                list_for_each (&r->contributors[i].queue, item) {
                        contribution_answer(CONTAINER_OF(item, struct contribution, link), status,
                                            text);
                }
        list_for_each (&r->node_gradients, item) {
                struct node_gradient *p = CONTAINER_OF(item, struct node_gradient, link);

                for (uint32_t i = 0; i < p->n_sources && !p->void_; i++)
                        if (p->sources[i])
                                contribution_answer(p->sources[i], status, text);
        }
}

uint32_t reduce_pushed(const struct job *job, uint32_t group, uint32_t rank)
{
        return contributor_of(job->reduce, group, rank)->pushed;
}

bool reduce_any(const struct job *job)
{
        for (uint32_t r = 0; r < job->world_size; r++)
                for (uint32_t g = 0; g < job->layout->n_groups; g++)
                        if (reduce_pushed(job, g, r))
                                return true;
        return false;
}

enum zero_dtype reduce_grad_dtype(const struct job *job)
{
        return job->reduce->grad_dtype;
}

/* The new session does not have the slots of the one before. */
void reduce_rejoin(struct job *job, uint32_t rank, enum zero_dtype grad_dtype)
{
        struct reduce *r = job->reduce;

        r->grad_dtype = grad_dtype;
        for (uint32_t g = 0; g < job->layout->n_groups; g++)
                list_for_each (&contributor_of(r, g, rank)->queue, item) {
                        CONTAINER_OF(item, struct contribution, link)->counted = false;
                }
        r->waiting[rank] = 0;
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

/* ---- what the node goes through ---------------------------------------------------- */

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

                for_replicas (job, h)
                        pool_tick(&h->accumulator->pool);
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
