/*
 * core.h - what all parts of the engine share: the node, what it runs on, whom it reaches, its
 * jobs.
 *
 * The engine runs on the loop thread, except what is handed to the offload pool.
 */
#pragma once

#include <uv.h>

#include "daemon/conf/conf.h"
#include "daemon/core/module.h"
#include "daemon/core/request.h"
#include "daemon/device/gpu/gpu.h"
#include "daemon/fabric/fabric.h"
#include "daemon/job/placement.h"
#include "daemon/loop/offload.h"
#include "daemon/store/store.h"
#include "proto/list.h"
#include "proto/zero.pb-c.h"

struct gpu_waits;
struct lifetime;
struct shard_observer;
struct views;

enum { TICK_MS = 100, PROGRESS_MS = 300, CALL_MS = 60000 };

/* A change that this node had taken back, since a job could not be moved for it. */
struct taken_back {
        uint64_t epoch; /* that was given up; 0: none was */
        char why[400];
};

struct engine {
        const struct module *const *modules; /* every folder's (module.h) */
        const struct shard_observer *const *observers;
        uint32_t n_modules, n_observers;
        uv_loop_t *loop;
        const struct conf *conf;
        const struct cluster *cluster;
        struct fabric *fabric;
        struct store *store;
        struct offload *offload;
        const struct device_ops *ops; /* of host memory; of a GPU's too, where there is one */
        uint32_t gpus;                /* that states are put on; 0: they are in host memory */
        struct gpu_waits *gpu_waits;  /* NULL: no GPU is used (gpus_count() is 0) */
        uint32_t part_bytes; /* payloads travel in parts of so many at most; up to GPU_BUFFER */

        struct placement view;        /* who holds shards: the list in force */
        struct views *views;          /* how that changes (membership/membership.h); NULL: it does not */
        struct taken_back taken_back; /* outlives a start anew */
        struct list jobs, dead_jobs;  /* dead: dropped, with operations still in flight */
        struct list coordinators, calls, asks, accesses, staged;
        uint64_t staging_bytes; /* of what is staged (transfer/staging.h) */
        struct list works;      /* reads and writes that wait for the end of an update */
        struct list layouts;    /* core/layouts.h */
        struct list joining;    /* ranks whose job has not started for them yet */
        struct list gpu_setups; /* what is made on GPUs for ranks (rank/gpu_setup.c) */
        struct list operations, schedules, captures, loadings; /* checkpoint/checkpoint.h */
        struct list fills, fill_targets;                       /* reshard/reshard.h */
        struct list drops, drop_waits;                        /* drop/drop.c */
        struct list shut;  /* files of states that wait for memory (shard/shut.c) */
        uint32_t releases; /* states whose memory is being freed */
        uint64_t last_operation, last_fill;
        double disk_rate; /* bytes a second, as the last checkpoint was written; 0: not known */
        struct requests requests;
        uint64_t last_call, last_put, last_session;
        uint64_t linked;   /* nodes whose link stands, a bit each */
        uint64_t agreeing; /* nodes that have told that the same owner list is in force there */
        uint64_t up;       /* both */
        uint64_t cut[ZERO_NODE_MAX]; /* [node]: nodes that it cannot reach, as it last told */
        struct lifetime *lifetime;   /* the engine's */
        bool draining;               /* steps in flight are waited for */
        bool stopping;
        /* Questions of other nodes about this one (rpc/query.c). */
        void (*query)(struct engine *x, uint32_t node, const Zero__LinkMessage *m);
        bool leaving; /* ranks that are cut off by the stop are not lost */
        /* Another owner list is chosen: it comes into force when the engine starts anew. */
        void (*view_chosen)(void *arg);
        void *view_arg;
};

uint64_t engine_now(const struct engine *x);
const char *node_name(const struct engine *x, uint32_t node);
/* The node that coordinates the job. */
uint32_t coordinator_of(const struct engine *x, const char *job);

/* What computes on memory of which some lies on a GPU, or none. */
static inline const struct device_ops *ops_for(const struct engine *x, bool gpu)
{
        return gpu ? gpu_ops() : x->ops;
}
