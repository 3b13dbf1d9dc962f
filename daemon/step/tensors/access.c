/*
 * Reads and writes planes for clients, and checksums.
 *
 * A range of a tensor is cut into the owners' parts.  Parts on this node are copied.  Parts on
 * other nodes are pulled by this node (get) or announced for the owner to pull (put).  A mirror
 * takes a put as its owner does.  Owners do their part only while no update runs.  After a put of
 * parameters, every node drops its gathered copies of the group before the client is answered.
 */
#include "daemon/step/tensors/access.h"

#include <assert.h>
#include <stdlib.h>
#include <sodium.h>
#include <string.h>

#include "daemon/floor/base/buffer.h"
#include "proto/cleanup.h"

/* ---- what is put ------------------------------------------------------------------- */

/*
 * Frees the memory of puts after a while without puts.  Until then it waits for the next put,
 * because the first touch of new pages costs ten times the copy.
 */
static void spares_progress(struct engine *x)
{
        struct tensors *t = x->tensors;

        for (struct put_values *v; t->spare && (!t->put_lately || x->stopping);) {
                v = t->spare;
                t->spare = v->next;
                free(v);
        }
        t->put_lately = false;
}

static struct put_values *values_alloc(struct tensors *t, const struct push_window *window)
{
        struct put_values *v = t->spare;

        if (v)
                t->spare = v->next;
        else
                v = malloc(sizeof *v + window->transfer_bytes / PUT_SLOTS);
        return v;
}

void put_values_unref(struct put_values *v)
{
        if (!v || --v->references)
                return;
        v->window->puts--;
        push_window_unref(v->window);
        v->next = v->tensors->spare;
        v->tensors->spare = v;
}

static bool put_values_new(struct access *a)
{
        size_t bytes = a->count * values_size(a->job, a->tensor, a->plane, a->dtype);
        struct tensors *tensors = a->job->x->tensors;
        struct put_values *v = values_alloc(tensors, a->window);

        if (!v)
                return false;
        v->references = 1;
        v->tensors = tensors;
        v->window = a->window;
        memcpy(v->data, (char *)a->window->segment.data + a->at, bytes);
        tensors->put_lately = true; /* the values count as a put of the client, as the call did */
        a->window->references++;
        a->values = v;
        return true;
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
        turn_end(a->job->x->tensors, &a->turn);
        a->window->gets -= !a->put;
        a->window->puts -= a->put && !a->values;
        put_values_unref(a->values);
        push_window_unref(a->window);
        job_unref(a->job);
        free(a);
}

static void access_part(struct access *a, int status, const char *text)
{
        if (status && !a->status) {
                a->status = status;
                snprintf(a->text, sizeof a->text, "%.199s", text);
        }
        assert(a->pending > 0);
        if (--a->pending == 0)
                access_end(a);
}

static void access_part_called(void *arg, int status, const char *text, const Zero__LinkMessage *m)
{
        access_part(arg, status, text);
}

/* All parts are written, so gathered copies, here and elsewhere, are out of date: drops them. */
static void access_dirty(struct access *a)
{
        struct engine *x = a->job->x;
        Zero__LinkMessage m = job_message(a->job->name);
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
        if (a->pending == 1 && !a->status && !status && a->put && a->plane.kind == PLANE_MASTER)
                access_dirty(a);
        else
                access_part(a, status, text);
}

static void access_forget(struct request *r)
{
        struct access *a = r->subject;

        a->request = NULL;
        if (turn_waits(&a->turn))
                access_end(a);
}

static int access_describe(const struct request *r, struct wait_line *ret)
{
        const struct access *a = r->subject;

        if (turn_waits(&a->turn)) {
                turn_describe(ret);
                return ZERO_EDEADLINE;
        }
        snprintf(ret->who, sizeof ret->who, "the owners");
        snprintf(ret->what, sizeof ret->what, "tensor '%.80s'",
                 a->job->layout->tensors[a->tensor].name);
        return ZERO_EDEADLINE;
}

static void access_fail(struct job *job, int status, const char *text)
{
        list_for_each (&job->x->tensors->accesses, item) {
                struct access *a = CONTAINER_OF(item, struct access, link);

                if (a->job != job || !a->request)
                        continue;
                request_end(STEAL(a->request), status, "%s", text);
                if (turn_waits(&a->turn))
                        access_end(a);
        }
        norms_fail(job, status, text);
        works_go_on(job);
}

/* Address of a part's values from its first element on. */
static void *part_place(const struct access *a, uint64_t first)
{
        char *values = a->values ? a->values->data : (char *)a->window->segment.data + a->at;

        return plane_is_single(a->plane)
                       ? values
                       : values + (first - a->first) *
                                          values_size(a->job, a->tensor, a->plane, a->dtype);
}

