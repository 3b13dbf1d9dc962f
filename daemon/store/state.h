/*
 * One job's state on one owner: planes, chunk table, redo buffers and step record
 * in a state file that outlives the process, and the serve plane in a sealed memfd
 * that does not.
 *
 * The file holds everything that decides what the parameters are: a process killed
 * at any instruction leaves each chunk restorable (redo.h).  The layout is stored
 * with it, so the file alone says what it holds.
 *
 * Rule: a chunk is changed only after the decision is in the record
 * (state_decide()), and through redo_commit().
 */
#pragma once

#include "daemon/device/device.h"
#include "daemon/store/plan.h"

struct store;

struct state_identity {
        const char *job;
        uint32_t uid;           /* who owns the job */
        uint32_t world_size;
        uint32_t n_owners;
        uint32_t reduce_dtype;  /* enum zero_dtype */
};

/* What an attempt has come to, in the record. */
enum attempt_phase {
        ATTEMPT_OPEN = 0,     /* gradients are coming in */
        ATTEMPT_PREPARED = 1, /* voted: gradient, norm partial, parameters are in the file */
        ATTEMPT_DECIDED = 2,  /* the update runs, or was skipped */
};

struct state_record {
        uint64_t version;       /* committed steps, before this attempt */
        uint64_t attempt;
        uint32_t phase;         /* enum attempt_phase */
        uint32_t commit;        /* decided: 1 update, 0 skip */
        double grad_scale;      /* of the decision: clip / loss scale; per group divisor apart */
        double loss_scale;      /* to use next */
        uint32_t good_steps;    /* since the last overflow or growth */
        uint32_t skipped;       /* steps, in all */
        double grad_norm;
        uint32_t n_sets;
        uint32_t finite;
        struct { double lr, beta1, beta2, eps, weight_decay; } sets[ZERO_SET_MAX];
        struct exact_sum norm;  /* this owner's partial */
};

struct state {
        struct store *store;
        struct plan *plan;          /* owned */
        float *master, *exp_avg, *exp_avg_sq, *grad; /* in the file's mapping */
        uint8_t *serve;             /* NULL if there is nothing to serve from */
        int serve_fd;               /* memfd, sealed against resizing and later writers; -1 */
        uint64_t *chunk_version;    /* [chunk]; atomic */
        uint64_t *tensor_step;      /* [tensor]: updates so far; in the file */
        uint8_t *present;           /* [tensor]: has a gradient in this attempt; in the file */
        struct state_record *record; /* in the file; change it by state_*() only */
        /* private from here */
        void *map;
        size_t map_bytes;
        int fd;
        uint32_t n_redo;
        struct redo_slot *redo;
        char *path;
};

/* ---- the directory ---- */

/*
 * Opens (makes) the state directory, mode 0700, and locks it: a second daemon gets
 * ZERO_EBUSY.  quota: most bytes of all state files and serve planes; 0: no limit.
 */
int store_open(const char *directory, uint64_t quota, struct store **ret, struct fault *fault);
void store_close(struct store *store);
uint64_t store_used(const struct store *store);
uint64_t store_quota(const struct store *store);

/* ---- a job's state ---- */

/*
 * Makes the state of a new job: space is reserved at once (ZERO_ESHM, ZERO_EQUOTA
 * leave nothing behind), contents are zero.  n_redo: how many threads will update
 * at once.  Takes the plan over on success.
 */
int state_create(struct store *store, const struct state_identity *id, const layout *l,
                 struct plan *plan, uint32_t n_redo, struct state **ret, struct fault *fault);
/* Unmaps; the file stays.  NULL is allowed. */
void state_close(struct state *state);
/* Deletes the file and closes. */
void state_drop(struct state *state);
uint64_t state_bytes(const struct state *state);

/*
 * Fills a shard's master segments with their tensors' first values (init.h) and writes serve.
 * For an offload thread; groups may be filled in parallel.
 */
void state_init_group(struct state *state, const layout *l, uint32_t group,
                      const struct device_ops *ops);
/* The shard as trainers get it: in serve, or in master for fp32 groups. */
const void *state_shard(const struct state *state, const layout *l, uint32_t group);

/* ---- the record: each call leaves the file consistent at every instruction ---- */

void state_prepare(struct state *state, const struct state_record *vote);
void state_decide(struct state *state, const struct state_record *decision);
/* Every chunk is at version + 1 (or the step was skipped): the attempt is over. */
void state_finish(struct state *state);
/* The attempt is void: gradients count for nothing, a new attempt begins. */
void state_abort(struct state *state, uint64_t next_attempt);
