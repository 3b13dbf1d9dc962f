/*
 * A checkpoint or a restore, as the job's coordinator runs it.
 *
 * A phase asks some nodes a question; the next phase begins when all have answered.  The first
 * refusal ends the operation, and all nodes are told to forget it.  A job's newest operation is
 * kept when it is over, so that the client that ordered it learns its outcome.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/cluster/checkpoint/capture.h"
#include "daemon/floor/base/log.h"
#include "proto/cleanup.h"

/* BUSY_MS: how long a checkpoint waits for nodes that still end the job's last one. */
enum { OPERATIONS_MAX = 256, LEAVE_MS = 3000, BUSY_MS = 5000 };

struct question {
        struct operation *op;
        uint32_t part;
};

static bool is_over(const struct operation *op)
{
        return op->phase == OPERATION_DONE || op->phase == OPERATION_FAILED;
}

static void operation_free(struct operation *op)
{
        list_remove(&op->link);
        free(op->directory);
        free(op->convert);
        free(op->text);
        free(op->layout);
        free(op->read.text);
        free(op->read.layout);
        free(op);
}

const char *operation_phase_name(enum operation_phase phase)
{
        static const char *const names[] = {
                [OPERATION_PREPARING] = "preparing",  [OPERATION_COPYING] = "copying",
                [OPERATION_WRITING] = "writing",      [OPERATION_PUBLISHING] = "publishing",
                [OPERATION_READING] = "reading",      [OPERATION_LOADING] = "loading",
                [OPERATION_SWAPPING] = "taking over", [OPERATION_DONE] = "done",
                [OPERATION_FAILED] = "failed",
        };

        return names[phase];
}

static struct operation *find(const struct engine *x, const char *job)
{
        list_for_each (&x->checkpoints->operations, item) {
                struct operation *op = CONTAINER_OF(item, struct operation, link);

                if (strcmp(op->job, job) == 0)
                        return op;
        }
        return NULL;
}

const struct operation *operation_find(const struct engine *x, const char *job)
{
        return find(x, job);
}

bool restore_runs(const struct engine *x, const char *job)
{
        const struct operation *op = find(x, job);

        return op && op->restore && !is_over(op);
}

static uint32_t n_parts(const struct operation *op)
{
        return op->restore ? op->x->cluster->n_nodes : op->x->placement.n_owners;
}

/* The node that has the part. */
static uint32_t operation_node(const struct operation *op, uint32_t part)
{
        return op->restore ? part : op->x->placement.node[part];
}

static uint64_t sum(const struct operation *op, uint64_t (*of)(const struct part *))
{
        uint64_t n = 0;

        for (uint32_t i = 0; i < n_parts(op); i++)
                n += of(&op->parts[i]);
        return n;
}

static uint64_t part_bytes(const struct part *p)
{
        return p->bytes;
}

static uint64_t part_done(const struct part *p)
{
        return p->done;
}

uint64_t operation_bytes(const struct operation *op)
{
        uint64_t bytes = 0;

        if (!op->restore)
                return sum(op, part_bytes);
        for (uint32_t o = 0; o < op->manifest.n_owners; o++)
                bytes += op->manifest.shards[o].bytes;
        return bytes;
}

uint64_t operation_done_bytes(const struct operation *op)
{
        return sum(op, part_done);
}

/* ---- begin and end ---------------------------------------------------------------- */

/* Frees the oldest operation that is over, so that those of dropped jobs do not pile up.  False:
 * none is over. */
static bool oldest_free(struct engine *x)
{
        uint32_t n = 0;

        list_for_each (&x->checkpoints->operations, item) {
                n++;
        }
        for (struct list *item = x->checkpoints->operations.prev, *before;
             item != &x->checkpoints->operations; item = before) {
                struct operation *op = CONTAINER_OF(item, struct operation, link);

                before = item->prev;
                if (n < OPERATIONS_MAX)
                        return true;
                if (is_over(op) && op->pending == 0) {
                        operation_free(op);
                        n--;
                }
        }
        return n < OPERATIONS_MAX;
}

