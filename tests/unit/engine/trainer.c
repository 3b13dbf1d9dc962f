/* Ranks as programs. */
#include "trainer.h"

#include <math.h>
#include <string.h>

#include "check.h"
#include "daemon/compute/device/gpu/gpu.h"
#include "daemon/step/reduce/reduce.h"
#include "stream.h"
#include "proto/cleanup.h"

enum { TIMEOUT_MS = 60000 };

/* One request under way; plays the session's part. */
enum { NO_SLOT = UINT32_MAX };

struct task {
        struct task *next;
        struct request request;
        struct trainer *trainer;
        struct op op;
        uint32_t slot;
        uint32_t event; /* that its message names */
        bool waited;    /* the program goes on when it ends */
};

static uint64_t mix(uint64_t z)
{
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
        z = (z ^ z >> 27) * 0x94d049bb133111eb;
        return z ^ z >> 31;
}

float trainer_gradient(uint64_t step, uint32_t rank, uint32_t tensor, uint32_t micro_batch,
                       uint64_t element)
{
        uint64_t h = mix(step * 0x9e3779b97f4a7c15 + rank);

        h = mix(h ^ ((uint64_t)tensor << 32 | micro_batch));
        h = mix(h + element * 0xd1342543de82ef95);
        return (float)((double)(int64_t)h * 0x1p-63);
}

void trainer_add(struct trainer *t, struct op op)
{
        t->ops = realloc(t->ops, (t->n_ops + 1) * sizeof *t->ops);
        CHECK(t->ops);
        t->ops[t->n_ops++] = op;
}

/* ---- the end of a request ---- */

static void task_unlink(struct task *task)
{
        struct task **p = &task->trainer->tasks;

        while (*p != task)
                p = &(*p)->next;
        *p = task->next;
        task->trainer->n_tasks--;
}

static const void *view_of(const struct trainer *t, uint32_t group, const struct request *r)
{
        const struct job *job = t->rank->job;
        const struct segment *gather = gather_segment(t->rank->holds.gather);

        if (r->result.fetch.serve)
                return (uint8_t *)state_serve(replica_sole(job)->state)->data +
                       r->result.fetch.offset;
        return gather ? (const char *)gather->data + r->result.fetch.offset : NULL;
}

static void note_result(struct trainer *t, const struct task *task)
{
        const struct request *r = &task->request;

        if (task->op.kind == OP_NORM) {
                t->norm = r->result.norm.norm;
                t->finite = r->result.norm.finite;
        } else if (task->op.kind == OP_ATTACH) {
                t->attempt = t->rank->job->attempt;
        } else if (task->op.kind == OP_FETCH) {
                t->views[task->op.group] = view_of(t, task->op.group, r);
        } else if (task->op.kind == OP_STEP) {
                t->attempt = r->result.step.attempt;
                t->version = r->result.step.version;
                t->skipped = r->result.step.skipped;
                t->grad_norm = r->result.step.grad_norm;
                t->loss_scale = r->result.step.loss_scale;
        }
}

static void heard(struct trainer *t, const struct op *op, int status, const char *text,
                  const struct request *r)
{
        if (t->heard)
                t->heard(t, op, status, text, r);
        else
                CHECK(status == 0, "rank %u, operation %d, group %u: %s: %s", t->needs.rank,
                      op->kind, op->group, zero_status_name(status), text);
}

static void task_finish(struct request *r, int status, const char *text)
{
        struct task *task = CONTAINER_OF(r, struct task, request);
        struct trainer *t = task->trainer;

        task_unlink(task);
        stream_answered(t->stream, task->event, status == 0);
        if (task->op.kind == OP_PUSH && task->slot != NO_SLOT)
                t->slots[task->slot] = 0;
        if (!r->gone) {
                if (task->waited)
                        t->busy = false;
                if (status == 0)
                        note_result(t, task);
                if (status == ZERO_EABORTED)
                        t->aborted = true;
                else if (status == ZERO_ELOSTRANK && t->patient)
                        t->waits = true;
                else
                        heard(t, &task->op, status, text, r);
        }
        free(task);
}

static struct task *task_new(struct trainer *t, const struct op *op)
{
        struct task *task = calloc(1, sizeof *task);

