/*
 * Norms of tensors, which their owners compute.
 *
 * The asking node asks every node with shards.  Each answers with the sums of squares over what
 * its owners have of the tensors; mirrors are left out.  The sums are exact and of blocks that no
 * partition cuts, so a norm has the same bits however the tensor lies.  An owner reads gradients
 * when their sum is complete, and other planes while no update runs.  Owners may have different
 * versions of a plane; then the node asks again for the newest.
 */
#include "daemon/reduce/reduce.h"
#include "daemon/tensors/access.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"
#include "proto/dtype.h"

struct norm_sum {
        struct exact_sum squares;
        bool finite;
        bool present; /* GRAD: the tensor has a gradient */
};

/* The answer to another node, or this one, in the making. */
struct norms_told {
        struct job *job;
        uint32_t node, first, count, pending;
        uint64_t call, elements, oldest, newest;
        int status;
        const char *text;
        struct norm_sum sums[]; /* [count] */
};

static void sums_init(struct norm_sum *sums, uint32_t n)
{
        for (uint32_t i = 0; i < n; i++) {
                exact_sum_init(&sums[i].squares);
                sums[i].finite = true;
        }
}

/* Whether the norm counts the tensor's values: bytes have no norm. */
static bool norm_counts(const struct job *job, const struct layout_tensor *t, uint32_t plane)
{
        if (dtype_is_bytes(job->layout->groups[t->group].dtype))
                return false;
        return plane == ZERO_PLANE_GRAD ? !t->frozen : tensor_has(job, t, plane);
}

static int norms_check(const struct job *job, const Zero__Norms *m, struct fault *fault)
{
        uint32_t n = job->layout->n_tensors;

        if (m->plane != ZERO_PLANE_GRAD && m->plane != ZERO_PLANE_MASTER &&
            (m->plane < ZERO_PLANE_MOMENT1 || m->plane > ZERO_PLANE_MOMENT3 ||
             !optimizer_plane_name(job->layout, m->plane)))
                return fault_set(fault, ZERO_EINVAL,
                                 "plane %u has no norms: gradients, master weights and the moments "
                                 "of the job's optimizers have",
                                 m->plane);
        if (m->count == 0 || m->count > LAYOUT_NORMS || m->first >= n || m->count > n - m->first)
                return fault_set(fault, ZERO_ERANGE,
                                 "tensors %u+%u: the layout has %u, and a call is for 1 to %d",
                                 m->first, m->count, n, LAYOUT_NORMS);
        return 0;
}

/* ---- an owner's part ------------------------------------------------------------------- */

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

static uint64_t segment_at(const struct work *w, const struct plan_segment *s)
{
        if (w->plane == ZERO_PLANE_MASTER)
                return s->master;
        if (w->plane == ZERO_PLANE_GRAD)
                return s->moment;
        return plan_moment(&w->replica->state->plan->shards[w->group],
                           w->plane - ZERO_PLANE_MOMENT1, s->moment);
}

static void norms_run(struct offload_task *task, uint32_t worker)
{
        struct work *w = CONTAINER_OF(task, struct work, task);
        const struct job *job = w->job;
        const struct plan *plan = w->replica->state->plan;
        const struct plan_shard *shard = &plan->shards[w->group];
        double scale = w->plane == ZERO_PLANE_GRAD ? reduce_norm_scale(job, w->group) : 1;
        struct norm_sum *sums = w->buffer;

        for (uint32_t i = 0; i < shard->n_segments; i++) {
                const struct plan_segment *s = &plan->segments[shard->first_segment + i];
                const struct layout_tensor *t = &job->layout->tensors[s->tensor];
                struct norm_sum *sum = &sums[s->tensor - w->tensor];
                uint64_t n = plan_segment_elements(t, s);
                struct mapping values;

                if (s->tensor < w->tensor || s->tensor - w->tensor >= w->count ||
                    !norm_counts(job, t, w->plane))
                        continue;
                w->elements += n;
                if (n == 0 || !sum->present)
                        continue;
                values = state_map(w->replica->state, w->plane,
                                   (struct range){ segment_at(w, s), n });
                job->x->ops->norm(values.at, n, scale, &sum->squares, &sum->finite);
                state_unmap(&values);
        }
}

static void norms_work_end(struct work *w, int status, const char *text)
{
        struct norms_told *t = w->norms;

        work_free(w);
        told_part(t, status, text);
}

static void norms_ran(struct offload_task *task)
{
        struct work *w = CONTAINER_OF(task, struct work, task);
        struct norms_told *t = w->norms;
        const struct norm_sum *sums = w->buffer;

        for (uint32_t i = 0; i < w->count; i++) {
                struct norm_sum *to = &t->sums[w->tensor - t->first + i];

                exact_sum_merge(&to->squares, &sums[i].squares);
                to->finite = to->finite && sums[i].finite;
        }
        t->elements += w->elements;
        if (w->plane == ZERO_PLANE_GRAD)
                accumulator_read_end(w->replica, w->group);
        norms_work_end(w, ZERO_OK, "");
}

