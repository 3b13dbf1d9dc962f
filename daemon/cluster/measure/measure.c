/*
 * Measures the node; see measure.h.
 *
 * Work is cut into units.  A unit that ends begins the next one, until the time is up.  The rate is
 * that of all units, from the first one's begin to the last one's end.
 *
 * Invariants: the memory is there while a unit or a payload of it is in flight; its second half,
 * which other nodes read, is not written while a payload of it is.
 */
#include "daemon/cluster/measure/measure.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "daemon/compute/optimizer/optimizer.h"
#include "daemon/floor/base/chunk.h"
#include "daemon/job/core/job.h"
#include "daemon/job/transfer/transfer.h"
#include "proto/cleanup.h"

enum {
        HALF = MEASURE_BYTES / 2,
        PLANES_BYTES = 4 * sizeof(float) + 2, /* of an element: master, two moments, grad, serve */
        UNIT = 128 << 10,                     /* elements of an update; their planes are 2.3 MB */
        UNITS = MEASURE_BYTES / (PLANES_BYTES * UNIT),
        COPY = 4 << 20, /* bytes of a copy */
        TASKS_MAX = 128,
        PULLS = 8, /* payloads in flight to a node, as of a gathered group; but 2 from each node */
        PULLS_MAX = 2 * ZERO_NODE_MAX,
        SENDS_MAX = PULLS_MAX, /* payloads in flight from a node */
};

/* One unit at a time, as often as the time allows. */
struct unit {
        struct offload_task task;
        struct engine *x;
        uint32_t at; /* of the memory, in units */
        /* of a link */
        uint32_t node, open; /* open: the call and the payload, which are still to end */
        uint64_t transfer;
        size_t bytes;
        bool failed;
};

struct measure {
        uint8_t *memory; /* NULL: none */
        struct offload_task making, freeing;
        struct engine *x;
        uint64_t used_ms; /* loop time; when the memory was last needed */
        bool freed;       /* `freeing` is in progress */
        uint32_t sends;   /* payloads of the memory, to other nodes */
        uint32_t next;    /* unit of the memory that is used next */
        size_t sent;      /* of the second half: where the next payload begins */

        measure_done *done; /* NULL: nothing is being measured */
        void *arg;
        const struct way *way;
        bool begun; /* the memory is there */
        uint64_t begun_ns, ended_ns, bytes;
        uint64_t from[ZERO_NODE_MAX];
        uint32_t n, running; /* units */
        struct unit units[TASKS_MAX];
        struct fault fault;
        char why[200]; /* the last payload of a link failed */
};

/* What can be measured. */
struct way {
        const char *what;
        void (*begin)(struct engine *x);
        void (*run)(struct offload_task *task, uint32_t worker); /* of one unit; NULL: no task */
        uint32_t units, bytes; /* of the memory; that a unit reads and writes */
};

static bool time_is_up(const struct measure *s)
{
        return uv_hrtime() - s->begun_ns >= MEASURE_MS * UINT64_C(1000000) ||
               s->bytes >= MEASURE_MOST;
}

static void end(struct measure *s)
{
        struct measured measured = { .bytes_per_s = NAN };
        double seconds = (double)(s->ended_ns - s->begun_ns) / 1e9;
        measure_done *done = STEAL(s->done);

        if (s->fault.status) {
                done(s->arg, s->fault.status, s->fault.text, NULL);
                return;
        }
        if (s->bytes)
                measured.bytes_per_s = (double)s->bytes / seconds;
        for (uint32_t n = 0; s->bytes && n < ZERO_NODE_MAX; n++)
                measured.from[n] = (double)s->from[n] / seconds;
        done(s->arg, 0, NULL, &measured);
}

/* ---- updates and copies ---------------------------------------------------------- */

