/*
 * This node's part in norms of tensors (norms.c): sums of squares over the elements that its owners
 * have.  Gradients are read when their sum is complete, and other planes while no update runs.
 */
#include "daemon/step/reduce/reduce.h"
#include "daemon/step/tensors/access.h"

#include <stdlib.h>

#include "proto/cleanup.h"
#include "proto/dtype.h"

/* A piece's blocks of LAYOUT_ALIGN elements.  A piece takes a millisecond, then others have their
 * turn.  A sum may be cut between blocks. */
enum { NORM_PIECE = 8192 };
enum { WIDENED = 16 * LAYOUT_ALIGN }; /* elements of a gradient that L1 has in fp32 */

/* An answer in the making, to another node or to this one. */
struct norms_told {
        struct job *job;
        uint32_t node, first, count, pending;
        uint64_t call, elements, oldest, newest;
        int status;
        const char *text;
        struct norm_sum sums[]; /* [count] */
};

static void told_answer(const struct norms_told *t)
{
        Zero__LinkMessage m = job_message(t->job->name);
        Zero__NormsTold told = ZERO__NORMS_TOLD__INIT;
        CLEANUP(cleanup_free) uint32_t *bins = malloc(t->count * EXACT_SUM_BINS * sizeof *bins);
        CLEANUP(cleanup_free) uint8_t *finite = malloc(t->count);

        if (t->status || !bins || !finite) {
                m.call = t->call;
                answer(t->job->x, t->node, &m, t->status ? t->status : ZERO_ENOMEM,
                       t->status ? t->text : "out of memory");
                return;
        }
        for (uint32_t i = 0; i < t->count; i++) {
                struct exact_sum sum = t->sums[i].squares;

                exact_sum_normalize(&sum);
                for (size_t k = 0; k < EXACT_SUM_BINS; k++)
                        bins[i * EXACT_SUM_BINS + k] = (uint32_t)sum.bin[k];
                finite[i] = t->sums[i].finite;
        }
        told.elements = t->elements;
        told.oldest = t->oldest;
        told.newest = t->newest;
        told.n_bins = t->count * EXACT_SUM_BINS;
        told.bins = bins;
        told.finite = (ProtobufCBinaryData){ t->count, finite };
        m.answer = t->call;
        m.body_case = ZERO__LINK_MESSAGE__BODY_NORMS_TOLD;
        m.norms_told = &told;
        fabric_send(t->job->x->fabric, t->node, &m);
}

static void told_part(struct norms_told *t, int status, const char *text)
{
        if (status && !t->status) {
                t->status = status;
                t->text = text;
        }
        if (--t->pending)
                return;
        told_answer(t);
        job_unref(t->job);
        free(t);
}

/* Adds up to n elements of the segment, from w->at on. */
static void norms_add_segment(struct work *w, const struct plan_segment *s, uint64_t n)
{
        const struct job *job = w->job;
        double scale = w->plane.kind == PLANE_GRAD ? reduce_norm_scale(job, w->group) : 1;
        struct norm_sum *sums = w->buffer, *sum = &sums[s->tensor - w->tensor];
        enum zero_dtype dtype =
                w->plane.kind == PLANE_GRAD ? w->replica->state->plan->grad_dtype : ZERO_FP32;
        const struct device_ops *ops = job->x->ops;
        const struct state *state = w->replica->state;
        struct range all = { s->in_group + w->at, n };
        struct mapping values;
        float wide[WIDENED];

        w->elements += n;
        if (!sum->present)
                return;
        if (plan_format(state->plan, w->plane, w->group, all.first) != FORMAT_FP32) {
                for (uint64_t done = 0, part; done < n; done += part) {
                        part = n - done < WIDENED ? n - done : WIDENED;
                        state_read(state, w->plane, w->group,
                                   (struct range){ all.first + done, part }, ops, wide);
                        ops->norm(wide, part, scale, &sum->squares, &sum->finite);
                }
                return;
        }
        values = state_map(state, w->plane, w->group, all);
        if (dtype == ZERO_FP32)
                ops->norm(values.at, n, scale, &sum->squares, &sum->finite);
        for (uint64_t done = 0, part; dtype != ZERO_FP32 && done < n; done += part) {
                part = n - done < WIDENED ? n - done : WIDENED;
                ops->cast(ZERO_FP32, wide, dtype, (char *)values.at + dtype_bytes(dtype, done),
                          part);
                ops->norm(wide, part, scale, &sum->squares, &sum->finite);
        }
        state_unmap(&values);
}

static uint64_t norms_elements_in(const struct work *w, const struct plan_segment *s)
{
        const struct layout_tensor *t = &w->job->layout->tensors[s->tensor];

        if (s->tensor < w->tensor || s->tensor - w->tensor >= w->count ||
            !norm_counts(w->job, s->tensor, w->plane))
                return 0;
        return plan_segment_elements(t, s);
}

/* Sums one piece; w->segment and w->at say where the next one begins. */
static void norms_run(struct offload_task *task, uint32_t worker)
{
        struct work *w = CONTAINER_OF(task, struct work, task);
        const struct plan *plan = w->replica->state->plan;
        const struct plan_shard *shard = &plan->shards[w->group];

        for (uint64_t blocks = NORM_PIECE; blocks && w->segment < shard->n_segments;) {
                const struct plan_segment *s = &plan->segments[shard->first_segment + w->segment];
                uint64_t count = norms_elements_in(w, s), n = count - w->at;

                n = n < blocks * LAYOUT_ALIGN ? n : blocks * LAYOUT_ALIGN;
                if (n)
                        norms_add_segment(w, s, n);
                blocks -= n <= LAYOUT_ALIGN ? 1 : (n + LAYOUT_ALIGN - 1) / LAYOUT_ALIGN;
                w->at += n;
                if (w->at < count)
                        continue;
                w->at = 0;
                w->segment++;
        }
}

