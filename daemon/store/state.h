/*
 * state.h - an open state: whose it is, and what is recorded beside its planes.  Included by
 * store.h.
 *
 * Everything in it is in the file, at once and whole after each call, whatever the instruction at
 * which the process dies.  All by one thread at a time.
 */
#pragma once

#include "daemon/device/segment/segment.h"
#include "daemon/store/plan.h"

/* A tensor step may be put up to this, and no state gets to a version above it: 17 years at a
 * thousand steps a second. */
#define STATE_STEP_MAX ((UINT64_C(1) << 39) - 1)

/* Of state->puts. */
#define STATE_PUTS_MAX ((UINT64_C(1) << 40) - 1)

struct state_identity {
        const char *job; /* state.id: in the file's mapping */
        uint32_t uid;    /* who owns the job */
        uint32_t world_size, n_owners;
        uint32_t reduce_dtype; /* enum zero_dtype */
        uint32_t copy;         /* 0: the owner's own, 1: its mirror */
        uint64_t epoch;        /* of the owner list that it was cut for */
        uint32_t place;        /* of the planes: 0 host memory, else 1 + the GPU's number */
};

/* What an attempt has come to, in the record. */
enum attempt_phase {
        ATTEMPT_OPEN = 0,     /* gradients are coming in */
        ATTEMPT_PREPARED = 1, /* voted: gradient, norm partial, parameters are in the file */
        ATTEMPT_DECIDED = 2,  /* the update runs, or was skipped */
};

struct state_record {
        uint64_t version; /* committed steps, before this attempt */
        uint64_t attempt;
        uint32_t phase; /* enum attempt_phase */
        /* The last decision: kept until the next one, for owners that have not heard of it. */
        uint32_t commit;          /* 1 update, 0 skip */
        uint64_t decided_attempt; /* 0: none yet */
        double grad_scale;        /* clip / loss scale; per group divisor apart */
        double loss_scale;        /* to use next */
        uint32_t good_steps;      /* since the last overflow or growth */
        uint32_t skipped;         /* steps, in all */
        double grad_norm;
        /* The vote, and what the decision follows from. */
        uint32_t n_sets;
        uint32_t finite;
        struct exact_sum norm; /* this owner's partial */
        double clip_norm, step_loss_scale;
        uint32_t growth_interval;
        uint32_t world_size; /* of the ranks whose gradient it is */
        struct hyper_set sets[ZERO_SET_MAX]; /* those behind n_sets are not kept */
};

struct state {
        struct state_identity id;
        struct plan *plan;            /* owned */
        struct segment serve_segment; /* where the planes are; sealed against later writers */
        uint32_t n_tensors;
        /* [tensor]: updates so far, and hyperparameter set; changed by state_put_*() only */
        const uint64_t *tensor_step, *tensor_set;
        /* Which puts of clients are in it.  Equal in two copies that took the same ones, whatever
         * their order, and unlike that of any other one after a crash in a put. */
        uint64_t puts;
        /* [tensor]: has a gradient in this attempt; state_prepare() writes it to the file */
        uint8_t *present;
        const struct state_record *record; /* in the file: another place after each change */
        struct state_inside *in;
};

/* The GPU that its planes are on; -1: none. */
static inline int state_gpu(const struct state *state)
{
        return (int)state->id.place - 1;
}

static inline bool state_on_gpu(const struct state *state)
{
        return state->id.place > 0;
}

/*
 * ---- the record ----
 *
 * OPEN -> PREPARED (again and again, if need be) -> DECIDED -> OPEN.  The version and the attempt
 * of what is passed must be the record's own; the phase is set here.  The fields of the last
 * decision change in state_decide() alone, which also sets decided_attempt: what a vote has there
 * is not taken.  `present` must not change from state_prepare() until the attempt is over, or
 * prepared anew.
 */

void state_prepare(struct state *state, const struct state_record *vote);
void state_decide(struct state *state, const struct state_record *decision);
/*
 * Every chunk is at version + 1 (or the step was skipped): the attempt is over.  After a commit
 * tensor_step of every present tensor is one higher: exactly one, also if the process dies in here
 * and finishes again later.
 */
void state_finish(struct state *state);
/* The attempt is void: gradients count for nothing, a new attempt begins.  Not after the decision.
 */
void state_abort(struct state *state, uint64_t next_attempt);
/* A draft, whose planes, steps and sets are filled: it is at an open attempt, all its chunks are at
 * the record's version. */
void state_restore(struct state *state, const struct state_record *record);

/* ---- what clients put ---- */

/* Not while an update runs; set below ZERO_SET_MAX, step at most STATE_STEP_MAX. */
void state_put_step(struct state *state, uint32_t tensor, uint64_t step);
void state_put_set(struct state *state, uint32_t tensor, uint64_t set);
/*
 * Around whatever a client's put changes; several may be under way.  `what` names the put: the same
 * number for every copy, another one for another put.
 */
void state_put_begin(struct state *state);
void state_put_end(struct state *state, uint64_t what);
/* A put is under way. */
bool state_putting(const struct state *state);
/* Of a draft: it is filled from copies whose number this is. */
void state_set_puts(struct state *state, uint64_t puts);
/*
 * The first trainable tensor with a part here whose hyperparameter set is not below n_sets, or is
 * one of another optimizer than its group's (sets NULL: any will do); n_tensors if there is none.
 */
uint32_t state_check_sets(const struct state *state, const struct hyper_set *sets, uint32_t n_sets);

/* ---- what ranks keep with a step (zero_step.blob); blobs.c ---- */

/*
 * Before state_prepare() of `attempt`, for every rank: n bytes (at most ZERO_BLOB_MAX; 0: nothing).
 * Again for the same rank and attempt: the later bytes count.  0 or -errno: -EDQUOT if the store's
 * quota, -ENOSPC if the file system is full; -EINVAL for a rank or a length above its bound, or an
 * attempt that is not after the last decided one.
 */
int state_blob_stage(struct state *state, uint32_t rank, uint64_t attempt, const void *p, size_t n);
/* What the rank kept with the last decided attempt; *ret_bytes 0 if nothing.  A pointer into the
 * file, valid until the next state_blob_stage(). */
const void *state_blob(const struct state *state, uint32_t rank, size_t *ret_bytes);
/* Those from it on keep nothing. */
uint32_t state_blob_ranks(const struct state *state);
