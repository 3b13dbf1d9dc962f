/*
 * core.h - what all parts of the engine share: the node, what it runs on, the nodes it reaches, its
 * jobs.
 *
 * The engine runs on the loop thread, except for what it hands to the offload pool.
 */
#pragma once

#include <uv.h>

#include "daemon/compute/device/place/place.h"
#include "daemon/fabric/fabric.h"
#include "daemon/floor/conf/conf.h"
#include "daemon/floor/loop/blocking.h"
#include "daemon/floor/loop/offload.h"
#include "daemon/job/core/module.h"
#include "daemon/job/core/request.h"
#include "daemon/job/rules/placement.h"
#include "daemon/store/store.h"
#include "proto/list.h"
#include "proto/zero.pb-c.h"

struct bases;
struct checkpoints;
struct drops;
struct event_waits;
struct lifetime;
struct measure;
struct membership;
struct ranks;
struct recorder;
struct reshard;
struct shard_observer;
struct tensors;
struct transfer;

enum { TICK_MS = 100, PROGRESS_MS = 300, CALL_MS = 60000 };

/* A change of the owner list that this node had taken back, because a job could not move. */
struct taken_back {
        uint64_t epoch; /* the epoch given up; 0: none */
        char why[400];
};

/* What the engine asks of the process. */
struct node_ops {
        /* A new owner list is chosen; it comes into force when the engine restarts. */
        void (*placement_chosen)(void *arg);
        /* Changes an option while the daemon runs (conf_set()). */
        int (*configure)(void *arg, const char *name, const char *value, struct fault *fault);
};

struct engine {
        const struct module *const *modules; /* every folder's (module.h) */
        uint32_t n_modules;
        const struct shard_observer *const *observers; /* the last is NULL */
        uv_loop_t *loop;
        const struct conf *conf;
        const struct cluster *cluster;
        struct fabric *fabric;
        struct store *store;
        struct offload *offload;
        struct blocking *blocking;
        const struct device_ops *ops;    /* on memory of any place */
        bool states_away;                /* states lie on devices beside the host */
        struct event_waits *event_waits; /* NULL: there is only the host */
        uint32_t part_bytes; /* the largest payload between nodes; at most TRANSIT_BYTES */

        struct placement placement;    /* in force: who holds shards */
        struct membership *membership; /* how it changes; NULL: never */
        struct taken_back taken_back;  /* outlives a restart of the engine */
        struct list jobs, dead_jobs;   /* dead: dropped, with operations still in flight */
        uint64_t freed;                /* jobs, and records of coordinators, so far */
        struct list coordinators;
        struct list composings; /* coordinator/composing.c */
        struct list composes;   /* coordinator/bringing.c */
        struct list layouts;    /* core/layouts.h */
        struct list shut;       /* state files that wait for memory (core/shut.h) */
        /* What the folders of these names keep (module.h). */
        struct transfer *transfer;
        struct measure *measure;
        struct recorder *recorder;
        struct bases *bases;
        struct drops *drops;
        struct tensors *tensors;
        struct checkpoints *checkpoints;
        struct ranks *ranks;
        struct reshard *reshard;
        struct lifetime *lifetime; /* the engine's */
        uint32_t releases;         /* states whose memory is being freed */
        uint32_t examinations;     /* of this node, in progress (doctor/doctor.h) */
        struct requests requests;
        node_set linked;             /* nodes whose link stands */
        node_set agreeing;           /* nodes that have the same owner list in force */
        node_set up;                 /* linked and agreeing */
        node_set cut[ZERO_NODE_MAX]; /* [node]: nodes that it says it cannot reach */
        bool draining;               /* the engine waits for the steps in flight */
        bool stopping;
        /* Answers other nodes' questions about this one (rpc/query.c). */
        void (*query)(struct engine *x, uint32_t node, const Zero__LinkMessage *m);
        /* Ends sessions of users who may no more follow the job (rpc/attach.c). */
        void (*regranted)(struct job *job);
        struct rpc *rpc; /* NULL: it has ended */
        bool leaving;    /* the stop cuts ranks off: they do not count as lost */
        const struct node_ops *node;
        void *node_arg;
};

uint64_t engine_now(const struct engine *x);
const char *node_name(const struct engine *x, uint32_t node);
/* Whether the node may keep notes of jobs: while no owner list has replaced the first, a node
 * without shards need not hear of a drop. */
bool node_keeps_notes(const struct engine *x);
/* A stamp for what a job's coordinator changes: higher than the last that the node has heard of,
 * and than those of coordinators before. */
enum { STAMP_BITS = 62 };
uint64_t stamp_after(uint64_t last);
/* The node that coordinates the job. */
uint32_t coordinator_of(const struct engine *x, const char *job);