        CHECK(task);
        task->trainer = t;
        task->op = *op;
        task->next = t->tasks;
        t->tasks = task;
        t->n_tasks++;
        task->request.finish = task_finish;
        task->waited = op->kind != OP_PUSH && (op->kind != OP_RELEASE || !t->stream);
        if (task->waited)
                t->busy = true;
        request_begin(&t->net->nodes[t->node].x.requests, &task->request, uv_now(&t->net->loop),
                      t->needs.timeout_ms ? t->needs.timeout_ms : TIMEOUT_MS);
        return task;
}

/* ---- pushing ---- */

static const struct device_ops *trainer_ops(const struct trainer *t)
{
        return t->net->nodes[t->node].x.ops;
}

static bool free_slot(const struct trainer *t, uint32_t group, uint32_t *ret)
{
        const struct slots *slots = t->rank->window->slots;

        for (uint32_t i = slots->whole ? group : 0; i < (slots->whole ? group + 1 : slots->n); i++)
                if (!t->slots[i]) {
                        *ret = i;
                        return true;
                }
        return false;
}

void trainer_write_gradient(const struct trainer *t, const struct op *op, uint32_t slot)
{
        const struct push_window *w = t->rank->window;
        const struct layout_group *g = &t->layout->groups[op->group];
        enum zero_dtype dtype = t->needs.grad_dtype;
        char *dst = (char *)push_window_slot(w, slot);

        for (uint32_t i = 0; i < g->n_tensors; i++) {
                const struct layout_tensor *tensor = &t->layout->tensors[g->first_tensor + i];
                CLEANUP(cleanup_free)
                float *values = malloc((tensor->elements + 1) * sizeof *values);

                CHECK(values);
                for (uint64_t e = 0; e < tensor->elements; e++)
                        values[e] = trainer_gradient(t->step, t->needs.rank, g->first_tensor + i,
                                                     op->micro_batch, e);
                if (op->poison && tensor->elements && !tensor->frozen)
                        values[tensor->elements / 2] = t->needs.rank % 2 ? NAN : INFINITY;
                if (tensor->elements)
                        trainer_ops(t)->cast(dtype, dst + dtype_bytes(dtype, tensor->offset),
                                             ZERO_FP32, values, tensor->elements);
        }
}

void trainer_spoil_slot(const struct trainer *t, const struct op *op, uint32_t slot)
{
        const struct layout_group *g = &t->layout->groups[op->group];
        size_t n = dtype_bytes(t->needs.grad_dtype, g->elements);
        void *spoilt = malloc(n + 1);

        CHECK(spoilt);
        memset(spoilt, 0x41, n);
        if (n)
                trainer_ops(t)->copy((char *)push_window_slot(t->rank->window, slot), spoilt, n);
        free(spoilt);
}

/* Writes to the slot, now or when the GPU gets to it; false: all events are in use. */
static bool fill_slot(struct trainer *t, const struct op *op, uint32_t slot, uint32_t *ret_event)
{
        if (t->stream)
                return stream_write(t->stream, op, slot, ret_event);
        trainer_write_gradient(t, op, slot);
        return true;
}

/* Makes a call of the rank, as its session does. */
static void task_call(struct task *task, rank_call *call, bool ordered, const Zero__Request *m)
{
        struct rank *rank = task->trainer->rank;
        struct request *r = &task->request;
        struct fault fault = { 0 };
        int status = ordered ? ordered_run(rank, call, m, r, &fault) : call(rank, m, r, &fault);

        if (status)
                request_end(r, status, "%s", fault.text);
}

/* False: the slot is still in use. */
static bool begin_push(struct trainer *t, const struct op *op)
{
        const struct layout_group *g = &t->layout->groups[op->group];
        Zero__Request m = ZERO__REQUEST__INIT;
        Zero__Push push = ZERO__PUSH__INIT;
        struct task *task;
        uint32_t slot = NO_SLOT;

        if (!op->empty && !free_slot(t, op->group, &slot)) {
                if (op->micro_batch && t->rank->window->slots->whole)
                        reduce_reclaim(t->rank->job, op->group);
                return false;
        }
        if (!op->empty && !fill_slot(t, op, slot, &push.event))
                return false;
        task = task_new(t, op);
        task->event = push.event;
        task->slot = slot;
        if (!op->empty)
                t->slots[slot] = 1;
        push.empty = op->empty;
        push.group = op->group;
        push.attempt = t->attempt;
        push.micro_batch = op->micro_batch;
        push.slot = slot;
        push.last = op->last;
        if (op->present) {
                push.present.data = (uint8_t *)op->present;
                push.present.len = g->n_tensors;
        }
        m.body_case = ZERO__REQUEST__BODY_PUSH;
        m.push = &push;
        task_call(task, rank_push, true, &m);
        return true;
}

