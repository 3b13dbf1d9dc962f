/*
 * An owner's part in reading and writing planes, for clients of this node and of others.
 *
 * The work runs only while no update does, and pins the shard so that no update begins.  A client
 * whose node has heard of a step must not see values from before it.  So the owner waits until it
 * has reached the version in the request.
 */
#include "daemon/step/reduce/reduce.h"
#include "daemon/step/tensors/access.h"
#include "daemon/step/update/update.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/floor/base/buffer.h"
#include "proto/cleanup.h"

bool plane_is_single(struct plane plane)
{
        return plane.kind == PLANE_STEP || plane.kind == PLANE_SET;
}

bool tensor_has(const struct job *job, uint32_t tensor, struct plane plane)
{
        const struct layout_tensor *t = &job->layout->tensors[tensor];

        if (plane.kind == PLANE_MASTER || plane.kind == PLANE_SERVE)
                return true;
        return !t->frozen &&
               (plane_is_single(plane) || (plane.kind == PLANE_MOMENT &&
                                           plane.index < optimizer_moments(job->layout, tensor)));
}

size_t plane_size(const struct job *job, uint32_t tensor, struct plane plane)
{
        return plane_bytes(plane, job->layout->groups[job->layout->tensors[tensor].group].dtype, 1);
}

size_t values_size(const struct job *job, uint32_t tensor, struct plane plane, uint32_t dtype)
{
        return dtype ? dtype_bytes((enum zero_dtype)dtype, 1) : plane_size(job, tensor, plane);
}

bool plane_takes(const struct job *job, uint32_t tensor, struct plane plane, uint32_t dtype)
{
        uint32_t group = job->layout->tensors[tensor].group;

        if (dtype == 0)
                return true;
        return (dtype == ZERO_BF16 || dtype == ZERO_FP16) && !plane_is_single(plane) &&
               plane.kind != PLANE_SERVE && !dtype_is_bytes(job->layout->groups[group].dtype);
}

const char *work_range_text(struct plane plane)
{
        return plane.kind == PLANE_SET ? "hyperparameter sets are numbered from 0 to 255"
                                       : "a tensor's step is at most 549755813887";
}
_Static_assert(ZERO_SET_MAX == 256 && STATE_STEP_MAX == 549755813887, "as the texts say");

/* ---- an owner's part ---------------------------------------------------------- */

/* The tensor's one value of such a plane. */
static const uint64_t *work_single(const struct work *w)
{
        const struct state *state = w->replica->state;

        return &(w->plane.kind == PLANE_SET ? state->tensor_set : state->tensor_step)[w->tensor];
}

static struct range work_range(const struct work *w)
{
        return (struct range){ w->job->layout->tensors[w->tensor].offset + w->first, w->count };
}

static struct mapping work_map(const struct work *w, struct plane plane)
{
        return state_map(w->replica->state, plane, w->group, work_range(w));
}

/* Copies a put's values.  Reads the client's memory once, so master and serve get the same values
 * even if the client writes there meanwhile.  serve NULL: the group has no serve plane. */
static void put_copy(const struct work *w, void *plane, void *serve)
{
        enum zero_dtype served = w->job->layout->groups[w->group].dtype;
        enum zero_dtype dtype = w->dtype ? (enum zero_dtype)w->dtype : ZERO_FP32;
        const struct device_ops *ops = w->job->x->ops;
        const void *from = w->buffer;

        if (serve && served == dtype) {
                ops->copy(serve, from, dtype_bytes(dtype, w->count));
                from = serve;
        }
        ops->cast(ZERO_FP32, plane, dtype, from, w->count);
        if (serve && served != dtype)
                ops->cast(served, serve, ZERO_FP32, plane, w->count);
}

static bool work_packed(const struct work *w)
{
        return plan_format(w->replica->state->plan, w->plane, w->group, work_range(w).first) !=
               FORMAT_FP32;
}

/* True if a put of master also writes the average. */
static bool work_averages(const struct work *w)
{
        const layout *l = w->job->layout;

        return w->plane.kind == PLANE_MASTER && !l->tensors[w->tensor].frozen &&
               l->groups[w->group].ema && w->replica->state->tensor_step[w->tensor] == 0;
}