static void norms_work_end(struct work *w, int status, const char *text)
{
        struct norms_told *t = w->norms;

        work_free(w);
        told_part(t, status, text);
}

static void norms_ran(struct offload_task *task);

static void norms_submit(struct work *w)
{
        w->task.run = norms_run;
        w->task.done = norms_ran;
        job_compute(w->job, w->plane.kind == PLANE_GRAD ? OFFLOAD_STEP : work_lane(w), &w->task);
}

static void norms_ran(struct offload_task *task)
{
        struct work *w = CONTAINER_OF(task, struct work, task);
        struct norms_told *t = w->norms;
        const struct norm_sum *sums = w->buffer;

        if (w->segment < w->replica->state->plan->shards[w->group].n_segments) {
                norms_submit(w);
                return;
        }
        for (uint32_t i = 0; i < w->count; i++) {
                struct norm_sum *to = &t->sums[w->tensor - t->first + i];

                exact_sum_merge(&to->squares, &sums[i].squares);
                to->finite = to->finite && sums[i].finite;
        }
        t->elements += w->elements;
        if (w->plane.kind == PLANE_GRAD)
                accumulator_read_end(w->replica, w->group);
        norms_work_end(w, ZERO_OK, "");
}

/* True if the work has to wait.  Finds its replica again, because that may have moved. */
static bool norms_must_wait(struct work *w)
{
        const struct job *job = w->job;
        struct replica *h = replica_of_copy(job, w->owner, 0);

        w->replica = h;
        if (!h)
                return false;
        if (w->plane.kind != PLANE_GRAD)
                return job->version < w->version || h->updating;
        return job->attempt < w->attempt ||
               (job->attempt == w->attempt && !accumulator_settle(h, w->group));
}

/* Reads what the plane has now. */
static void norms_begin(struct work *w)
{
        struct norm_sum *sums = w->buffer;
        struct norms_told *t = w->norms;
        bool grad = w->plane.kind == PLANE_GRAD;

        if (w->job->dead) {
                norms_work_end(w, ZERO_ENOJOB, "the job was dropped or the daemon stops");
                return;
        }
        if (!w->replica) {
                norms_work_end(w, ZERO_EBUSY, being_moved);
                return;
        }
        if (grad && w->attempt != w->job->attempt) {
                norms_work_end(w, ZERO_EABORTED, "the attempt is over, replay the step");
                return;
        }
        for (uint32_t i = 0; i < w->count; i++)
                sums[i].present = !grad || accumulator_present(w->replica, w->tensor + (uint32_t)i);
        if (grad) {
                accumulator_read_begin(w->replica, w->group);
        } else {
                shard_pin(w->replica, w->group);
                w->pinned = true;
        }
        t->oldest = w->job->version < t->oldest ? w->job->version : t->oldest;
        t->newest = w->job->version > t->newest ? w->job->version : t->newest;
        norms_submit(w);
}

/* Begins the part of one group. */
static void told_begin(struct norms_told *t, struct replica *h, uint32_t tensor, uint32_t n,
                       const Zero__NormsAsk *ask)
{
        struct work *w = work_new(t->job, h, tensor, plane_from(ask->of->plane), 0, n);

        if (w)
                w->buffer = calloc(n, sizeof(struct norm_sum));
        t->pending++;
        if (!w || !w->buffer) {
                if (w)
                        work_free(w);
                told_part(t, ZERO_ENOMEM, "out of memory");
                return;
        }
        w->owns_buffer = true;
        norm_sums_init(w->buffer, n);
        w->norms = t;
        w->owner = h->owner;
        w->attempt = ask->of->attempt;
        w->version = ask->version;
        w->must_wait = norms_must_wait;
        w->begin = norms_begin;
        work_start(w);
}

static void told_begin_owner(struct norms_told *t, struct replica *h, const Zero__NormsAsk *ask)
{
        const layout *l = t->job->layout;
        uint32_t end = t->first + t->count;

        for (uint32_t at = t->first; at < end;) {
                const struct layout_group *g = &l->groups[l->tensors[at].group];
                uint32_t last = g->first_tensor + g->n_tensors;
                uint32_t n = (last < end ? last : end) - at;

                told_begin(t, h, at, n, ask);
                at += n;
        }
}

void norms_ask_message(struct job *job, uint32_t node, const Zero__LinkMessage *m)
{
        const Zero__NormsAsk *ask = m->norms_ask;
        struct fault fault = { 0 };
        struct norms_told *t;

        if (!ask->of || norms_check(job, ask->of, &fault)) {
                answer(job->x, node, m, ZERO_EPROTO, ask->of ? fault.text : "norms of nothing");
                return;
        }
        if (!replicas_whole(job)) {
                answer(job->x, node, m, ZERO_EBUSY, being_moved);
                return;
        }
        t = calloc(1, sizeof *t + ask->of->count * sizeof *t->sums);
        if (!t) {
                answer(job->x, node, m, ZERO_ENOMEM, "out of memory");
                return;
        }
        *t = (struct norms_told){ .job = job,
                                  .node = node,
                                  .first = ask->of->first,
                                  .count = ask->of->count,
                                  .pending = 1,
                                  .call = m->call,
                                  .oldest = UINT64_MAX };
        norm_sums_init(t->sums, t->count);
        job_ref(job);
        for_replicas (job, h)
                if (h->copy == 0)
                        told_begin_owner(t, h, ask);
        told_part(t, ZERO_OK, "");
}
