/*
 * job.h - a job's record on this node, and the registry of all jobs.
 *
 * An operation in flight holds a reference to its job.  A dropped job is `dead` and goes with its
 * last reference.
 */
#pragma once

#include "daemon/job/core/core.h"
#include "daemon/job/core/rank_state.h"
#include "proto/dtype.h"
#include "proto/job_spec.h"
#include "proto/partition.h"

struct follow;
struct grants;
struct job_reshard;
struct job_stash;
struct progress;
struct reduce;

/* The outcome of a step. */
struct step_result {
        uint64_t version; /* after the step */
        uint64_t attempt; /* that ended with the step; 0: no step has ended */
        bool skipped;
        uint32_t n_skipped; /* steps, in all */
        double grad_norm;
        double loss_scale; /* of the next step */
};

/* The last numbers that all ranks have reduced. */
struct reduced {
        uint64_t attempt;
        uint32_t done; /* reductions of that attempt */
        uint32_t n;
        double values[ZERO_VALUES_MAX];
};

struct job {
        struct list link;
        struct engine *x;
        uint32_t references;
        uint32_t holders;   /* references of those who need no state of a dead job: sessions and
                               others */
        uint32_t onlookers; /* of the holders, those who leave a finished job its end */
        bool dead;
        /* The node creates its state, or has found an earlier process's and not yet taken it up. */
        enum { JOB_OPEN, JOB_OPENING, JOB_RESUMING } opening;
        bool drop_state; /* delete the state files with the job */
        JOB_SPEC;
        uint32_t coordinator; /* node */
        struct placement placement;
        struct partition *partition;
        struct list replicas;     /* this node's; none where it holds no shards */
        struct list old_replicas; /* of earlier placements: moved from, then deleted */

        /* The step, as far as this node has heard. */
        bool started; /* all ranks are there (Start) */
        uint64_t version, attempt;
        struct step_result last; /* also for ranks that ask again */
        struct reduced reduced;
        uint32_t *node_of_rank;   /* [rank]: its node at the last start */
        struct rank_state *ranks; /* [rank] */

        uint32_t n_attached;       /* ranks with a session on this node */
        struct list gathers;       /* windows of local ranks */
        struct progress *progress; /* core/progress.h */
        /* What the folders of these names keep (module.h). */
        struct deltas *deltas;
        struct follow *follow;
        struct grants *grants;
        struct job_stash *stash;
        struct reduce *reduce;
        struct job_reshard *reshard;
};

enum { BASE_JOBS = 64 }; /* jobs of a user on one base, which count as one */

/* A message of a job, still without a body. */
Zero__LinkMessage job_message(const char *job);
struct job *job_find(struct engine *x, const char *name);
/* Makes an empty job; takes the spec's layout over in any case.  NULL: out of memory. */
struct job *job_new(struct engine *x, const struct job_spec *spec);
/*
 * Memory that a job needs for its tensors and groups, beside what layouts.h keeps; 0: too little
 * for the quota to count.
 */
uint64_t job_layout_bytes(const layout *l);
/* Whether a job of that name and layout may be created.  Jobs of a user on one base count as one.
 */
int job_admit(struct engine *x, const char *name, uint32_t uid, const layout *l,
              struct fault *fault);
/* Whether the job is finished, no session looks at it, and no rank waits to enter it. */
bool job_gives_place(const struct job *job);
/* Whether the user's jobs leave no place for one of that layout; lasting: without those that give
 * up theirs. */
bool jobs_full(const struct engine *x, uint32_t uid, const layout *l, bool lasting);
/* Whether the end of a job that gives up its place counts where the user's jobs leave none. */
bool job_end_makes_place(const struct job *job, const layout *l);
/* Submits work of the job's user to the compute threads. */
void job_compute(const struct job *job, enum offload_lane lane, struct offload_task *task);
/* Copies bytes, from and to any place, on a compute thread for which a step waits; done() gets
 * &copy->task. */
struct copy {
        struct offload_task task;
        const struct device_ops *ops;
        void *to;
        const void *from;
        size_t bytes;
};
void job_copy(const struct job *job, struct copy *copy, void *to, const void *from, size_t bytes,
              void (*done)(struct offload_task *task));
void job_ref(struct job *job);
void job_unref(struct job *job);
/* References that need no state: a client that stays does not keep the memory of a dropped job. */
void job_hold(struct job *job);
void job_let_go(struct job *job);
bool job_name_valid(const char *name);
/* Whether the node has an owner or a rank of the job. */
bool job_needs_node(const struct job *job, uint32_t node);
/* The last decided step, for its ranks. */
void job_last_reply(const struct job *job, Zero__StepReply *ret);
/* The version of a group's bytes when the job is at `version`: frozen groups stay at 0. */
uint64_t group_version(const struct job *job, uint32_t group, uint64_t version);
void job_detach(struct job *job); /* takes it out of the list, dead; the last reference frees it */
/* Deletes this node's part of the job, and its state. */
void job_discard(struct engine *x, const char *name);
/* Tells all folders that the job of that name goes or is replaced; the job itself stays. */
void job_name_dropped(struct engine *x, const char *name, bool replaced);
/* Allocates node_of_rank and ranks. */
bool job_ranks_alloc(struct job *job, uint32_t world_size);
void job_ranks_free(struct job *job);
