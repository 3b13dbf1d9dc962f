/*
 * The phases of a restore.
 *
 * The coordinator reads manifest and layout.  LOAD goes to all nodes, which make their part beside
 * the present state and check every byte of it.  SWAP puts the parts in their place everywhere.
 * Before SWAP nothing has changed, whatever fails.  A node that dies during the swap may keep the
 * state from before: then ranks are told that nodes are at different versions, and the job has to
 * be restored again.
 */
#include "daemon/cluster/checkpoint/operation.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/cleanup.h"

static void swapped(struct operation *op)
{
        operation_end(op, ZERO_OK, "");
}

/* Attempts continue above all numbers that any node has heard of, and above the restored one's. */
static void loaded(struct operation *op)
{
        Zero__Snapshot s = ZERO__SNAPSHOT__INIT;

        s.phase = ZERO__SNAPSHOT__PHASE__SWAP;
        s.attempt = op->manifest.attempt;
        for (uint32_t n = 0; n < op->x->cluster->n_nodes; n++)
                if (op->parts[n].attempt > s.attempt)
                        s.attempt = op->parts[n].attempt;
        s.attempt++;
        operation_enter(op, OPERATION_SWAPPING);
        operation_ask(op, NODE_SET_ALL, &s, swapped);
}

static void read_run(struct blocking_work *job)
{
        struct operation *op = CONTAINER_OF(job, struct operation, disk);
        struct snapshot_place place = { op->x->conf->checkpoint_dir, op->directory, op->uid };
        struct fault *fault = &op->read.fault;
        CLEANUP(cleanup_close) int dir = -1;
        int r = snapshot_place_open(&place, PLACE_READ, &dir, fault);

        if (r == 0)
                (void)snapshot_open_checkpoint(dir, op->uid, &op->read.manifest, &op->read.layout,
                                               fault);
}

/* A job that is there keeps its own.  A node of the release before can only add up in fp32. */
static void keep_accumulate(struct operation *op)
{
        const struct job *job = job_find(op->x, op->job);

        if (job)
                op->manifest.job.accumulate = job->accumulate;
        else if (!fabric_all_speak(op->x->fabric, MESSAGES_ACCUMULATE))
                op->manifest.job.accumulate = ZERO_ACCUMULATE_FP32;
}

static void read_done(struct blocking_work *job)
{
        struct operation *op = CONTAINER_OF(job, struct operation, disk);
        Zero__Snapshot s = ZERO__SNAPSHOT__INIT;

        if (operation_gone(op))
                return;
        op->layout = STEAL(op->read.layout);
        op->manifest = op->read.manifest;
        op->fault = op->read.fault;
        keep_accumulate(op);
        if (!op->fault.status && manifest_format(&op->manifest, &op->text))
                fault_set(&op->fault, ZERO_ENOMEM, "out of memory");
        operation_enter(op, OPERATION_LOADING);
        s.phase = ZERO__SNAPSHOT__PHASE__LOAD;
        s.manifest = op->text;
        s.layout.data = op->layout;
        s.layout.len = op->manifest.layout_bytes;
        if (!op->fault.status)
                (void)convert_layout(op, &s.target, &op->fault);
        operation_ask(op, op->fault.status ? NODE_SET_NONE : NODE_SET_ALL, &s, loaded);
        free(s.target.data);
}

int restore_order(struct engine *x, const struct order *order, uint64_t *ret_id,
                  struct fault *fault)
{
        struct snapshot_place place = { x->conf->checkpoint_dir, order->directory, order->uid };
        const struct job *job = job_find(x, order->job);
        struct operation *op;
        int r = snapshot_place_check(&place, fault);

        if (r)
                return r;
        if (!job_name_valid(order->job))
                return fault_set(fault, ZERO_EINVAL, "'%.60s' is not a valid job name", order->job);
        if (job && order->uid != 0 && order->uid != job->uid)
                return fault_set(fault, ZERO_EPERM, "job '%s' belongs to user %u", job->name,
                                 job->uid);
        r = operation_new(x, order, true, &op, fault);
        if (r)
                return r;
        op->phase = OPERATION_READING;
        op->pending++;
        op->disk = (struct blocking_work){ .run = read_run,
                                           .done = read_done,
                                           .what = "to read the checkpoint for job",
                                           .of = op->job,
                                           .uid = op->uid };
        blocking_submit(x->blocking, LANE_CHECKPOINTS, &op->disk);
        *ret_id = op->id;
        return 0;
}
