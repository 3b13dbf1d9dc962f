/*
 * Reading and writing planes for clients, and checksums.
 *
 * A range of a tensor is cut into the owners' parts.  Parts of this node are copied, parts of
 * others pulled (get) or announced so that the owner pulls them (put).  Owners do their
 * part only while no update runs.  After a put of parameters every node drops its gathered
 * copies of the group before the client is answered.
 */
#include "daemon/exchange/exchange.h"

#include <assert.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"

/* A client's call, in as many parts as there are owners to ask. */
struct access {
        struct list link; /* exchange.accesses */
        struct job *job;
        struct push_window *window;
        struct request *request; /* NULL once it has ended */
        bool put;
        uint64_t id;             /* other nodes name a put by it */
        uint32_t tensor;
        enum zero_plane plane;
        uint64_t first, count;
        uint64_t timeout_ms;
        uint32_t pending;
        int status;
        char text[200];
};

/* What an owner does for a get or put, its own or another node's, once no update runs. */
struct work {
        struct list link; /* exchange.works while it waits */
        struct offload_task task;
        struct ask ask;
        struct job *job;
        void (*begin)(struct work *w);
        void (*end)(struct work *w, int status);
        struct access *access; /* of this node's client; NULL for another node's */
        bool put;
        uint32_t node;
        uint64_t transfer, call;
        uint32_t tensor, group;
        enum zero_plane plane;
        uint64_t first, count; /* in the tensor */
        void *buffer;          /* the client's memory, or a landing buffer */
        bool owns_buffer, pinned;
        void (*checksum_done)(void *arg, const struct checksum *sum);
        void *checksum_arg;
        struct checksum checksum;
};

static size_t plane_size(const struct job *job, uint32_t tensor, enum zero_plane plane)
{
        if (plane == ZERO_PLANE_STEP)
                return sizeof(uint64_t);
        if (plane == ZERO_PLANE_SERVE)
                return dtype_size(job->layout->groups[job->layout->tensors[tensor].group].dtype);
        return sizeof(float);
}

/* ---- an owner's part ---------------------------------------------------------- */

/* The part of a plane that holds [first, first + count) of a tensor, which lies in one segment. */
static char *plane_at(const struct job *job, uint32_t tensor, enum zero_plane plane, uint64_t first)
{
        const struct layout_tensor *t = &job->layout->tensors[tensor];
        const struct state *state = job->state;
        const struct plan_shard *shard = &state->plan->shards[t->group];
        uint64_t in_group = t->offset + first;
        const struct plan_segment *s = &state->plan->segments[shard->first_segment];

        if (plane == ZERO_PLANE_STEP)
                return (char *)&state->tensor_step[tensor];
        if (plane == ZERO_PLANE_MASTER)
                return (char *)(state->master + shard->master + (in_group - shard->range.first));
        if (plane == ZERO_PLANE_SERVE)
                return (char *)state_shard(state, job->layout, t->group) +
                       (in_group - shard->range.first) * dtype_size(job->layout->groups[t->group].dtype);
        while (s->tensor != tensor)
                s++;
        return (char *)((plane == ZERO_PLANE_EXP_AVG ? state->exp_avg : state->exp_avg_sq) + s->moment +
                        (in_group - s->in_group));
}

static void work_copy(struct work *w)
{
        const struct job *job = w->job;
        char *plane = plane_at(job, w->tensor, w->plane, w->first);
        size_t bytes = w->count * plane_size(job, w->tensor, w->plane);
        enum zero_dtype dtype = job->layout->groups[w->group].dtype;

        if (!w->put) {
                memcpy(w->buffer, plane, bytes);
                return;
        }
        memcpy(plane, w->buffer, bytes);
        if (w->plane == ZERO_PLANE_MASTER && dtype != ZERO_FP32)
                job->x->ops->cast(dtype, plane_at(job, w->tensor, ZERO_PLANE_SERVE, w->first), ZERO_FP32,
                                  plane, w->count);
}