bool norms_must_wait(struct work *w)
{
        const struct job *job = w->job;
        struct replica *h = replica_of_copy(job, w->owner, 0);

        w->replica = h;
        if (!h)
                return false;
        if (w->plane != ZERO_PLANE_GRAD)
                return job->version < w->version || h->updating;
        return job->attempt < w->attempt ||
               (job->attempt == w->attempt && !accumulator_settle(h, w->group));
}

static const char being_moved[] = "the job's shards are being moved: try again";

/* Reads what the plane has now. */
static void norms_begin(struct work *w)
{
        struct norm_sum *sums = w->buffer;
        struct norms_told *t = w->norms;
        bool grad = w->plane == ZERO_PLANE_GRAD;

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
        w->task.run = norms_run;
        w->task.done = norms_ran;
        offload_submit(w->job->x->offload, &w->task);
}

/* The part of one group. */
static void told_begin(struct norms_told *t, struct replica *h, uint32_t tensor, uint32_t n,
                       const Zero__NormsAsk *ask)
{
        struct work *w = work_new(t->job, h, tensor, (enum zero_plane)ask->of->plane, 0, n);

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
        sums_init(w->buffer, n);
        w->norms = t;
        w->owner = h->owner;
        w->attempt = ask->of->attempt;
        w->version = ask->version;
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
        sums_init(t->sums, t->count);
        job_ref(job);
        for_replicas (job, h)
                if (h->copy == 0)
                        told_begin_owner(t, h, ask);
        told_part(t, ZERO_OK, "");
}

/* ---- the asking node ------------------------------------------------------------------- */

/* Gradients may be long in coming: the client's own wait has a deadline. */
enum { GRAD_CALL_MS = 24 * 3600 * 1000 };

static void norms_ask(struct norms *n, uint64_t version);

static void norms_free(struct norms *n)
{
        list_remove(&n->link);
        n->window->gets--;
        push_window_unref(n->window);
        job_unref(n->job);
        free(n->sums);
        free(n->values);
        free(n);
}

void norms_result(const struct norms *n, struct request *r)
{
        r->result.norms.values = n->values;
        r->result.norms.n = n->count;
        r->result.norms.version = n->newest;
}

static void norms_end(struct norms *n)
{
        struct request *r = STEAL(n->request);

        if (n->done)
                n->done(n);
        if (r) {
                norms_result(n, r);
                request_end(r, n->status, "%s", n->text);
        }
        norms_free(n);
}

static void norms_fault(struct norms *n, int status, const char *text)
{
        if (n->status)
                return;
        n->status = status;
        snprintf(n->text, sizeof n->text, "%s", text);
}

/* The tensors' elements that the norms count. */
static uint64_t norms_elements(const struct norms *n)
{
        uint64_t elements = 0;

        for (uint32_t i = n->first; i < n->first + n->count; i++) {
                const struct layout_tensor *t = &n->job->layout->tensors[i];

                elements += norm_counts(n->job, t, n->plane) ? t->elements : 0;
        }
        return elements;
}

static void norms_told_all(struct norms *n)
{
        if (!n->status && n->request && n->oldest < n->newest) {
                norms_ask(n, n->newest);
                return;
        }
        if (!n->status && n->elements != norms_elements(n)) /* nodes differ on who owns what */
                norms_fault(n, ZERO_EBUSY, being_moved);
        for (uint32_t i = 0; i < n->count; i++)
                n->values[i] = n->sums[i].finite ? sqrt(exact_sum_value(&n->sums[i].squares)) : NAN;
        norms_end(n);
}

static void norms_add(struct norms *n, const Zero__NormsTold *told)
{
        for (uint32_t i = 0; i < n->count; i++) {
                struct exact_sum sum;

                exact_sum_init(&sum);
                for (size_t k = 0; k < EXACT_SUM_BINS; k++)
                        sum.bin[k] = told->bins[i * EXACT_SUM_BINS + k];
                exact_sum_merge(&n->sums[i].squares, &sum);
                n->sums[i].finite = n->sums[i].finite && told->finite.data[i];
        }
        n->elements += told->elements;
        n->oldest = told->oldest < n->oldest ? told->oldest : n->oldest;
        n->newest = told->newest > n->newest ? told->newest : n->newest;
}