int operation_new(struct engine *x, const struct order *order, bool restore, struct operation **ret,
                  struct fault *fault)
{
        struct operation *op = find(x, order->job);

        if (op && !is_over(op))
                return fault_set(fault, ZERO_EBUSY, "a %s of job '%s' is in progress (%s)",
                                 op->restore ? "restore" : "checkpoint", op->job,
                                 operation_phase_name(op->phase));
        if (op && op->pending)
                op->superseded = true; /* a node still owes an answer */
        else if (op)
                operation_free(op);
        if (!oldest_free(x))
                return fault_set(fault, ZERO_EBUSY,
                                 "%d checkpoints and restores are in progress: try again",
                                 OPERATIONS_MAX);
        op = calloc(1, sizeof *op);
        if (!op)
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        op->directory = strdup(order->directory);
        op->convert = order->convert ? strdup(order->convert) : NULL;
        if (!op->directory || (order->convert && !op->convert)) {
                free(op->directory);
                free(op->convert);
                free(op);
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        }
        op->x = x;
        op->id = ++x->checkpoints->last_operation;
        op->restore = restore;
        snprintf(op->job, sizeof op->job, "%s", order->job);
        op->uid = order->uid;
        op->keep = order->keep;
        op->begun_ms = op->moved_ms = engine_now(x);
        /* in front: the newest operation of a job is found first */
        list_insert(x->checkpoints->operations.next, &op->link);
        *ret = op;
        return 0;
}

void operation_enter(struct operation *op, enum operation_phase phase)
{
        op->phase = phase;
        op->moved_ms = engine_now(op->x);
}

static Zero__LinkMessage message_of(const struct operation *op)
{
        Zero__LinkMessage m = job_message(op->job);

        m.body_case = ZERO__LINK_MESSAGE__BODY_SNAPSHOT;
        return m;
}

static void tell_cancel(const struct operation *op)
{
        Zero__LinkMessage m = message_of(op);
        Zero__Snapshot cancel = ZERO__SNAPSHOT__INIT;

        cancel.id = op->id;
        cancel.phase = ZERO__SNAPSHOT__PHASE__CANCEL;
        m.snapshot = &cancel;
        send_all(op->x, &m);
}

void operation_end(struct operation *op, int status, const char *text)
{
        const char *what = op->restore ? "restore from" : "checkpoint in";

        op->ended_ms = engine_now(op->x);
        op->phase = status ? OPERATION_FAILED : OPERATION_DONE;
        free(STEAL(op->text));
        free(STEAL(op->layout));
        if (status) {
                fault_set(&op->fault, status, "%s", text);
                log_error_for(op->uid, "job %s: %s %s failed: %s", op->job, what, op->directory,
                              op->fault.text);
                tell_cancel(op);
        } else {
                log_info_for(op->uid, "job %s: %s %s done, version %llu", op->job, what,
                             op->directory, (unsigned long long)op->manifest.version);
                if (!op->restore)
                        schedule_done(op->x, op);
        }
}

/* ---- phases -------------------------------------------------------------------------- */

static void part_note(struct part *p, const Zero__Snapshotted *s)
{
        if (s->bytes)
                p->bytes = s->bytes;
        if (s->buffer) {
                p->buffer = s->buffer;
                p->stall_us = s->stall_us;
        }
        p->version = s->version ? s->version : p->version;
        p->attempt = s->attempt ? s->attempt : p->attempt;
        p->copy_us = s->copy_us ? s->copy_us : p->copy_us;
        if (s->hash.len == MANIFEST_HASH)
                memcpy(p->hash, s->hash.data, MANIFEST_HASH);
}

static void operation_went_on(struct operation *op)
{
        void (*next)(struct operation * op) = op->next;

        if (op->pending)
                return;
        if (is_over(op)) { /* the operation was cancelled */
                if (op->x->stopping || op->superseded)
                        operation_free(op);
        } else if (op->fault.status) {
                struct fault fault = op->fault;

                operation_end(op, fault.status, fault.text);
                if (op->x->stopping)
                        operation_free(op);
        } else {
                next(op);
        }
}