static void work_run(struct offload_task *task, uint32_t worker)
{
        work_copy(CONTAINER_OF(task, struct work, task));
}

static void work_done(struct offload_task *task)
{
        struct work *w = CONTAINER_OF(task, struct work, task);

        w->end(w, 0);
}

static void work_submit(struct work *w)
{
        shard_pin(w->job, w->group);
        w->pinned = true;
        w->task.run = work_run;
        w->task.done = work_done;
        offload_submit(w->job->x->offload, &w->task);
}

static void work_start(struct work *w)
{
        if (w->job->update && update_running(w->job->update))
                list_insert(&w->job->x->works, &w->link);
        else
                w->begin(w);
}

void access_updated(struct job *job)
{
        list_for_each(&job->x->works, item)
        {
                struct work *w = CONTAINER_OF(item, struct work, link);

                if (w->job != job)
                        continue;
                list_remove(&w->link);
                w->begin(w);
        }
}

static void work_free(struct work *w)
{
        list_remove(&w->link);
        if (w->pinned)
                shard_unpin(w->job, w->group);
        if (w->owns_buffer)
                free(w->buffer);
        job_unref(w->job);
        free(w);
}

static struct work *work_new(struct job *job, uint32_t tensor, enum zero_plane plane,
                             uint64_t first, uint64_t count)
{
        struct work *w = calloc(1, sizeof *w);

        if (!w)
                return NULL;
        *w = (struct work){ .job = job,
                            .tensor = tensor,
                            .group = job->layout->tensors[tensor].group,
                            .plane = plane,
                            .first = first,
                            .count = count };
        list_init(&w->link);
        job_ref(job);
        return w;
}

/* ---- the client's side ------------------------------------------------------------- */

static void access_end(struct access *a)
{
        struct request *r = a->request;

        if (r) {
                a->request = NULL;
                request_end(r, a->status, "%s", a->text);
        }
        list_remove(&a->link);
        push_window_unref(a->window);
        job_unref(a->job);
        free(a);
}

static void access_part(struct access *a, int status, const char *text)
{
        if (status && !a->status) {
                a->status = status;
                snprintf(a->text, sizeof a->text, "%s", text);
        }
        assert(a->pending > 0);
        if (--a->pending == 0)
                access_end(a);
}

static void access_part_called(void *arg, int status, const char *text, const Zero__LinkMessage *m)
{
        access_part(arg, status, text);
}

/* All parts are written: the copies of other nodes, and this one's, are out of date. */
static void access_dirty(struct access *a)
{
        struct exchange *x = a->job->x;
        Zero__LinkMessage m = job_message(a->job);
        Zero__Dirty dirty = ZERO__DIRTY__INIT;

        dirty.group = a->job->layout->tensors[a->tensor].group;
        m.body_case = ZERO__LINK_MESSAGE__BODY_DIRTY;
        m.dirty = &dirty;
        a->pending = x->cluster->n_nodes;
        for (uint32_t n = 0; n < x->cluster->n_nodes; n++)
                call_send(x, n, &m, a->timeout_ms, access_part_called, a);
}

static void access_written(struct access *a, int status, const char *text)
{
        if (a->pending == 1 && !a->status && !status && a->put && a->plane == ZERO_PLANE_MASTER)
                access_dirty(a);
        else
                access_part(a, status, text);
}

static void access_forget(struct request *r)
{
        struct access *a = r->subject;

        a->request = NULL;
}

static int access_describe(const struct request *r, struct wait_line *ret)
{
        const struct access *a = r->subject;

        snprintf(ret->who, sizeof ret->who, "the owners");
        snprintf(ret->what, sizeof ret->what, "tensor '%.80s'", a->job->layout->tensors[a->tensor].name);
        return ZERO_EDEADLINE;
}

void access_fail(struct job *job)
{
        list_for_each(&job->x->accesses, item)
        {
                struct access *a = CONTAINER_OF(item, struct access, link);

                if (a->job == job && a->request)
                        request_end(STEAL(a->request), ZERO_ENOJOB, "the job was dropped");
        }
        access_updated(job);
}