static void local_part_end(struct work *w, int status)
{
        struct access *a = w->access;
        const char *text = status ? work_range_text(w->plane) : "";

        work_free(w);
        access_written(a, status, text);
}

static void borrowed_end(struct work *w, int status)
{
        if (w->access->request)
                w->access->request->borrowed--;
        local_part_end(w, status);
}

/* Lets a part use the client's memory; false: the client has given up, and uses its memory for
 * something else. */
static bool borrow(struct work *w)
{
        if (!w->access->request) {
                local_part_end(w, 0);
                return false;
        }
        w->access->request->borrowed++;
        w->end = borrowed_end;
        return true;
}

static void borrowed_begin(struct work *w)
{
        if (borrow(w))
                work_submit(w);
}

static void got_run(struct offload_task *task, uint32_t worker)
{
        const struct work *w = CONTAINER_OF(task, struct work, task);

        memcpy(part_place(w->access, w->first), w->buffer,
               w->count * plane_size(w->job, w->tensor, w->plane));
}

static void got_done(struct offload_task *task)
{
        struct work *w = CONTAINER_OF(task, struct work, task);

        w->end(w, 0);
}

static void remote_get_end(struct ask *ask, int status)
{
        struct work *w = CONTAINER_OF(ask, struct work, ask);
        struct access *a = w->access;
        int refused = w->ask.status;

        if (status) {
                work_free(w);
                access_written(a, refused ? refused : ZERO_EPEER,
                               refused == ZERO_ENOMEM
                                       ? "an owner of the tensor is out of memory"
                                       : "an owner did not send its part of the tensor");
        } else if (borrow(w)) {
                w->task.run = got_run;
                w->task.done = got_done;
                job_compute(w->job, OFFLOAD_READ, &w->task);
        }
}

static void put_called(void *arg, int status, const char *text, const Zero__LinkMessage *m)
{
        access_written(arg, status, text);
}

static void part_get(struct access *a, struct work *w, uint32_t owner, uint32_t node)
{
        Zero__Pull pull = ZERO__PULL__INIT;
        size_t bytes = w->count * plane_size(w->job, w->tensor, w->plane);
        int r;

        pull.kind = ZERO__PULL__KIND__PLANE;
        pull.owner = owner;
        pull.tensor = w->tensor;
        pull.plane = plane_number(w->plane);
        pull.first = w->first;
        pull.count = w->count;
        pull.version = w->job->version;
        w->ask.done = remote_get_end;
        r = ask_send(&w->ask, w->job, node, TRAFFIC_STATE, &pull, w->buffer, bytes);
        if (r == 0)
                return;
        work_free(w);
        if (r == -ENOMEM)
                access_part(a, ZERO_ENOMEM, "out of memory");
        else
                access_part(a, ZERO_EPEER, "an owner is not reachable");
}

static void part_put(struct access *a, struct work *w, uint32_t holder)
{
        const struct placement *placement = &a->job->placement;
        Zero__LinkMessage m = job_message(a->job->name);
        Zero__PutRange range = ZERO__PUT_RANGE__INIT;

        range.put = a->id;
        range.owner = holder_owner(placement, holder);
        range.copy = holder_copy(placement, holder);
        range.tensor = w->tensor;
        range.plane = plane_number(w->plane);
        range.first = w->first;
        range.count = w->count;
        range.version = w->job->version;
        range.dtype = a->dtype;
        m.body_case = ZERO__LINK_MESSAGE__BODY_PUT_RANGE;
        m.put_range = &range;
        work_free(w);
        call_send(a->job->x, holder_node(placement, holder), &m, a->timeout_ms, put_called, a);
}

/* An owner's part of the range; its count may be 0. */
static struct range part_range(const struct access *a, uint32_t owner)
{
        const struct layout_tensor *t = &a->job->layout->tensors[a->tensor];
        struct range r = partition_range(a->job->partition, t->group, owner);
        uint64_t from = t->offset + (plane_is_single(a->plane) ? 0 : a->first);
        uint64_t to = from + (plane_is_single(a->plane) ? t->elements : a->count);

        if (from < r.first)
                from = r.first;
        if (to > r.first + r.count)
                to = r.first + r.count;
        return (struct range){ from - t->offset, to > from ? to - from : 0 };
}

/*
 * Starts one part.  A local part is copied from or to the client's memory, unless others take the
 * same values.  A part from another node does not land in that memory: the client could change it
 * while the transport checks it.
 */