/* A put's values of a plane that is not in fp32. */
static void put_packed(const struct work *w)
{
        struct plane ema = plane_updated(optimizer_moments(w->job->layout, w->tensor));
        const struct state *state = w->replica->state;
        enum zero_dtype dtype = w->dtype ? (enum zero_dtype)w->dtype : ZERO_FP32;
        const struct device_ops *ops = w->job->x->ops;
        const struct range all = work_range(w);
        float wide[8 * LAYOUT_ALIGN];

        for (uint64_t done = 0, n; done < all.count; done += n) {
                n = all.count - done < sizeof wide / sizeof *wide ? all.count - done
                                                                  : sizeof wide / sizeof *wide;
                ops->cast(ZERO_FP32, wide, dtype, (char *)w->buffer + dtype_bytes(dtype, done), n);
                struct range part = { all.first + done, n };

                state_write(state, w->plane, w->group, part, ops, wide);
                if (work_averages(w))
                        state_write(state, ema, w->group, part, ops, wide);
        }
}

static void work_copy(struct work *w)
{
        const struct job *job = w->job;
        const layout *l = job->layout;
        bool master = w->plane.kind == PLANE_MASTER;
        struct mapping plane, serve = { NULL }, ema = { NULL };
        const struct device_ops *ops = w->job->x->ops;

        if (plane_is_single(w->plane)) {
                memcpy(w->buffer, work_single(w), sizeof(uint64_t));
                return;
        }
        if (!w->put) {
                state_read(w->replica->state, w->plane, w->group, work_range(w), ops, w->buffer);
                return;
        }
        if (work_packed(w)) {
                put_packed(w);
                return;
        }
        plane = work_map(w, w->plane);
        if (master && layout_group_served(&l->groups[w->group]))
                serve = work_map(w, plane_serve);
        put_copy(w, plane.at, serve.at);
        if (work_averages(w)) {
                ema = work_map(w, plane_updated(optimizer_moments(l, w->tensor)));
                ops->copy(ema.at, plane.at, plane.bytes);
        }
        state_unmap(&ema);
        state_unmap(&serve);
        state_unmap(&plane);
}

static void work_run(struct offload_task *task, uint32_t worker)
{
        work_copy(CONTAINER_OF(task, struct work, task));
}

static void work_done(struct offload_task *task)
{
        struct work *w = CONTAINER_OF(task, struct work, task);

        if (w->put)
                state_put_end(w->replica->state, w->put_name);
        w->end(w, 0);
}

void work_name_put(struct work *w, uint32_t node, uint64_t put)
{
        w->put_name = put * ZERO_NODE_MAX + node;
        w->put_name = w->put_name * UINT64_C(0x9e3779b97f4a7c15) + w->tensor;
        w->put_name = w->put_name * UINT64_C(0x9e3779b97f4a7c15) + w->first;
}

/* Puts a tensor's one value, on the loop thread, so that no vote comes between. */
static void work_put_single(struct work *w)
{
        uint64_t number, most = w->plane.kind == PLANE_SET ? ZERO_SET_MAX - 1 : STATE_STEP_MAX;

        memcpy(&number, w->buffer, sizeof number);
        if (number > most) {
                w->end(w, ZERO_ERANGE);
                return;
        }
        state_put_begin(w->replica->state);
        if (w->plane.kind == PLANE_SET)
                state_put_set(w->replica->state, w->tensor, number);
        else
                state_put_step(w->replica->state, w->tensor, number);
        state_put_end(w->replica->state, w->put_name);
        w->end(w, 0);
}

enum offload_lane work_lane(const struct work *w)
{
        return update_holds(w->replica) ? OFFLOAD_STEP : OFFLOAD_READ;
}

void work_submit(struct work *w)
{
        if (w->put && plane_is_single(w->plane)) {
                work_put_single(w);
                return;
        }
        shard_pin(w->replica, w->group);
        w->pinned = true;
        if (w->put)
                state_put_begin(w->replica->state);
        w->task.run = work_run;
        w->task.done = work_done;
        job_compute(w->job, OFFLOAD_READ, &w->task);
}