static void local_part_end(struct work *w, int status)
{
        struct access *a = w->access;

        work_free(w);
        access_written(a, 0, "");
}

static void remote_get_end(struct ask *ask, int status)
{
        struct work *w = CONTAINER_OF(ask, struct work, ask);
        struct access *a = w->access;
        int refused = w->ask.status;

        work_free(w);
        access_written(a, status ? (refused ? refused : ZERO_EPEER) : 0,
                       status ? "an owner did not give its part" : "");
}

static void put_called(void *arg, int status, const char *text, const Zero__LinkMessage *m)
{
        access_written(arg, status, text);
}

static void part_get(struct access *a, struct work *w, uint32_t owner)
{
        Zero__Pull pull = ZERO__PULL__INIT;

        pull.kind = ZERO__PULL__KIND__PLANE;
        pull.owner = owner;
        pull.tensor = w->tensor;
        pull.plane = w->plane;
        pull.first = w->first;
        pull.count = w->count;
        w->ask.done = remote_get_end;
        if (ask_send(&w->ask, w->job, w->job->x->owner_node[owner], TRAFFIC_STATE, &pull, w->buffer,
                     w->count * plane_size(w->job, w->tensor, w->plane)) == 0)
                return;
        work_free(w);
        access_part(a, ZERO_EPEER, "an owner is not reachable");
}

static void part_put(struct access *a, struct work *w, uint32_t owner)
{
        Zero__LinkMessage m = job_message(a->job);
        Zero__PutRange range = ZERO__PUT_RANGE__INIT;

        range.put = a->id;
        range.owner = owner;
        range.tensor = w->tensor;
        range.plane = w->plane;
        range.first = w->first;
        range.count = w->count;
        m.body_case = ZERO__LINK_MESSAGE__BODY_PUT_RANGE;
        m.put_range = &range;
        work_free(w);
        call_send(a->job->x, a->job->x->owner_node[owner], &m, a->timeout_ms, put_called, a);
}

/* One owner's part of the range; count may come out as 0. */
static struct range part_range(const struct access *a, uint32_t owner)
{
        const struct layout_tensor *t = &a->job->layout->tensors[a->tensor];
        struct range r = partition_range(a->job->partition, t->group, owner);
        uint64_t from = t->offset + (a->plane == ZERO_PLANE_STEP ? 0 : a->first);
        uint64_t to = from + (a->plane == ZERO_PLANE_STEP ? t->elements : a->count);

        if (from < r.first)
                from = r.first;
        if (to > r.first + r.count)
                to = r.first + r.count;
        return (struct range){ from - t->offset, to > from ? to - from : 0 };
}

static void access_part_start(struct access *a, uint32_t owner, struct range part)
{
        struct job *job = a->job;
        size_t size = plane_size(job, a->tensor, a->plane);
        bool step = a->plane == ZERO_PLANE_STEP;
        struct work *w = work_new(job, a->tensor, a->plane, part.first, step ? 1 : part.count);

        if (!w) {
                access_part(a, ZERO_ENOMEM, "out of memory");
                return;
        }
        w->access = a;
        w->put = a->put;
        w->buffer = (char *)a->window->segment.data + (step ? 0 : (part.first - a->first) * size);
        if ((int32_t)owner == job->x->owner) {
                w->begin = work_submit;
                w->end = local_part_end;
                work_start(w);
        } else if (a->put) {
                part_put(a, w, owner);
        } else {
                part_get(a, w, owner);
        }
}

static void access_parts(struct access *a)
{
        uint32_t n = a->job->x->n_owners;
        bool one = a->plane == ZERO_PLANE_STEP && !a->put;

        a->pending = 1; /* held until all parts have been started */
        for (uint32_t o = 0; o < n; o++) {
                struct range part = part_range(a, o);

                if (part.count == 0)
                        continue;
                a->pending++;
                access_part_start(a, o, part);
                if (one)
                        break;
        }
        access_written(a, 0, "");
}