bool operation_gone(struct operation *op)
{
        bool over = is_over(op);

        op->pending--;
        if (over)
                operation_went_on(op);
        return over;
}

static void question_answered(void *arg, int status, const char *text, const Zero__LinkMessage *m)
{
        struct question *q = arg;
        struct operation *op = q->op;
        uint32_t part = q->part;

        free(q);
        if (status == ZERO_EBUSY && op->phase == OPERATION_PREPARING &&
            engine_now(op->x) - op->begun_ms < BUSY_MS) {
                node_set_add(&op->busy, part); /* still pending: the tick asks again */
                return;
        }
        op->pending--;
        if (status == ZERO_OK && m && m->body_case == ZERO__LINK_MESSAGE__BODY_SNAPSHOTTED)
                part_note(&op->parts[part], m->snapshotted);
        else if (!op->fault.status)
                fault_set(&op->fault, status ? status : ZERO_EPROTO, "node %s: %s",
                          node_name(op->x, operation_node(op, part)),
                          status ? text : "the node's answer is of another kind");
        operation_went_on(op);
}

void operation_ask(struct operation *op, node_set parts, Zero__Snapshot *s,
                   void (*next)(struct operation *op))
{
        Zero__LinkMessage m = message_of(op);

        s->id = op->id;
        s->uid = op->uid;
        s->directory = op->directory;
        op->next = next;
        op->pending++; /* until all nodes have been asked */
        for (uint32_t i = 0; i < n_parts(op); i++) {
                struct question *q = node_set_has(parts, i) ? malloc(sizeof *q) : NULL;

                if (!node_set_has(parts, i))
                        continue;
                if (!q) {
                        fault_set(&op->fault, ZERO_ENOMEM, "out of memory");
                        continue;
                }
                *q = (struct question){ op, i };
                op->pending++;
                op->parts[i].asked = true;
                s->owner = op->restore ? 0 : i;
                m.snapshot = s;
                call_send(op->x, operation_node(op, i), &m, OPERATION_CALL_MS, question_answered,
                          q);
        }
        op->pending--;
        operation_went_on(op);
}

/* The parts are no longer pending. */
static node_set operation_take_busy(struct operation *op)
{
        node_set parts = op->busy;

        op->busy = NODE_SET_NONE;
        op->pending -= node_set_count(parts);
        return parts;
}

static void operation_ask_busy(struct operation *op)
{
        Zero__Snapshot s = ZERO__SNAPSHOT__INIT;
        node_set parts;

        if (!node_set_any(op->busy))
                return;
        parts = operation_take_busy(op);
        s.phase = ZERO__SNAPSHOT__PHASE__PREPARE;
        if (is_over(op) || op->fault.status)
                parts = NODE_SET_NONE;
        operation_ask(op, parts, &s, op->next);
}

/* ---- progress --------------------------------------------------------------------------- */

static void snapshot_progress_message(struct engine *x, uint32_t node, const Zero__LinkMessage *m)
{
        const Zero__SnapshotProgress *p = m->snapshot_progress;
        struct operation *op = find(x, m->job);
        uint32_t part = op && op->restore ? node : p->owner;

        if (!op || op->id != p->id || is_over(op) || part >= n_parts(op) ||
            operation_node(op, part) != node)
                return;
        if (p->bytes != op->parts[part].done)
                op->moved_ms = engine_now(x);
        op->parts[part].done = p->bytes;
}

/* Disks may be slow, but not forever. */
static void operation_watch(struct operation *op)
{
        if (is_over(op) || engine_now(op->x) - op->moved_ms < OPERATION_SILENCE_MS)
                return;
        operation_end(op, ZERO_EDEADLINE,
                      "no byte was written or read for ten minutes: look at the disk of the "
                      "checkpoint directory");
}