static void access_part_start(struct access *a, uint32_t holder, struct range part)
{
        struct job *job = a->job;
        const struct placement *placement = &job->placement;
        uint32_t owner = holder_owner(placement, holder);
        struct replica *h = a->put ? replica_of_copy(job, owner, holder_copy(placement, holder))
                                   : replica_find(job, owner);
        struct work *w = work_new(job, h, a->tensor, a->plane, part.first,
                                  plane_is_single(a->plane) ? 1 : part.count);

        if (w) {
                w->access = a;
                w->put = a->put;
                w->dtype = a->dtype;
                w->owns_buffer = !a->put && !h;
                w->buffer = w->owns_buffer
                                    ? buffer_new(w->count * plane_size(job, a->tensor, a->plane))
                                    : part_place(a, part.first);
        }
        if (!w || !w->buffer) {
                if (w)
                        work_free(w);
                access_part(a, ZERO_ENOMEM, "out of memory");
                return;
        }
        work_name_put(w, job->x->cluster->self, a->id);
        if (h) {
                w->begin = a->values ? work_submit : borrowed_begin;
                w->end = local_part_end;
                work_start(w);
        } else if (a->put) {
                part_put(a, w, holder);
        } else {
                part_get(a, w, owner, holder_node(placement, holder));
        }
}

static void access_parts(struct access *a)
{
        const struct placement *placement = &a->job->placement;
        uint32_t n = a->put ? placement_holders(placement) : placement->n_owners;
        bool one = plane_is_single(a->plane) && !a->put;

        for (uint32_t i = 0; i < n; i++) {
                struct range part = part_range(a, holder_owner(placement, i));

                if (part.count == 0)
                        continue;
                a->pending++;
                access_part_start(a, i, part);
                if (one)
                        break;
        }
        access_written(a, 0, "");
}

static int access_check(const struct job *job, const Zero__Access *m, bool put,
                        uint64_t transfer_bytes, struct fault *fault)
{
        uint64_t most = put ? transfer_bytes / PUT_SLOTS : transfer_bytes, bytes;
        const struct plane plane = plane_from(m->plane);
        const struct layout_tensor *t;

        if (m->tensor >= job->layout->n_tensors)
                return fault_set(fault, ZERO_ENOGROUP, "there is no tensor %u: the layout has %u",
                                 m->tensor, job->layout->n_tensors);
        t = &job->layout->tensors[m->tensor];
        if (!plane_name(m->plane))
                return fault_set(fault, ZERO_EINVAL, "there is no plane %u", m->plane);
        if (plane.kind == PLANE_GRAD)
                return fault_set(fault, ZERO_EINVAL, "plane grad cannot be read or written");
        if (put && plane.kind == PLANE_SERVE)
                return fault_set(fault, ZERO_EINVAL,
                                 "the serve plane follows master: write master");
        if (t->frozen && plane.kind != PLANE_MASTER && plane.kind != PLANE_SERVE)
                return fault_set(fault, ZERO_EINVAL,
                                 "tensor '%s' is frozen: it has no optimizer state", t->name);
        if (!tensor_has(job, m->tensor, plane))
                return fault_set(
                        fault, ZERO_EINVAL,
                        "tensor '%s' has no plane %s: %s%s keeps %u beside the master weights",
                        t->name, plane_name(m->plane), optimizer_of(job->layout, m->tensor)->name,
                        job->layout->groups[t->group].ema ? " with averages" : "",
                        optimizer_moments(job->layout, m->tensor));
        if (plane_is_single(plane) ? m->first != 0 || m->count != 1
                                   : m->first > t->elements || m->count > t->elements - m->first)
                return fault_set(fault, ZERO_ERANGE,
                                 "elements %llu to %llu lie outside tensor '%s' (%llu elements)",
                                 (unsigned long long)m->first,
                                 (unsigned long long)(m->first + m->count), t->name,
                                 (unsigned long long)t->elements);
        if (m->dtype && (!put || !plane_takes(job, m->tensor, plane, m->dtype)))
                return fault_set(fault, ZERO_EINVAL,
                                 "tensor '%s': values of type %s do not go with plane %s", t->name,
                                 dtype_name((enum zero_dtype)m->dtype), plane_name(m->plane));
        bytes = m->count * values_size(job, m->tensor, plane, m->dtype);
        if (bytes > most || m->at > transfer_bytes - bytes)
                return fault_set(fault, ZERO_ERANGE,
                                 "the call moves more than %llu bytes, or bytes outside the "
                                 "transfer area",
                                 (unsigned long long)most);
        return 0;
}

/* A put belongs between steps: no local rank may have pushed in this attempt. */
static int put_check(const struct job *job, struct fault *fault)
{
        for (uint32_t r = 0; r < job->world_size; r++)
                if (job->ranks[r].pushed)
                        return fault_set(
                                fault, ZERO_EORDER,
                                "zero_put between steps only: rank %u has pushed gradients", r);
        return 0;
}