static int access_check(const struct job *job, const Zero__Access *m, bool put,
                        uint64_t transfer_bytes, struct fault *fault)
{
        const struct layout_tensor *t;

        if (m->tensor >= job->layout->n_tensors)
                return fault_set(fault, ZERO_ENOGROUP, "there is no tensor %u: the layout has %u", m->tensor,
                                 job->layout->n_tensors);
        t = &job->layout->tensors[m->tensor];
        if (m->plane == ZERO_PLANE_GRAD || m->plane < ZERO_PLANE_MASTER || m->plane > ZERO_PLANE_STEP)
                return fault_set(fault, ZERO_EINVAL, "plane %u cannot be read or written", m->plane);
        if (put && m->plane == ZERO_PLANE_SERVE)
                return fault_set(fault, ZERO_EINVAL, "the serve plane follows master: write that");
        if (t->frozen && m->plane != ZERO_PLANE_MASTER && m->plane != ZERO_PLANE_SERVE)
                return fault_set(fault, ZERO_EINVAL, "tensor '%s' is frozen: it has no optimizer state",
                                 t->name);
        if (m->plane == ZERO_PLANE_STEP ? m->first != 0 || m->count != 1 :
                                          m->first > t->elements || m->count > t->elements - m->first)
                return fault_set(fault, ZERO_ERANGE, "elements %llu to %llu lie outside tensor '%s' (%llu)",
                                 (unsigned long long)m->first, (unsigned long long)(m->first + m->count),
                                 t->name, (unsigned long long)t->elements);
        if (m->count * plane_size(job, m->tensor, (enum zero_plane)m->plane) > transfer_bytes)
                return fault_set(fault, ZERO_ERANGE, "more than the transfer area holds (%llu bytes)",
                                 (unsigned long long)transfer_bytes);
        return 0;
}

/* A put belongs between steps: no gradient of this attempt may have been pushed here. */
static int put_check(const struct job *job, struct fault *fault)
{
        for (uint32_t r = 0; r < job->world_size; r++)
                if (job->ranks[r] && (job->ranks[r]->pushed || job->ranks[r]->closed))
                        return fault_set(fault, ZERO_EORDER,
                                         "zero_put between steps only: rank %u has pushed gradients", r);
        return 0;
}

int access_start(struct job *job, struct push_window *window, const Zero__Access *m, bool put,
                 uint64_t timeout_ms, struct request *r, struct fault *fault)
{
        struct access *a;
        int status = access_check(job, m, put, window->transfer_bytes, fault);

        if (!status && put)
                status = put_check(job, fault);
        if (status)
                return status;
        a = calloc(1, sizeof *a);
        if (!a)
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        *a = (struct access){ .job = job,
                              .window = window,
                              .request = r,
                              .put = put,
                              .id = ++job->x->last_put,
                              .tensor = m->tensor,
                              .plane = (enum zero_plane)m->plane,
                              .first = m->first,
                              .count = m->count,
                              .timeout_ms = timeout_ms };
        window->references++;
        job_ref(job);
        r->subject = a;
        r->describe = access_describe;
        r->forget = access_forget;
        if (a->plane == ZERO_PLANE_STEP && !put) /* what a tensor without elements answers */
                memset(window->segment.data, 0, sizeof(uint64_t));
        list_insert(&job->x->accesses, &a->link);
        access_parts(a);
        return 0;
}

/* ---- other nodes' requests ----------------------------------------------------------- */

static bool request_lies_here(const struct job *job, uint32_t owner, uint32_t tensor,
                              uint32_t plane, uint64_t first, uint64_t count)
{
        const struct layout_tensor *t;
        struct range range;

        if (!job->state || (int32_t)owner != job->x->owner || tensor >= job->layout->n_tensors ||
            plane < ZERO_PLANE_MASTER || plane > ZERO_PLANE_STEP || plane == ZERO_PLANE_GRAD)
                return false;
        t = &job->layout->tensors[tensor];
        range = job->state->plan->shards[t->group].range;
        if (first > t->elements || count > t->elements - first || count == 0 || range.count == 0 ||
            (t->frozen && plane != ZERO_PLANE_MASTER && plane != ZERO_PLANE_SERVE))
                return false;
        if (plane == ZERO_PLANE_STEP)
                return count == 1;
        return t->offset + first >= range.first &&
               t->offset + first + count <= range.first + range.count;
}