static void update_run(struct offload_task *task, uint32_t worker)
{
        const struct unit *u = CONTAINER_OF(task, struct unit, task);
        const struct device_ops *ops = u->x->ops;
        const double adamw[OPTIMIZER_VALUES] = { 1e-3, 0.9, 0.999, 1e-8, 0.01 };
        struct update_scalars scalars = optimizer_adamw.scalars(adamw, 1, 1);
        float *memory = (float *)u->x->measure->memory, *planes[4];
        uint16_t *serve = (uint16_t *)(memory + 4 * (size_t)UNITS * UNIT);
        uint32_t chunk = chunk_default();

        for (uint32_t i = 0, n; i < UNIT; i += n) {
                size_t at = (size_t)u->at * UNIT + i;

                n = UNIT - i < chunk ? UNIT - i : chunk;
                for (size_t p = 0; p < 4; p++)
                        planes[p] = memory + p * UNITS * UNIT + at;
                ops->update(optimizer_adamw.rule, &scalars, n, planes, planes[3], NULL);
                ops->serve(ZERO_BF16, serve + at, planes[0], n);
        }
}

static void copy_run(struct offload_task *task, uint32_t worker)
{
        const struct unit *u = CONTAINER_OF(task, struct unit, task);
        uint8_t *memory = u->x->measure->memory;

        u->x->ops->copy(memory + (size_t)u->at * COPY, memory + HALF + (size_t)u->at * COPY, COPY);
}

static void task_begin(struct unit *u)
{
        struct measure *s = u->x->measure;

        u->at = s->next++ % s->way->units;
        s->running++;
        offload_submit(u->x->offload, OFFLOAD_READ, OFFLOAD_NODE, &u->task);
}

static void task_done(struct offload_task *task)
{
        struct unit *u = CONTAINER_OF(task, struct unit, task);
        struct measure *s = u->x->measure;

        s->running--;
        s->bytes += s->way->bytes;
        s->ended_ns = uv_hrtime();
        if (!time_is_up(s))
                task_begin(u);
        else if (s->running == 0)
                end(s);
}

/* A thread that ends a unit finds the next one waiting. */
static void tasks_begin(struct engine *x)
{
        struct measure *s = x->measure;

        s->n = 2 * offload_workers(x->offload);
        s->n = s->n < TASKS_MAX ? s->n : TASKS_MAX;
        for (uint32_t i = 0; i < s->n; i++) {
                s->units[i] = (struct unit){ .x = x };
                s->units[i].task.run = s->way->run;
                s->units[i].task.done = task_done;
                task_begin(&s->units[i]);
        }
}

/* ---- links ------------------------------------------------------------------------ */

static void pull_begin(struct unit *u);

/* The other nodes must have sent something, else this names one that has not. */
static void pulls_end(struct engine *x)
{
        struct measure *s = x->measure;

        for (uint32_t n = 0; n < x->cluster->n_nodes && !s->fault.status; n++)
                if (n != x->cluster->self && !s->from[n])
                        fault_set(&s->fault, ZERO_EPEER, "node %s sent nothing to node %s: %s",
                                  node_name(x, n), node_name(x, x->cluster->self), s->why);
        end(s);
}

/* Begins what has ended, or failed; with the time up, waits for all. */
static void pulls_advance(struct engine *x)
{
        struct measure *s = x->measure;
        bool over = time_is_up(s) || x->stopping;

        for (uint32_t i = 0; i < s->n && !over; i++)
                if (s->units[i].open == 0)
                        pull_begin(&s->units[i]);
        if (over && s->running == 0)
                pulls_end(x);
}

/* The next begins at once, or with the tick if this one failed. */
static void pull_ended(struct unit *u, bool failed)
{
        struct measure *s = u->x->measure;

        u->failed = u->failed || failed;
        if (--u->open)
                return;
        s->running--;
        if (!u->failed) {
                s->bytes += u->bytes;
                s->from[u->node] += u->bytes;
                s->ended_ns = uv_hrtime();
                pulls_advance(u->x);
        }
}

static void pull_landed(void *arg, int status)
{
        pull_ended(arg, status != 0);
}

