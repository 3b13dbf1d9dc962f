/*
 * job.h - a job's record on this node, and the registry of all jobs.
 *
 * An operation in flight holds a reference to its job.  A dropped job is `dead` and goes with its
 * last reference.
 */
#pragma once

#include "daemon/core/core.h"
#include "daemon/core/rank_state.h"
#include "proto/dtype.h"
#include "proto/partition.h"

struct job_reshard;
struct progress;
struct reduce;

/* The outcome of a step, for ranks that ask again. */
struct step_result {
        uint64_t version; /* after it */
        uint64_t attempt; /* that ended with it; 0: none has yet */
        bool skipped;
        double grad_norm, loss_scale;
};

struct job {
        struct list link;
        struct engine *x;
        uint32_t references;
        uint32_t holders; /* those of sessions and others that need no state once the job is dead */
        bool dead;
        bool opening;    /* the node creates its state, or ... */
        bool resuming;   /* ... has found the state of an earlier process and not yet taken it up */
        bool drop_state; /* delete the state file with it */
        char name[ZERO_NAME_MAX + 1];
        uint32_t uid, world_size, coordinator; /* coordinator: node */
        enum zero_dtype reduce_dtype;
        enum zero_dtype grad_dtype; /* of what local ranks push; the first of them sets it */
        layout *layout;
        uint64_t layout_bytes; /* that the quota counts for the layout */
        struct placement place;
        struct partition *partition;
        struct list replicas;     /* this node's; none where it holds no shards */
        struct list old_replicas; /* of earlier placements: moved from, then deleted */

        /* The step, as far as this node has heard. */
        bool started; /* all ranks are there (Start) */
        uint64_t epoch, version, attempt;
        double loss_scale, grad_norm;
        uint32_t skipped;
        struct step_result last;
        uint32_t *node_of_rank;   /* [rank]: its node at the last start */
        struct rank_state *ranks; /* [rank] */

        uint32_t n_local;          /* ranks of this node in the coordinator's table */
        uint32_t n_attached;       /* ranks with a session on this node */
        struct list gathers;       /* windows of local ranks, in host memory and on GPUs */
        struct progress *progress; /* core/progress.h */
        /* What the folders of these names keep (module.h). */
        struct reduce *reduce;
        struct job_reshard *reshard;
};

struct job *job_find(struct engine *x, const char *name);
/* Makes an empty job; takes the layout over in any case.  NULL: out of memory. */
struct job *job_new(struct engine *x, const char *name, uint32_t uid, uint32_t world_size,
                    uint32_t reduce_dtype, layout *l);
/*
 * Memory that a job needs for its tensors and groups, beside what layouts.h keeps; 0: too little
 * for the quota to count.
 */
uint64_t job_layout_bytes(const layout *l);
/* Whether a job of that name may be created. */
int job_admit(struct engine *x, const char *name, uint32_t uid, struct fault *fault);
void job_ref(struct job *job);
void job_unref(struct job *job);
/* References that need no state: a client that stays does not keep the memory of a dropped job. */
void job_hold(struct job *job);
void job_let_go(struct job *job);
bool job_name_valid(const char *name);
/* Whether the node has an owner or a rank of the job. */
bool job_needs_node(const struct job *job, uint32_t node);
/* The version of a group's bytes when the job is at `version`: frozen groups stay at 0. */
uint64_t group_version(const struct job *job, uint32_t group, uint64_t version);
void job_detach(struct job *job); /* takes it out of the list, dead; the last reference frees it */
/* Deletes this node's part of the job, and its state. */
void job_discard(struct engine *x, const char *name);
/* Tells all folders that the job of that name goes or is replaced; the job itself stays. */
void job_name_dropped(struct engine *x, const char *name);
/* Allocates node_of_rank and ranks. */
bool job_ranks_alloc(struct job *job, uint32_t world_size);
void job_ranks_free(struct job *job);
