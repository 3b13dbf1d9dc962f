/*
 * job.h - the record of a job on this node, and the registry of all.
 *
 * An operation in flight holds a reference to its job; a dropped job is `dead` and goes when
 * the last of them ends.
 */
#pragma once

#include "daemon/core/core.h"
#include "daemon/core/rank_state.h"
#include "proto/dtype.h"
#include "proto/partition.h"

struct rank;
struct reduce;

enum { WAIT_LINES = 32 };

/* How far a job is on its way from one owner list to another. */
struct move {
        uint64_t from, to;     /* epochs; the same where holders get back what they lost */
        uint64_t bytes, total; /* in their place, of all; total 0: not known */
};

/* What a step came to, for ranks that ask again. */
struct step_result {
        uint64_t version; /* after it */
        uint64_t attempt; /* that ended with it; 0: none did yet */
        bool skipped;
        double grad_norm, loss_scale;
};

struct job {
        struct list link;
        struct engine *x;
        uint32_t references;
        uint32_t holders; /* of them: sessions and others that need no state once it is dead */
        bool dead;
        uint64_t whole;  /* the placement of which that was told: old states are to go; or 0 */
        bool opening;    /* its state is being made, or ... */
        bool resuming;   /* ... an earlier process left it, and it is not taken up yet */
        bool drop_state; /* delete the state file with it */
        char name[ZERO_NAME_MAX + 1];
        uint32_t uid, world_size, coordinator; /* coordinator: node */
        enum zero_dtype reduce_dtype;
        enum zero_dtype grad_dtype; /* what local ranks push; set by the first of them */
        layout *layout;
        uint64_t layout_bytes; /* that the quota counts for it */
        struct placement place;
        struct partition *partition;
        struct list replicas;     /* this node's; none where it holds no shards */
        struct list old_replicas; /* of earlier placements: to be moved from, then deleted */

        /* The step, as this node last heard of it. */
        bool started;         /* all ranks are there (Start) */
        uint64_t finished_ms; /* loop time at which all ranks had completed the job; 0: they have
                                 not */
        uint64_t epoch, version, attempt;
        double loss_scale, grad_norm;
        uint32_t skipped;
        uint32_t overflows; /* in a row */
        struct step_result last;
        uint32_t *node_of_rank;     /* [rank]: as of the last start */
        bool *here;                 /* [rank]: its session lives, as the coordinator knows */
        struct rank_state *rank_states; /* [rank]: of this node's ranks */
        uint32_t lost;              /* rank without which this attempt cannot end; RANK_ABSENT */
        uint64_t step_times_ms[16]; /* loop times of the last decisions, a ring */
        uint32_t n_step_times;
        bool reported; /* the last progress report said something */
        struct wait_line waits[WAIT_LINES];
        uint32_t n_waits;
        struct move move;      /* the same, of its shards */
        uint64_t move_told_ms; /* loop time; 0: it does not move */

        struct rank **ranks; /* [rank]: sessions on this node */
        uint32_t n_local;    /* ranks that run on this node, by the coordinator's table */
        uint32_t n_attached; /* sessions in ranks */
        struct list gathers; /* windows of local ranks, in host memory and on GPUs */
        struct reduce *reduce;
};

struct job *job_find(struct engine *x, const char *name);
/* An empty job; takes the layout over in any case.  NULL: out of memory. */
struct job *job_new(struct engine *x, const char *name, uint32_t uid, uint32_t world_size,
                    uint32_t reduce_dtype, layout *l);
/*
 * Memory for the books of a job's tensors and groups, beside what layouts.h keeps; 0: so little
 * that the quota does not count it.
 */
uint64_t job_layout_bytes(const layout *l);
/* Whether a job of that name may be made. */
int job_admit(struct engine *x, const char *name, uint32_t uid, struct fault *fault);
void job_ref(struct job *job);
void job_unref(struct job *job);
/* References that need no state: a client that stays does not keep a dropped job's memory. */
void job_hold(struct job *job);
void job_let_go(struct job *job);
bool job_name_valid(const char *name);
/* Has the node an owner or a rank of the job? */
bool job_needs_node(const struct job *job, uint32_t node);
/* The version a group's bytes have when the job is at `version`: frozen groups stay at 0. */
uint64_t group_version(const struct job *job, uint32_t group, uint64_t version);
void job_detach(struct job *job); /* out of the list, dead; freed with its last reference */
/* This node's part of the job goes, and its state with it. */
void job_discard(struct engine *x, const char *name);
/* Whatever a folder has by that name goes, or is about to be replaced; not the job itself. */
void job_name_dropped(struct engine *x, const char *name);
/* node_of_rank, here, rank states and ranks, for that many. */
bool job_ranks_alloc(struct job *job, uint32_t world_size);
void job_ranks_free(struct job *job);
/* The job's first late rank or node, as its coordinator last told. */
int job_describe(const struct job *job, struct wait_line *ret);
/* A node that the job needs and that is away. */
bool job_away(const struct job *job, struct wait_line *ret);
/* Over the last decisions; 0: not known yet. */
double job_steps_per_second(const struct job *job);
/* Whether a step was decided within the last minute. */
bool job_is_stepping(const struct job *job);