static void pull_answered(void *arg, int status, const char *text, const Zero__LinkMessage *m)
{
        struct unit *u = arg;

        if (status) {
                snprintf(u->x->measure->why, sizeof u->x->measure->why, "%s", text);
                fabric_forget(u->x->fabric, u->node, u->transfer);
        }
        pull_ended(u, status != 0);
}

static void pull_begin(struct unit *u)
{
        struct engine *x = u->x;
        Zero__LinkMessage m = job_message("");
        Zero__Pull pull = ZERO__PULL__INIT;

        u->failed = false;
        u->transfer = fabric_transfer(x->fabric, u->node);
        if (fabric_expect(x->fabric, u->node, u->transfer, TRAFFIC_CONTROL,
                          x->measure->memory + u->at * u->bytes, u->bytes, pull_landed, u))
                return; /* the node is down: the tick tries again */
        pull.kind = ZERO__PULL__KIND__MEASURE;
        pull.transfer = u->transfer;
        pull.count = u->bytes;
        m.body_case = ZERO__LINK_MESSAGE__BODY_PULL;
        m.pull = &pull;
        u->open = 2;
        x->measure->running++;
        call_send(x, u->node, &m, MEASURE_CALL_MS, pull_answered, u);
}

static void pulls_begin(struct engine *x)
{
        struct measure *s = x->measure;
        uint32_t others = x->cluster->n_nodes - 1;
        size_t bytes;

        s->n = others == 0 ? 0 : 2 * others > PULLS ? 2 * others : PULLS / others * others;
        bytes = s->n ? HALF / s->n / 4096 * 4096 : 0;
        bytes = bytes < x->part_bytes ? bytes : x->part_bytes;
        for (uint32_t i = 0; i < s->n; i++)
                s->units[i] = (struct unit){ .x = x,
                                             .at = i,
                                             .node = (x->cluster->self + 1 + i % others) %
                                                     x->cluster->n_nodes,
                                             .bytes = bytes };
        if (s->n)
                pulls_advance(x);
        else
                end(s);
}

/* ---- bytes for another node ---------------------------------------------------------- */

struct send {
        struct engine *x;
        uint32_t node;
        uint64_t call;
};

static void send_answer(struct engine *x, uint32_t node, uint64_t call, int status,
                        const char *text)
{
        Zero__LinkMessage m = job_message("");

        m.call = call;
        answer(x, node, &m, status, text);
}

static void send_done(void *arg, int status)
{
        struct send *send = arg;
        struct measure *s = send->x->measure;

        s->sends--;
        s->used_ms = engine_now(send->x);
        send_answer(send->x, send->node, send->call, status ? ZERO_EPEER : ZERO_OK,
                    status ? "the payload was cut off" : "");
        free(send);
}

void measure_pull_message(struct engine *x, uint32_t node, const Zero__LinkMessage *m)
{
        struct measure *s = x->measure;
        bool written = s->done && s->way->run == update_run;
        size_t n = m->pull->count, at;
        struct send *send = NULL;

        if (s->memory && !s->freed && !written && s->sends < SENDS_MAX && n && n <= HALF)
                send = malloc(sizeof *send);
        if (!send) {
                send_answer(x, node, m->call, ZERO_EBUSY, "the node has nothing to measure with");
                return;
        }
        *send = (struct send){ x, node, m->call };
        at = s->sent + n <= HALF ? s->sent : 0;
        s->sent = at + n;
        s->sends++;
        if (fabric_payload(x->fabric, node, m->pull->transfer, TRAFFIC_CONTROL,
                           s->memory + HALF + at, n, send_done, send))
                send_done(send, -ENOTCONN);
}

/* ---- the memory ------------------------------------------------------------------- */