/* ---- the other operations ---- */

/* The rank's session has ended, and the rank hears why. */
static void trainer_fenced(void *arg, int status, const char *text)
{
        struct trainer *t = arg;
        struct op op = { .kind = OP_LEAVE };

        heard(t, &op, status, text, NULL);
        trainer_kill(t);
}

static void begin_attach(struct trainer *t, const struct op *op)
{
        struct engine *x = &t->net->nodes[t->node].x;
        struct task *task = task_new(t, op);
        struct rank_events events = { trainer_fenced, t };
        struct fault fault = { 0 };
        Zero__Layout *m;
        int r;

        if (layout_to_message(t->layout, &m)) {
                request_end(&task->request, ZERO_ENOMEM, "out of memory");
                return;
        }
        t->needs.n_events = 0;
        stream_free(t->stream);
        t->stream = NULL;
        if (!place_is_host(t->needs.windows))
                t->stream = stream_new(t);
        free(t->views);
        t->views = calloc(t->layout->n_groups, sizeof *t->views);
        CHECK(t->views);
        r = rank_attach(x, m, &t->needs, &events, &task->request, &t->rank, &fault);
        zero__layout__free_unpacked(m, NULL);
        free(t->slots);
        t->slots = calloc(t->layout->n_groups + t->needs.push_groups + 1, 1);
        CHECK(t->slots);
        if (r)
                request_end(&task->request, r, "%s", fault.text);
}

static bool begin_waiting(struct trainer *t, const struct op *op)
{
        Zero__Request m = ZERO__REQUEST__INIT;
        struct task *task;
        uint8_t kept[TRAINER_BLOB] = { (uint8_t)t->needs.rank, (uint8_t)t->step };
        Zero__Fetch fetch = ZERO__FETCH__INIT;
        Zero__Norm norm = ZERO__NORM__INIT;
        Zero__Step step = ZERO__STEP__INIT;
        Zero__Ahead ahead = ZERO__AHEAD__INIT;
        struct step_params_message params;

        if (op->kind == OP_STEP && t->stream && !stream_read_held(t->stream, &step.event))
                return false;
        task = task_new(t, op);
        task->event = step.event;
        fetch.group = op->group;
        fetch.version = t->rank->job->version;
        fetch.attempt = norm.attempt = step.attempt = t->attempt;
        ahead.attempt = t->attempt;
        if (op->params)
                step.params = ahead.params = step_params_to_message(op->params, &params);
        step.blob = (ProtobufCBinaryData){ sizeof kept, kept };
        if (op->kind == OP_FETCH) {
                m.fetch = &fetch;
                task_call(task, rank_fetch, false, &m);
        } else if (op->kind == OP_AHEAD) {
                m.ahead = &ahead;
                task_call(task, rank_ahead, false, &m);
        } else if (op->kind == OP_NORM) {
                m.body_case = ZERO__REQUEST__BODY_NORM;
                m.norm = &norm;
                task_call(task, rank_norm, true, &m);
        } else {
                m.body_case = ZERO__REQUEST__BODY_STEP;
                m.step = &step;
                task_call(task, rank_step, true, &m);
        }
        return true;
}

static bool begin_release(struct trainer *t, const struct op *op)
{
        Zero__Request m = ZERO__REQUEST__INIT;
        Zero__Release release = ZERO__RELEASE__INIT;
        struct task *task;

        if (t->stream && op->group < t->layout->n_groups &&
            !stream_read(t->stream, op->group, &release.event))
                return false;
        task = task_new(t, op);
        task->event = release.event;
        release.group = op->group;
        release.attempt = t->attempt;
        m.body_case = ZERO__REQUEST__BODY_RELEASE;
        m.release = &release;
        task_call(task, rank_release, false, &m);
        return true;
}