/* True if the work has to wait.  A put of a set waits while a recorded vote depends on the sets in
 * force. */
static bool work_must_wait(struct work *w)
{
        const struct replica *h = w->replica;

        if (w->must_wait)
                return w->must_wait(w);
        if (h->job->version < w->version || h->updating)
                return true;
        if (w->put && h->copying)
                return true;
        return w->put && w->plane.kind == PLANE_SET && accumulator_voted(h);
}

void work_start(struct work *w)
{
        if (w->plane.kind != PLANE_GRAD && w->replica)
                update_undo(w->replica); /* planes are read and written as the record has them */
        if (work_must_wait(w))
                list_insert(&w->job->x->tensors->works, &w->link);
        else
                w->begin(w);
}

static struct work *work_that_goes_on(const struct job *job)
{
        list_for_each (&job->x->tensors->works, item) {
                struct work *w = CONTAINER_OF(item, struct work, link);

                if (w->job == job && (job->dead || !work_must_wait(w)))
                        return w;
        }
        return NULL;
}

/* Begins works that need not wait any longer.  An update ahead may have begun while a work waited,
 * and undoing it may let other works go on. */
void works_go_on(struct job *job)
{
        struct work *w;

        while ((w = work_that_goes_on(job))) {
                list_remove(&w->link);
                if (job->dead)
                        w->begin(w);
                else
                        work_start(w);
        }
}

void work_free(struct work *w)
{
        list_remove(&w->link);
        if (w->sent.replica)
                shard_part_end(&w->sent);
        if (w->pinned)
                shard_unpin(w->replica, w->group);
        if (w->owns_buffer)
                buffer_free(w->buffer);
        job_unref(w->job);
        free(w);
}

struct work *work_new(struct job *job, struct replica *h, uint32_t tensor, struct plane plane,
                      uint64_t first, uint64_t count)
{
        struct work *w = calloc(1, sizeof *w);

        if (!w)
                return NULL;
        *w = (struct work){ .job = job,
                            .replica = h,
                            .tensor = tensor,
                            .group = job->layout->tensors[tensor].group,
                            .plane = plane,
                            .first = first,
                            .count = count };
        list_init(&w->link);
        job_ref(job);
        return w;
}

const char being_moved[] = "the job's shards are being moved: try again";

/* ---- other nodes' requests ----------------------------------------------------------- */

static bool request_lies_here(const struct job *job, const struct replica *h, uint32_t tensor,
                              struct plane plane, uint64_t first, uint64_t count)
{
        const struct layout_tensor *t;
        struct range range;

        if (!h || tensor >= job->layout->n_tensors)
                return false;
        t = &job->layout->tensors[tensor];
        range = h->state->plan->shards[t->group].range;
        if (first > t->elements || count > t->elements - first || count == 0 || range.count == 0 ||
            !tensor_has(job, tensor, plane))
                return false;
        if (plane_is_single(plane))
                return count == 1;
        return t->offset + first >= range.first &&
               t->offset + first + count <= range.first + range.count;
}

static void plane_sent(void *arg, int status)
{
        work_free(arg);
}

static void work_send(struct work *w, const void *at, uint64_t bytes)
{
        if (staged_payload(w->replica->job, w->node, w->transfer, TRAFFIC_STATE, at, bytes, false,
                           plane_sent, w))
                work_free(w);
}

static void plane_ready(struct shard_part *part)
{
        work_send(CONTAINER_OF(part, struct work, sent), part->bytes.at, part->bytes.bytes);
}

static void values_read(struct work *w, int status)
{
        work_send(w, w->buffer, w->count * sizeof(float));
}

/* Other nodes get moments in fp32. */
static void packed_send(struct work *w)
{
        w->buffer = buffer_new(w->count * sizeof(float));
        if (!w->buffer) {
                ask_refuse(w->job, w->node, w->transfer, ZERO_ENOMEM, "out of memory");
                work_free(w);
                return;
        }
        w->owns_buffer = true;
        w->end = values_read;
        work_submit(w);
}

