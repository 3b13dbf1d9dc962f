/* fill_target.h - shared by the parts of a fill at its holder. */
#pragma once

#include "daemon/cluster/reshard/reshard.h"
#include "daemon/job/rules/pieces.h"

struct reshard {
        struct list fills, fill_targets;
        uint64_t last_fill;
};

struct job_reshard {
        uint64_t whole;   /* epoch whose placement is known to be complete, so that older states may
                             be deleted; 0: none */
        struct move move; /* as the coordinator last told */
        uint64_t told_ms; /* loop time; 0: the job does not move */
};

/* Elements of a piece: at most 8 MiB of each plane.  Pieces in progress at once. */
enum { FILL_TARGET_PIECE = 2 << 20, FILL_TARGET_FLIGHT = 16 };

enum fill_target_phase {
        FILL_TARGET_DRAFTING, /* makes the draft */
        FILL_TARGET_PULLING,  /* planes come */
        FILL_TARGET_ASKING,   /* steps, sets and blobs come */
        FILL_TARGET_SERVING,  /* writes the served parameters */
        FILL_TARGET_SETTLING, /* waits until nobody reads the state that the draft replaces */
        FILL_TARGET_ENDED,    /* freed once nothing of the fill is in flight */
};

/* One plane of a piece. */
struct fill_target_transfer {
        struct ask ask;
        struct copy copy;
        struct fill_target *f;
        const struct piece *piece;
        struct plane plane;
        bool busy, remote;
        struct shard_part from; /* on this node, unless remote */
        struct mapping to;
};

struct fill_target {
        struct list link; /* reshard.fill_targets */
        struct engine *x;
        struct job *job;
        uint64_t id, call;
        uint32_t node; /* of the coordinator */
        enum fill_target_phase phase;
        bool made_job; /* this fill made the job, or joined another fill that did */
        /* what the coordinator ordered */
        struct placement from, to;
        uint32_t owner, copy;
        uint64_t puts;
        struct state_record record;
        bool readable[HOLDER_MAX];
        uint64_t source_puts[HOLDER_MAX];
        /* the work */
        struct offload_task task;
        struct fault fault; /* of the task */
        bool crowded;       /* memory of deleted states was still being freed at the start */
        uint32_t busy;      /* tasks, transfers and calls in progress */
        struct state *state;
        struct pieces *pieces;
        uint32_t next_piece, next_plane, pulling, asking;
        struct fill_target_transfer transfers[FILL_TARGET_FLIGHT];
        uint64_t bytes, total, moved, told;
        uint64_t begun_ms, settle_until_ms; /* loop times */
};

/* fill_order.c.  Checks what can be checked without the job.  Fills in the spec, but for the job's
 * name; the layout belongs to the caller. */
int fill_target_read_order(struct fill_target *f, const Zero__Fill *m, struct job_spec *ret_spec,
                           struct fault *fault);
uint32_t fill_target_holder(const struct fill_target *f);
/* Whether a fill of the job is in progress. */
bool fill_target_of_job(const struct job *job);
/* Joins the job on this node, or makes it; takes the layout over. */
int fill_target_join_job(struct fill_target *f, const struct job_spec *spec, struct fault *fault);

/* fill_pull.c */
void fill_target_pull(struct fill_target *f);
void fill_target_ask(struct fill_target *f);
/* Gives up the pulls from other nodes. */
void fill_target_forget_pulls(struct fill_target *f);

/* fill_target.c */
/* A task, a transfer or a call has ended. */
void fill_target_part_ended(struct fill_target *f);
void fill_target_fail(struct fill_target *f, int status, const char *text);
void fill_target_pulled(struct fill_target *f);
void fill_target_asked(struct fill_target *f);
