/*
 * What this node's ranks push.
 *
 * Contributions are keyed by (attempt, group, micro-batch, rank).  When every local rank of a group
 * has pushed a micro-batch, or will not push it, the contributions become a node gradient
 * (node_gradient.c).  A contribution without data only says that its rank has nothing.
 *
 * Ranks of a node that push in different orders do not wait for each other's slots forever.  Once
 * every local rank either pushes no more, or has in each of its slots a gradient that waits for
 * other ranks, none of them can go on.  Then one of these gradients is copied and its slot given
 * back: at most one per rank at a time.  Orders that differ by more end at the step's deadline,
 * which names them.
 *
 * Invariants: a contribution is acknowledged exactly once, when its memory is free again.  It is
 * not freed while it is being copied.  If a node gradient takes it meanwhile, the copy is dropped.
 */
#include "daemon/job/core/progress.h"
#include "daemon/step/reduce/node_gradient.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/floor/base/buffer.h"
#include "proto/cleanup.h"

struct contributor *contributor_of(struct reduce *r, uint32_t group, uint32_t rank)
{
        return &r->contributors[(size_t)group * r->job->world_size + rank];
}

bool is_local(const struct job *job, uint32_t group, uint32_t rank)
{
        return job->node_of_rank[rank] == job->x->cluster->self &&
               layout_group_has_rank(&job->layout->groups[group], rank);
}

static void spill_end(struct contribution *c)
{
        if (!c->copy)
                return;
        assert(!c->copying);
        buffer_free(STEAL(c->copy));
        if (c->rank < c->job->world_size) /* the number of ranks may have shrunk */
                c->job->reduce->spilled[c->rank] = false;
}

/* Acknowledges or refuses the push; does nothing the second time. */
static void contribution_answer(struct contribution *c, int status, const char *text)
{
        struct request *r = STEAL(c->request);

        if (!r)
                return;
        r->subject = NULL;
        request_end(r, status, "%s", text);
}

void contribution_free(struct contribution *c, int status, const char *text)
{
        contribution_answer(c, status, text);
        if (c->copying) {
                c->freed = true;
                return;
        }
        spill_end(c);
        push_window_unref(c->window);
        free(c->present);
        free(c);
}

void contribution_take(struct contribution *c)
{
        list_remove(&c->link);
        c->queued = false;
        if (c->counted)
                c->job->reduce->waiting[c->rank]--;
}

void contribution_abort(struct contribution *c, const struct job *job)
{
        if (job->dead)
                contribution_free(c, ZERO_ENOJOB, "the job was dropped or the daemon stops");
        else
                contribution_free(c, ZERO_EABORTED, "the attempt is over");
}

/* ---- copies ---- */

static void spill_copied(struct offload_task *task)
{
        struct contribution *c = CONTAINER_OF(task, struct contribution, task.task);
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
        uint64_t elements = job->layout->groups[c->group].elements;
        size_t bytes = dtype_bytes(job->reduce->grad_dtype, elements);

        c->copy = buffer_new(bytes);
        if (!c->copy) {
                job->reduce->lacking = true;
                return;
        }
        job->reduce->spilled[c->rank] = true;
        c->copying = true;
        job_ref(job);
        job_copy(job, &c->task, c->copy, c->data, bytes, spill_copied);
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

/* ---- node gradients ---- */

void reduce_advance(struct job *job, uint32_t group)
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
                        r->ready(job, group);
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

/* ---- pushes ---- */

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