static void plane_sent(void *arg, int status)
{
        work_free(arg);
}

static void plane_send(struct work *w)
{
        shard_pin(w->job, w->group);
        w->pinned = true;
        if (fabric_payload(w->job->x->fabric, w->node, w->transfer, TRAFFIC_STATE,
                           plane_at(w->job, w->tensor, w->plane, w->first),
                           w->count * plane_size(w->job, w->tensor, w->plane), plane_sent, w))
                work_free(w);
}

static struct access *put_find(struct exchange *x, uint64_t id)
{
        list_for_each(&x->accesses, item)
        {
                struct access *a = CONTAINER_OF(item, struct access, link);

                if (a->put && a->id == id)
                        return a;
        }
        return NULL;
}

static void put_sent(void *arg, int status)
{
        push_window_unref(arg);
}

/* The owner asks for what a client of this node put. */
static void put_pull(struct job *job, uint32_t node, const Zero__Pull *request)
{
        struct access *a = put_find(job->x, request->put);
        size_t size;
        uint64_t skip;

        if (!a || a->job != job || a->tensor != request->tensor || a->plane != request->plane ||
            (a->plane != ZERO_PLANE_STEP &&
             (request->first < a->first || request->count > a->count ||
              request->first - a->first > a->count - request->count)) ||
            (a->plane == ZERO_PLANE_STEP && request->count != 1)) {
                ask_refuse(job, node, request->transfer, ZERO_EABORTED, "no such put");
                return;
        }
        size = plane_size(job, a->tensor, a->plane);
        skip = a->plane == ZERO_PLANE_STEP ? 0 : (request->first - a->first) * size;
        a->window->references++;
        if (fabric_payload(job->x->fabric, node, request->transfer, TRAFFIC_STATE,
                           (char *)a->window->segment.data + skip, request->count * size, put_sent,
                           a->window))
                push_window_unref(a->window);
}

void access_pull_message(struct job *job, uint32_t node, const Zero__Pull *request)
{
        struct work *w;

        if (request->kind == ZERO__PULL__KIND__PUT) {
                put_pull(job, node, request);
                return;
        }
        if (!request_lies_here(job, request->owner, request->tensor, request->plane, request->first,
                               request->count)) {
                ask_refuse(job, node, request->transfer, ZERO_EPROTO, "no such range on this owner");
                return;
        }
        w = work_new(job, request->tensor, (enum zero_plane)request->plane, request->first,
                     request->count);
        if (!w) {
                ask_refuse(job, node, request->transfer, ZERO_ENOMEM, "out of memory");
                return;
        }
        w->node = node;
        w->transfer = request->transfer;
        w->begin = plane_send;
        work_start(w);
}

static void remote_put_end(struct work *w, int status)
{
        Zero__LinkMessage m = job_message(w->job);

        m.call = w->call;
        answer(w->job->x, w->node, &m, status ? ZERO_EPEER : ZERO_OK,
               status ? "the owner could not take its part" : "");
        work_free(w);
}

static void put_landed(struct ask *ask, int status)
{
        struct work *w = CONTAINER_OF(ask, struct work, ask);

        if (status) {
                remote_put_end(w, status);
                return;
        }
        w->begin = work_submit;
        work_start(w);
}