static void begin_prefetch(struct trainer *t, const struct op *op)
{
        Zero__Request m = ZERO__REQUEST__INIT;
        Zero__Prefetch prefetch = ZERO__PREFETCH__INIT;

        prefetch.group = op->group;
        prefetch.version = t->rank->job->version;
        m.prefetch = &prefetch;
        task_call(task_new(t, op), rank_prefetch, false, &m);
}

static bool op_begin(struct trainer *t, const struct op *op)
{
        switch (op->kind) {
        case OP_ATTACH:
                begin_attach(t, op);
                return true;
        case OP_PUSH:
                return begin_push(t, op);
        case OP_PREFETCH:
                begin_prefetch(t, op);
                return true;
        case OP_RELEASE:
                return begin_release(t, op);
        case OP_LEAVE:
                trainer_kill(t);
                return true;
        default:
                return begin_waiting(t, op);
        }
}

const void *trainer_view(struct trainer *t, uint32_t group)
{
        const struct layout_group *g = &t->layout->groups[group];
        size_t n = dtype_bytes(g->dtype, g->elements);

        if (!t->stream || n == 0)
                return t->views[group];
        t->seen = realloc(t->seen, n);
        CHECK(t->seen);
        gpu_ops()->copy(t->seen, t->views[group], n);
        return t->seen;
}

/* ---- running ---- */

static uint64_t next_random(uint64_t *seed)
{
        return mix(*seed += 0x9e3779b97f4a7c15);
}

static bool op_next(struct trainer *t)
{
        if (!op_begin(t, &t->ops[t->next]))
                return false;
        t->next++;
        return true;
}

/* Does what a client does when it hears that its attempt is over. */
static void program_again(struct trainer *t)
{
        const struct job *job = t->rank->job;

        for (uint32_t g = 0; g < t->layout->n_groups; g++)
                CHECK(t->rank->holds.of[g] != HOLD_HELD, "a lease has outlived its attempt");
        t->aborted = t->waits = false;
        t->attempt = job->attempt;
        t->next = job->version == t->from ? 0 : t->n_ops;
}

bool trainers_turn(struct trainer *ts, uint32_t n, uint64_t *seed)
{
        bool going = false, begun = false;
        uint32_t first = (uint32_t)(next_random(seed) % n);

        for (uint32_t i = 0; i < n; i++) {
                struct trainer *t = &ts[(first + i) % n];

                if (t->waits && t->rank->job->attempt != t->attempt)
                        t->aborted = true;
                if (t->aborted && !t->n_tasks)
                        program_again(t);
                if (!t->busy && !t->aborted && !t->waits && t->next < t->n_ops &&
                    next_random(seed) % 4)
                        begun = op_next(t) || begun;
                if (t->stream && !t->stopped && next_random(seed) % 4 == 0)
                        begun = stream_work(t->stream) || begun;
                going = going || t->busy || t->aborted || t->waits || t->next < t->n_ops ||
                        t->n_tasks;
        }
        if (begun)
                uv_run(&ts[0].net->loop, UV_RUN_NOWAIT);
        else if (going)
                net_turn(ts[0].net);
        return going;
}

void trainers_run(struct trainer *ts, uint32_t n, uint64_t seed)
{
        uint64_t begun = uv_hrtime();

        while (trainers_turn(ts, n, &seed))
                CHECK(uv_hrtime() - begun < 60000000000u, "the ranks do not come to an end");
        for (uint32_t i = 0; i < n; i++) {
                free(STEAL(ts[i].ops));
                ts[i].n_ops = ts[i].next = 0;
        }
}

void trainer_kill(struct trainer *t)
{
        struct rank *rank;

        while (t->tasks)
                request_cancel(&t->tasks->request);
        t->busy = t->aborted = t->waits = false;
        rank = t->rank;
        t->rank = NULL;
        rank_leave(rank, false);
        stream_forget(t->stream);
}

void trainer_free(struct trainer *t)
{
        trainer_kill(t);
        free(t->ops);
        free(t->slots);
        free(t->views);
        free(t->seen);
        stream_free(t->stream);
}
