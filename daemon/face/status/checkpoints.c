/* Checkpoints and restores, as the node that coordinates the job knows them. */
#include "daemon/face/status/status.h"

#include <math.h>

#include "daemon/cluster/checkpoint/checkpoint.h"

static bool operation_over(const struct operation *op)
{
        return op->phase == OPERATION_DONE || op->phase == OPERATION_FAILED;
}

struct status_schedule *report_schedule(struct arena *arena, const struct engine *x,
                                        const char *job)
{
        const struct schedule *s = schedule_find(x, job);
        struct status_schedule *ret = s ? arena_new(arena, sizeof *ret) : NULL;

        if (ret)
                *ret = (struct status_schedule){ s->every, s->next_version,
                                                 arena_copy(arena, s->directory), s->last_version,
                                                 s->last_unix_s };
        return ret;
}

struct status_checkpoint *report_checkpoint(struct arena *arena, const struct engine *x,
                                            const char *job)
{
        const struct operation *op = operation_find(x, job);
        struct status_checkpoint *ret = op && !op->restore ? arena_new(arena, sizeof *ret) : NULL;
        bool over = op && operation_over(op);

        if (!ret)
                return NULL;
        ret->version = op->manifest.version;
        ret->took_s = over ? (double)(op->ended_ms - op->begun_ms) / 1000 : NAN;
        ret->age_s =
                op->phase == OPERATION_DONE ? (double)(engine_now(x) - op->ended_ms) / 1000 : NAN;
        ret->bytes = operation_bytes(op);
        ret->done_bytes = operation_done_bytes(op);
        ret->error = op->fault.status ? arena_copy(arena, op->fault.text) : NULL;
        ret->failed = op->fault.status != 0;
        return ret;
}

static double seconds_or_null(uint64_t us)
{
        return us ? (double)us / 1e6 : NAN;
}

static void report_times(const struct operation *op, struct status_operation *ret)
{
        uint64_t stall_us = 0, copy_us = 0;
        uint64_t until = op->ended_ms ? op->ended_ms : engine_now(op->x);

        for (uint32_t i = 0; i < ZERO_NODE_MAX; i++) {
                const struct part *part = &op->parts[i];

                stall_us = part->stall_us > stall_us ? part->stall_us : stall_us;
                copy_us = part->copy_us > copy_us ? part->copy_us : copy_us;
                ret->buffer_bytes += part->buffer;
        }
        ret->predicted_stall_s = seconds_or_null(stall_us);
        ret->copy_s = seconds_or_null(copy_us);
        ret->elapsed_s = (double)(until - op->begun_ms) / 1000;
}

static const char *report_waits(struct arena *arena, const struct operation *op)
{
        uint64_t silent_ms = engine_now(op->x) - op->moved_ms;

        if (operation_over(op) || silent_ms < LANE_LATE_MS)
                return "";
        return arena_text(arena,
                          "nothing was %s for %llu s: a disk is late, or checkpoints and restores "
                          "of the user's other jobs come first; zeroctl doctor says which",
                          op->restore ? "read" : "written", (unsigned long long)silent_ms / 1000);
}

static struct status_operation *report_operation(struct arena *arena, const struct operation *op)
{
        struct status_operation *ret = arena_new(arena, sizeof *ret);

        if (!ret)
                return NULL;
        ret->operation = op->restore ? "restore" : "checkpoint";
        ret->id = op->id;
        ret->phase = operation_phase_name(op->phase);
        ret->over = operation_over(op);
        ret->path = op->restore ? arena_copy(arena, op->directory)
                                : arena_text(arena, "%s/%s-%llu", op->directory, op->job,
                                             (unsigned long long)op->manifest.version);
        ret->version = op->manifest.version;
        ret->bytes = operation_bytes(op);
        ret->done_bytes = operation_done_bytes(op);
        report_times(op, ret);
        ret->waits = report_waits(arena, op);
        ret->status = zero_status_name(op->fault.status);
        ret->error = op->fault.status ? arena_copy(arena, op->fault.text) : "";
        return ret;
}

int report_progress(struct arena *arena, const struct engine *x, const char *job, uint32_t uid,
                    struct status_progress *ret, struct fault *fault)
{
        const struct operation *op = operation_find(x, job);
        const struct schedule *s = schedule_find(x, job);

        if (!op && !s)
                return fault_set(fault, ZERO_ENOJOB,
                                 "job '%.100s' has had no checkpoint or restore", job);
        if (uid != 0 && uid != (op ? op->uid : s->uid))
                return fault_set(fault, ZERO_EPERM,
                                 "user %u asked for the checkpoint or restore: only that user and "
                                 "root may see it",
                                 op ? op->uid : s->uid);
        *ret = (struct status_progress){
                .job = arena_copy(arena, job),
                .operation = op ? report_operation(arena, op) : NULL,
                .schedule = report_schedule(arena, x, job),
        };
        return 0;
}
