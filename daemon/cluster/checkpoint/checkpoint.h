/*
 * checkpoint.h - checkpoints of jobs, written and restored.
 *
 *   operation.c   one checkpoint or restore as the job's coordinator runs it: phases, progress
 *   checkpoint.c  the phases of a checkpoint
 *   schedule.c    periodic checkpoints
 *   capture.c     an owner's part of a checkpoint
 *   capture_copy.c, capture_save.c  the owner's copy of its planes
 *   restore.c     the phases of a restore
 *   convert.c     the layout that a restored job gets
 *   loading.c     a node's part of a restore
 *
 * A checkpoint holds one step: COPY goes to all owners at one place in the coordinator's stream of
 * messages, between two decisions, and each owner copies what it has after the last update.  An
 * update that reaches a group before the copy saves the old values first.  If memory is too short
 * for that, or the planes are on a GPU, the update waits, as for any reader (shard_pin()).  If
 * owners report different steps, the checkpoint fails.  All functions run on the loop thread.
 */
#pragma once

#include "daemon/job/shard/shard.h"
#include "daemon/cluster/checkpoint/directory.h"
#include "daemon/store/snapshot/snapshot.h"

/* ---- at the coordinator ---- */

enum operation_phase {
        OPERATION_PREPARING,
        OPERATION_COPYING,
        OPERATION_WRITING,
        OPERATION_PUBLISHING,
        OPERATION_READING,
        OPERATION_LOADING,
        OPERATION_SWAPPING,
        OPERATION_DONE,
        OPERATION_FAILED,
};

enum { OPERATION_SILENCE_MS = 600000, OPERATION_CALL_MS = 7 * 24 * 3600 * 1000 };

/* A client's request. */
struct order {
        const char *job, *directory;
        uint32_t uid, keep;
        const char *convert; /* "job", or formats as "8bit,bf16+8"; NULL: formats stay */
};

/* An owner's part of a checkpoint, or a node's part of a restore. */
struct part {
        bool asked;
        uint64_t bytes, buffer, stall_us, version, attempt, copy_us;
        uint64_t done; /* bytes written or read */
        uint8_t hash[MANIFEST_HASH];
};

struct operation {
        struct list link; /* checkpoints.operations */
        struct engine *x;
        uint64_t id;
        bool restore;
        char job[ZERO_NAME_MAX + 1];
        char *directory, *convert; /* as in the order */
        uint32_t uid, keep;
        enum operation_phase phase;
        bool superseded;  /* over, and replaced by a newer one: the last answer frees it */
        uint32_t pending; /* calls, and blocking work, in progress; and busy parts */
        node_set busy;    /* parts whose node said to try again */
        struct fault fault;
        void (*next)(struct operation *op);    /* called when all parts have answered */
        struct part parts[ZERO_NODE_MAX];      /* [owner], or [node] */
        uint64_t begun_ms, ended_ms, moved_ms; /* moved_ms: when bytes were last written or read */
        struct manifest manifest;
        char *text;      /* of the manifest */
        uint8_t *layout; /* packed */
        struct blocking_work disk;
        struct { /* read by the blocking thread */
                struct fault fault;
                struct manifest manifest;
                char *text;
                uint8_t *layout;
        } read;
};

/* A checkpoint every `every` steps.  Every node that may come to coordinate the job keeps it. */
struct schedule {
        struct list link; /* checkpoints.schedules */
        char job[ZERO_NAME_MAX + 1];
        char *directory;
        uint32_t uid, keep;
        uint64_t every; /* 0: it was ended */
        uint64_t stamp; /* the newer of two has the higher one */
        /* The newest of its checkpoints; until there is one, when the schedule was made. */
        uint64_t last_version, last_unix_s;
        uint64_t next_version; /* as this node reckons; the coordinator goes by it */
        uint64_t told_ms;      /* when other nodes last heard of it from here */
};

enum { SCHEDULE_EVERY_MAX = 1000000000 };

/*
 * Begins an operation; operation_find() tells its outcome.  Call on the node that coordinates the
 * job.
 */
int checkpoint_order(struct engine *x, const struct order *order, uint64_t *ret_id,
                     struct fault *fault);
int restore_order(struct engine *x, const struct order *order, uint64_t *ret_id,
                  struct fault *fault);
/* every 0: ends the schedule. */
int checkpoint_schedule(struct engine *x, const struct order *order, uint64_t every,
                        struct fault *fault);
/* The job's newest operation, running or over; the job's schedule.  NULL: none. */
const struct operation *operation_find(const struct engine *x, const char *job);
const struct schedule *schedule_find(const struct engine *x, const char *job);
/* Whether this node restores its part of any job. */
bool loadings_any(const struct engine *x);
/* Whether a restore of the job is running: no rank joins the job until it is over. */
bool restore_runs(const struct engine *x, const char *job);
const char *operation_phase_name(enum operation_phase phase);
/* Sums over parts. */
uint64_t operation_bytes(const struct operation *op);
uint64_t operation_done_bytes(const struct operation *op);

/* ---- for others ---- */

/* Call after all calls have ended. */
void operations_stop(struct engine *x);
void snapshot_message(struct engine *x, uint32_t node, const Zero__LinkMessage *m);
/* Takes up schedules of an earlier process, before its drops are. */
void schedules_resume(struct engine *x);

extern const struct module checkpoint_module;
extern const struct shard_observer checkpoint_observer;