/* A rank may put hyperparameter sets until it calls zero_step(). */
static int put_set_check(const struct job *job, const struct push_window *window,
                         struct fault *fault)
{
        for (uint32_t r = 0; r < job->world_size; r++)
                if (job->ranks[r].window == window && job->ranks[r].stepped)
                        return fault_set(fault, ZERO_EORDER,
                                         "rank %u has called zero_step: put hyperparameter sets "
                                         "before it, or when the step is over",
                                         r);
        return 0;
}

/*
 * True if the values can stay in the client's memory.  Each value goes to one holder, which is
 * here, so nobody notices if a value changes.
 */
static bool borrows(const struct access *a)
{
        const struct job *job = a->job;
        const struct placement *placement = &job->placement;

        if (plane_is_single(a->plane) || placement_holders(placement) > placement->n_owners ||
            a->at % values_size(job, a->tensor, a->plane, a->dtype))
                return false;
        for (uint32_t i = 0; i < placement->n_owners; i++)
                if (part_range(a, i).count > 0 && !replica_find(job, i))
                        return false;
        return true;
}

static int puts_check(const struct push_window *window, struct fault *fault)
{
        if (window->puts < PUTS_MAX)
                return 0;
        return fault_set(fault, ZERO_EBUSY,
                         "this client already has %d puts in progress: try again", PUTS_MAX);
}

int gets_check(const struct push_window *window, struct fault *fault)
{
        if (window->gets < GETS_MAX)
                return 0;
        return fault_set(fault, ZERO_EBUSY,
                         "this client already has %d gets in progress: try again", GETS_MAX);
}

static int access_may_begin(struct access *a, struct fault *fault)
{
        const struct job *job = a->job;
        int r = 0;

        if (a->put)
                r = a->plane.kind == PLANE_SET ? put_set_check(job, a->window, fault)
                                               : put_check(job, fault);
        if (r || !a->put || borrows(a))
                return r;
        return put_values_new(a) ? 0 : fault_set(fault, ZERO_ENOMEM, "out of memory");
}

static void access_begin(struct turn *turn)
{
        struct access *a = CONTAINER_OF(turn, struct access, turn);
        struct fault fault = { 0 };
        int r = access_may_begin(a, &fault);

        a->pending = 1; /* until all parts have been started */
        if (r) {
                access_part(a, r, fault.text);
                return;
        }
        if (plane_is_single(a->plane) && !a->put) /* for a tensor without elements */
                memset((char *)a->window->segment.data + a->at, 0, sizeof(uint64_t));
        access_parts(a);
}

int access_start(struct job *job, struct push_window *window, const Zero__Access *m, bool put,
                 uint64_t timeout_ms, struct request *r, struct fault *fault)
{
        struct access *a;
        int status = access_check(job, m, put, window->transfer_bytes, fault);

        if (!status)
                status = put ? puts_check(window, fault) : gets_check(window, fault);
        a = status ? NULL : malloc(sizeof *a);
        if (!a)
                return status ? status : fault_set(fault, ZERO_ENOMEM, "out of memory");
        *a = (struct access){ .turn = { .uid = job->uid, .begin = access_begin },
                              .job = job,
                              .window = window,
                              .request = r,
                              .put = put,
                              .id = ++job->x->tensors->last_put,
                              .tensor = m->tensor,
                              .plane = plane_from(m->plane),
                              .dtype = m->dtype,
                              .first = m->first,
                              .count = m->count,
                              .at = m->at,
                              .timeout_ms = timeout_ms };
        window->references++;
        window->gets += !put;
        window->puts += put;
        job_ref(job);
        r->subject = a;
        r->describe = access_describe;
        r->forget = access_forget;
        list_insert(&job->x->tensors->accesses, &a->link);
        turn_take(job->x->tensors, &a->turn);
        return 0;
}

static bool tensors_idle(const struct engine *x)
{
        return list_empty(&x->tensors->accesses) && list_empty(&x->tensors->norms) &&
               list_empty(&x->tensors->works) && !x->tensors->spare;
}

static void tensors_init(struct engine *x)
{
        list_init(&x->tensors->accesses);
        list_init(&x->tensors->norms);
        list_init(&x->tensors->works);
        list_init(&x->tensors->summings);
        list_init(&x->tensors->begun);
        list_init(&x->tensors->waiting);
        /* numbers of puts outlive the process */
        randombytes_buf(&x->tensors->last_put, sizeof x->tensors->last_put);
}

const struct module tensors_module = { .node_at = offsetof(struct engine, tensors),
                                       .node_bytes = sizeof(struct tensors),
                                       .node_init = tensors_init,
                                       .progress = spares_progress,
                                       .idle = tensors_idle,
                                       .job_dropped = access_fail };
static void tensors_summed(struct replica *h, uint32_t group)
{
        works_go_on(h->job);
}

const struct shard_observer tensors_observer = { .summed = tensors_summed, .settled = works_go_on };