static void plane_send(struct work *w)
{
        if (plane_is_single(w->plane)) {
                shard_pin(w->replica, w->group);
                w->pinned = true;
                work_send(w, work_single(w), sizeof(uint64_t));
        } else if (work_packed(w)) {
                packed_send(w);
        } else {
                shard_want(&w->sent, w->replica, w->plane, w->group, work_range(w), plane_ready);
        }
}

static struct access *put_find(struct engine *x, uint64_t id)
{
        list_for_each (&x->tensors->accesses, item) {
                struct access *a = CONTAINER_OF(item, struct access, link);

                if (a->values && a->id == id)
                        return a;
        }
        return NULL;
}

static void put_sent(void *arg, int status)
{
        put_values_unref(arg);
}

/* Sends an owner the values that a client of this node puts. */
static void put_pull(struct job *job, uint32_t node, const Zero__Pull *request)
{
        struct access *a = put_find(job->x, request->put);
        size_t size;
        uint64_t skip;

        if (!a || a->job != job || a->tensor != request->tensor ||
            plane_number(a->plane) != request->plane ||
            (!plane_is_single(a->plane) &&
             (request->first < a->first || request->count > a->count ||
              request->first - a->first > a->count - request->count)) ||
            (plane_is_single(a->plane) && request->count != 1)) {
                ask_refuse(job, node, request->transfer, ZERO_EABORTED, "no such put");
                return;
        }
        size = values_size(job, a->tensor, a->plane, a->dtype);
        skip = plane_is_single(a->plane) ? 0 : (request->first - a->first) * size;
        a->values->references++;
        if (fabric_payload(job->x->fabric, node, request->transfer, TRAFFIC_STATE,
                           a->values->data + skip, request->count * size, put_sent, a->values))
                put_values_unref(a->values);
}

void access_pull_message(struct job *job, uint32_t node, const Zero__Pull *request)
{
        struct replica *h = replica_find(job, request->owner);
        struct work *w;

        if (request->kind == ZERO__PULL__KIND__PUT) {
                put_pull(job, node, request);
                return;
        }
        if (!replicas_whole(job)) {
                ask_refuse(job, node, request->transfer, ZERO_EBUSY, being_moved);
                return;
        }
        if (!request_lies_here(job, h, request->tensor, plane_from(request->plane), request->first,
                               request->count)) {
                ask_refuse(job, node, request->transfer, ZERO_EPROTO,
                           "no such range on this owner");
                return;
        }
        w = work_new(job, h, request->tensor, plane_from(request->plane), request->first,
                     request->count);
        if (!w) {
                ask_refuse(job, node, request->transfer, ZERO_ENOMEM, "out of memory");
                return;
        }
        w->node = node;
        w->transfer = request->transfer;
        w->version = request->version;
        w->begin = plane_send;
        work_start(w);
}

static void remote_put_end(struct work *w, int status)
{
        Zero__LinkMessage m = job_message(w->job->name);

        m.call = w->call;
        if (status > 0)
                answer(w->job->x, w->node, &m, status, work_range_text(w->plane));
        else
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
        struct replica *h = replica_of_copy(job, put->owner, put->copy);
        Zero__Pull pull = ZERO__PULL__INIT;
        size_t bytes;
        struct work *w;

        if (!replicas_whole(job)) {
                answer(job->x, node, m, ZERO_EBUSY, being_moved);
                return;
        }
        if (!request_lies_here(job, h, put->tensor, plane_from(put->plane), put->first,
                               put->count) ||
            !plane_takes(job, put->tensor, plane_from(put->plane), put->dtype)) {
                answer(job->x, node, m, ZERO_EPROTO, "no such range on this owner");
                return;
        }
        w = work_new(job, h, put->tensor, plane_from(put->plane), put->first, put->count);
        bytes = put->count * values_size(job, put->tensor, plane_from(put->plane), put->dtype);
        if (w)
                w->buffer = buffer_new(bytes);
        if (!w || !w->buffer) {
                if (w)
                        work_free(w);
                answer(job->x, node, m, ZERO_ENOMEM, "out of memory");
                return;
        }
        w->owns_buffer = w->put = true;
        work_name_put(w, node, put->put);
        w->version = put->version;
        w->dtype = put->dtype;
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