static void operations_tick(struct engine *x)
{
        list_for_each (&x->checkpoints->operations, item) {
                struct operation *op = CONTAINER_OF(item, struct operation, link);

                operation_watch(op);
                operation_ask_busy(op); /* frees it, perhaps */
        }
        checkpoints_due(x);
        captures_tick(x);
        loadings_tick(x);
        if (x->stopping && engine_now(x) - x->checkpoints->stopped_ms > LEAVE_MS)
                captures_leave(x);
}

/* ---- stop ----------------------------------------------------------------------------------- */

static bool operations_idle(const struct engine *x)
{
        const struct checkpoints *c = x->checkpoints;

        return list_empty(&c->captures) && list_empty(&c->loadings);
}

/* Cancels checkpoints and restores that a lost coordinator has begun here. */
static void operations_down(struct engine *x, uint32_t node, const char *why)
{
        capture_cancel(x, node, 0, "the link to the coordinator was lost");
        loading_cancel(x, node, 0);
}

/* ---- messages ---------------------------------------------------------------------------- */

void snapshot_message(struct engine *x, uint32_t node, const Zero__LinkMessage *m)
{
        if (m->body_case == ZERO__LINK_MESSAGE__BODY_SNAPSHOT_PROGRESS) {
                snapshot_progress_message(x, node, m);
                return;
        }
        if (job_name_valid(m->job) && m->snapshot->phase == ZERO__SNAPSHOT__PHASE__SCHEDULE) {
                schedule_message(x, node, m);
                return;
        }
        if (!job_name_valid(m->job) || node != coordinator_of(x, m->job)) {
                answer(x, node, m, ZERO_EPROTO, "the request is not from the job's coordinator");
                return;
        }
        switch (m->snapshot->phase) {
        case ZERO__SNAPSHOT__PHASE__PREPARE:
                capture_prepare(x, node, m);
                break;
        case ZERO__SNAPSHOT__PHASE__COPY:
        case ZERO__SNAPSHOT__PHASE__WRITE:
        case ZERO__SNAPSHOT__PHASE__PUBLISH:
                capture_phase(x, node, m);
                break;
        case ZERO__SNAPSHOT__PHASE__LOAD:
                loading_begin(x, node, m);
                break;
        case ZERO__SNAPSHOT__PHASE__SWAP:
                loading_swap(x, node, m);
                break;
        case ZERO__SNAPSHOT__PHASE__CANCEL:
                capture_cancel(x, node, m->snapshot->id, "another node's part failed");
                loading_cancel(x, node, m->snapshot->id);
                break;
        default:
                answer(x, node, m, ZERO_EPROTO, "unknown phase of a checkpoint or restore");
        }
}

void operations_stop(struct engine *x)
{
        for (uint32_t n = 0; n < x->cluster->n_nodes; n++)
                operations_down(x, n, NULL);
        list_for_each (&x->checkpoints->operations, item) {
                struct operation *op = CONTAINER_OF(item, struct operation, link);

                (void)operation_take_busy(op);
                if (op->pending == 0) {
                        operation_free(op);
                } else { /* a disk has to answer, which frees it */
                        op->phase = OPERATION_FAILED;
                        op->superseded = true;
                        list_remove(&op->link);
                }
        }
        x->checkpoints->stopped_ms = engine_now(x);
        schedules_free(x);
}

static void checkpoints_init(struct engine *x)
{
        list_init(&x->checkpoints->operations);
        list_init(&x->checkpoints->schedules);
        list_init(&x->checkpoints->captures);
        list_init(&x->checkpoints->loadings);
}

const struct module checkpoint_module = { .node_at = offsetof(struct engine, checkpoints),
                                          .node_bytes = sizeof(struct checkpoints),
                                          .node_init = checkpoints_init,
                                          .progress = operations_tick,
                                          .node_down = operations_down,
                                          .idle = operations_idle,
                                          .job_admit = loadings_admit,
                                          .name_dropped = schedule_dropped,
                                          .job_dropped = captures_job_dropped };