/* Of the same kind as planes and windows. */
static void memory_make(struct offload_task *task, uint32_t worker)
{
        struct measure *s = CONTAINER_OF(task, struct measure, making);
        void *p = s->memory;

        if (!p)
                p = mmap(NULL, MEASURE_BYTES, PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
        s->memory = p == MAP_FAILED ? NULL : p;
}

static void memory_made(struct offload_task *task)
{
        struct measure *s = CONTAINER_OF(task, struct measure, making);

        s->used_ms = engine_now(s->x);
        s->begun = true;
        s->begun_ns = s->ended_ns = uv_hrtime();
        if (s->memory) {
                s->way->begin(s->x);
                return;
        }
        fault_set(&s->fault, ZERO_ENOMEM, "node %s has no %d MiB of memory to measure with",
                  node_name(s->x, s->x->cluster->self), MEASURE_BYTES >> 20);
        end(s);
}

static void memory_free(struct offload_task *task, uint32_t worker)
{
        munmap(CONTAINER_OF(task, struct measure, freeing)->memory, MEASURE_BYTES);
}

static void memory_freed(struct offload_task *task)
{
        struct measure *s = CONTAINER_OF(task, struct measure, freeing);

        s->memory = NULL;
        s->freed = false;
}

static void measure_tick(struct engine *x)
{
        struct measure *s = x->measure;

        if (s->done && s->begun && !s->way->run)
                pulls_advance(x);
        if (!s->memory || s->done || s->sends || s->freed ||
            (!x->stopping && engine_now(x) - s->used_ms < MEASURE_KEEP_MS))
                return;
        s->freed = true;
        s->freeing.run = memory_free;
        s->freeing.done = memory_freed;
        offload_submit(x->offload, OFFLOAD_READ, OFFLOAD_NODE, &s->freeing);
}

/* ---- start --------------------------------------------------------------------------- */

static const struct way ways[] = {
        { "update", tasks_begin, update_run, UNITS, UNIT *(7 * sizeof(float) + 2) },
        { "copy", tasks_begin, copy_run, HALF / COPY, 2 * COPY },
        { "link", pulls_begin, NULL, 0, 0 },
};

static const struct way *way_find(const char *what)
{
        for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++)
                if (strcmp(ways[i].what, what) == 0)
                        return &ways[i];
        return NULL;
}

static int check_jobs(struct engine *x, struct fault *fault)
{
        list_for_each (&x->jobs, item) {
                const struct job *job = CONTAINER_OF(item, struct job, link);

                for (uint32_t r = 0; r < job->world_size; r++)
                        if (job->ranks[r].here)
                                return fault_set(fault, ZERO_EBUSY,
                                                 "job '%s' has ranks: a measure would slow their "
                                                 "steps, and count what they leave over; measure "
                                                 "when no job has ranks",
                                                 job->name);
        }
        return 0;
}

int measure_start(struct engine *x, const char *what, measure_done *done, void *arg,
                  struct fault *fault)
{
        const struct way *way = way_find(what);
        struct measure *s = x->measure;
        const char *self = node_name(x, x->cluster->self);
        int r = check_jobs(x, fault);

        if (r)
                return r;
        if (!way)
                return fault_set(fault, ZERO_EINVAL,
                                 "what can be measured is update, copy or link, not '%.20s'", what);
        if (s->done || s->freed || (way->run == update_run && s->sends))
                return fault_set(fault, ZERO_EBUSY, "node %s measures already: ask again later",
                                 self);
        if (way->run == update_run && x->states_away)
                return fault_set(
                        fault, ZERO_EINVAL,
                        "node %s updates on GPUs, which it does not measure: give --update", self);
        s->done = done;
        s->arg = arg;
        s->way = way;
        s->begun = false;
        s->bytes = 0;
        s->running = 0;
        s->fault = (struct fault){ 0 };
        memset(s->from, 0, sizeof s->from);
        s->making.run = memory_make;
        s->making.done = memory_made;
        offload_submit(x->offload, OFFLOAD_READ, OFFLOAD_NODE, &s->making);
        return 0;
}

static void measure_init(struct engine *x)
{
        x->measure->x = x;
}

static bool measure_idle(const struct engine *x)
{
        return !x->measure->done && !x->measure->memory;
}

const struct module measure_module = { .node_at = offsetof(struct engine, measure),
                                       .node_bytes = sizeof(struct measure),
                                       .node_init = measure_init,
                                       .tick = measure_tick,
                                       .idle = measure_idle };