void access_put_message(struct job *job, uint32_t node, const Zero__LinkMessage *m)
{
        const Zero__PutRange *put = m->put_range;
        Zero__Pull pull = ZERO__PULL__INIT;
        size_t bytes;
        struct work *w;

        if (!request_lies_here(job, put->owner, put->tensor, put->plane, put->first, put->count)) {
                answer(job->x, node, m, ZERO_EPROTO, "no such range on this owner");
                return;
        }
        w = work_new(job, put->tensor, (enum zero_plane)put->plane, put->first, put->count);
        bytes = put->count * plane_size(job, put->tensor, (enum zero_plane)put->plane);
        if (w)
                w->buffer = malloc(bytes);
        if (!w || !w->buffer) {
                if (w)
                        work_free(w);
                answer(job->x, node, m, ZERO_ENOMEM, "out of memory");
                return;
        }
        w->owns_buffer = w->put = true;
        w->node = node;
        w->call = m->call;
        w->end = remote_put_end;
        w->ask.done = put_landed;
        pull.kind = ZERO__PULL__KIND__PUT;
        pull.put = put->put;
        pull.owner = put->owner;
        pull.tensor = put->tensor;
        pull.plane = put->plane;
        pull.first = put->first;
        pull.count = put->count;
        if (ask_send(&w->ask, job, node, TRAFFIC_STATE, &pull, w->buffer, bytes))
                work_free(w); /* the node is gone */
}

/* ---- checksum ---------------------------------------------------------------------------- */

enum { HASH_BLOCK = LAYOUT_ALIGN };

/*
 * The sum, modulo 2^64 in two lanes, of the hashes of all blocks of 128 elements, each
 * keyed with plane, tensor and place: it depends on the values, not on how they are cut.
 */
static void checksum_blocks(uint64_t sum[2], uint32_t plane, const struct plan_segment *s,
                            const struct layout_tensor *t, const float *values)
{
        for (uint64_t i = 0; i < s->count; i += HASH_BLOCK) {
                struct {
                        uint32_t plane, tensor;
                        uint64_t first;
                        float values[HASH_BLOCK];
                } block = { .plane = plane, .tensor = s->tensor };
                uint64_t n = s->count - i < HASH_BLOCK ? s->count - i : HASH_BLOCK, hash[2];

                block.first = s->in_group + i - t->offset;
                memcpy(block.values, values + i, n * sizeof(float));
                crypto_generichash((uint8_t *)hash, sizeof hash, (const uint8_t *)&block, sizeof block, NULL,
                                   0);
                sum[0] += hash[0];
                sum[1] += hash[1];
        }
}

static void checksum_run(struct offload_task *task, uint32_t worker)
{
        struct work *w = CONTAINER_OF(task, struct work, task);
        const struct state *state = w->job->state;
        const struct plan *plan = state->plan;

        for (uint32_t i = 0; i < plan->n_segments; i++) {
                const struct plan_segment *s = &plan->segments[i];
                const struct layout_tensor *t = &w->job->layout->tensors[s->tensor];

                checksum_blocks(w->checksum.sum[0], ZERO_PLANE_MASTER, s, t, state->master + s->master);
                if (t->frozen)
                        continue;
                checksum_blocks(w->checksum.sum[1], ZERO_PLANE_EXP_AVG, s, t, state->exp_avg + s->moment);
                checksum_blocks(w->checksum.sum[2], ZERO_PLANE_EXP_AVG_SQ, s, t,
                                state->exp_avg_sq + s->moment);
        }
}

static void checksum_end(struct offload_task *task)
{
        struct work *w = CONTAINER_OF(task, struct work, task);

        w->checksum_done(w->checksum_arg, &w->checksum);
        for (uint32_t g = 0; g < w->job->layout->n_groups; g++)
                shard_unpin(w->job, g);
        work_free(w);
}

static void checksum_begin(struct work *w)
{
        for (uint32_t g = 0; g < w->job->layout->n_groups; g++)
                shard_pin(w->job, g);
        w->task.run = checksum_run;
        w->task.done = checksum_end;
        offload_submit(w->job->x->offload, &w->task);
}

void checksum_start(struct job *job, void (*done)(void *arg, const struct checksum *sum), void *arg)
{
        struct work *w = calloc(1, sizeof *w);

        if (!w)
                abort(); /* no way to keep the promise to call done() */
        w->job = job;
        list_init(&w->link);
        job_ref(job);
        w->checksum_done = done;
        w->checksum_arg = arg;
        w->begin = checksum_begin;
        work_start(w);
}