static void norms_answered(void *arg, int status, const char *text, const Zero__LinkMessage *m)
{
        struct norms *n = arg;
        const Zero__NormsTold *told =
                m && m->body_case == ZERO__LINK_MESSAGE__BODY_NORMS_TOLD ? m->norms_told : NULL;

        if (status == ZERO_ECLOSED ||
            status == ZERO_ENOJOB) /* not this node: the client would leave */
                norms_fault(n, ZERO_EPEER, "an owner's node stops or starts anew: try again");
        else if (status)
                norms_fault(n, status, text);
        else if (!told || told->n_bins != n->count * EXACT_SUM_BINS || told->finite.len != n->count)
                norms_fault(n, ZERO_EPROTO, "a node's answer has no norms");
        else
                norms_add(n, told);
        if (--n->pending == 0)
                norms_told_all(n);
}

/* Asks all nodes with shards, from the beginning. */
static void norms_ask(struct norms *n, uint64_t version)
{
        struct engine *x = n->job->x;
        node_set nodes = placement_nodes(&n->job->placement);
        Zero__LinkMessage m = job_message(n->job->name);
        Zero__NormsAsk ask = ZERO__NORMS_ASK__INIT;
        Zero__Norms of = ZERO__NORMS__INIT;

        sums_init(n->sums, n->count);
        n->elements = n->newest = 0;
        n->oldest = UINT64_MAX;
        of.plane = n->plane;
        of.first = n->first;
        of.count = n->count;
        of.attempt = n->attempt;
        ask.of = &of;
        ask.version = version;
        m.body_case = ZERO__LINK_MESSAGE__BODY_NORMS_ASK;
        m.norms_ask = &ask;
        for (uint32_t i = 0; i < x->cluster->n_nodes; i++) {
                if (!node_set_has(&nodes, i))
                        continue;
                n->pending++;
                call_send(x, i, &m, n->timeout_ms, norms_answered, n);
        }
}

static int norms_new(struct job *job, struct push_window *window, const Zero__Norms *m,
                     uint64_t timeout_ms, struct norms **ret, struct fault *fault)
{
        struct norms *n;
        int status = norms_check(job, m, fault);

        if (!status && window->gets >= GETS_MAX)
                status = fault_set(fault, ZERO_EBUSY,
                                   "this client already has %d gets in progress: try again",
                                   GETS_MAX);
        if (status)
                return status;
        n = calloc(1, sizeof *n);
        if (n)
                *n = (struct norms){ .job = job,
                                     .window = window,
                                     .plane = m->plane,
                                     .first = m->first,
                                     .count = m->count,
                                     .attempt = m->attempt,
                                     .timeout_ms = timeout_ms,
                                     .sums = calloc(m->count, sizeof *n->sums),
                                     .values = calloc(m->count, sizeof *n->values) };
        if (!n || !n->sums || !n->values) {
                if (n) {
                        free(n->sums);
                        free(n->values);
                }
                free(n);
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        }
        window->references++;
        window->gets++;
        job_ref(job);
        list_insert(&job->x->tensors->norms, &n->link);
        *ret = n;
        return 0;
}

static void norms_forget(struct request *r)
{
        struct norms *n = r->subject;

        n->request = NULL;
}

static int norms_describe(const struct request *r, struct wait_line *ret)
{
        const struct norms *n = r->subject;

        snprintf(ret->who, sizeof ret->who, "the owners");
        snprintf(ret->what, sizeof ret->what, "the norms of tensors '%.80s' to '%.80s'",
                 n->job->layout->tensors[n->first].name,
                 n->job->layout->tensors[n->first + n->count - 1].name);
        return ZERO_EDEADLINE;
}

int norms_start(struct job *job, struct push_window *window, const Zero__Norms *m,
                uint64_t timeout_ms, struct request *r, struct fault *fault)
{
        struct norms *n;
        int status = norms_new(job, window, m, timeout_ms, &n, fault);

        if (status)
                return status;
        n->request = r;
        r->subject = n;
        r->describe = norms_describe;
        r->forget = norms_forget;
        norms_ask(n, job->version);
        return 0;
}

int norms_start_grad(struct job *job, struct push_window *window, const Zero__Norms *m,
                     uint32_t rank, void (*done)(struct norms *n), struct norms **ret,
                     struct fault *fault)
{
        struct norms *n;
        int status = norms_new(job, window, m, GRAD_CALL_MS, &n, fault);

        if (status)
                return status;
        n->rank = rank;
        n->done = done;
        norms_ask(n, job->version);
        *ret = n;
        return 0;
}

void norms_fail(struct job *job, int status, const char *text)
{
        list_for_each (&job->x->tensors->norms, item) {
                struct norms *n = CONTAINER_OF(item, struct norms, link);

                if (n->job == job && n->request)
                        request_end(STEAL(n->request), status, "%s", text);
        }
}
