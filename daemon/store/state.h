/*
 * state.h - an open state: whose it is, and what is recorded beside its planes.  Included by
 * store.h.
 *
 * When a call here returns, its changes are in the file: the process may die at any later
 * instruction and loses none of them.  One thread at a time.
 */
#pragma once

#include "daemon/compute/device/place/place.h"
#include "daemon/compute/device/segment/segment.h"
#include "daemon/store/plan.h"
#include "proto/job_spec.h"

/* The highest tensor step that may be put, and the highest version of a state: 17 years at a
 * thousand steps a second. */
#define STATE_STEP_MAX ((UINT64_C(1) << 39) - 1)

/* The highest state->puts. */
#define STATE_PUTS_MAX ((UINT64_C(1) << 40) - 1)

struct state_identity {
        struct job_spec job;     /* in state.id: without the layout */
        uint32_t n_owners, copy; /* copy 0: the owner's own, 1: its mirror */
        uint64_t epoch;          /* of the owner list that the shards were cut for */
        uint32_t place;          /* of the planes (place.h) */
};

/* How far an attempt is. */
enum attempt_phase {
        ATTEMPT_OPEN = 0,     /* gradients are coming in */
        ATTEMPT_PREPARED = 1, /* voted: gradient, norm and hyperparameters are in the file */
        ATTEMPT_DECIDED = 2,  /* the update runs, or the step was skipped */
};

struct state_record {
        uint64_t version; /* committed steps, before this attempt */
        uint64_t attempt;
        uint32_t phase; /* enum attempt_phase */
        /* The last decision, kept until the next one for owners that do not know it yet. */
        uint32_t commit;          /* 1 update, 0 skip */
        uint64_t decided_attempt; /* 0: none yet */
        double grad_scale;        /* clip / loss scale; without the groups' divisors */
        double loss_scale;        /* of the next step */
        uint32_t good_steps;      /* since the last overflow or growth */
        uint32_t skipped;         /* all steps that were ever skipped */
        double grad_norm;
        /* The vote, from which the decision follows. */
        uint32_t n_sets;
        uint32_t finite;
        struct exact_sum norm; /* this owner's part */
        double clip_norm, step_loss_scale;
        uint32_t growth_interval;
        uint32_t world_size;                 /* how many ranks the gradient comes from */
        struct hyper_set sets[ZERO_SET_MAX]; /* the file keeps the first n_sets */
};

/* What was decided; records, files of checkpoints and messages have fields of these names. */
#define DECISION_COPY(to, from)                                                      \
        ((to)->commit = (from)->commit, (to)->grad_scale = (from)->grad_scale,       \
         (to)->loss_scale = (from)->loss_scale, (to)->grad_norm = (from)->grad_norm, \
         (to)->good_steps = (from)->good_steps, (to)->skipped = (from)->skipped)

struct state {
        struct state_identity id;
        struct plan *plan;            /* owned */
        struct segment serve_segment; /* beside the planes; sealed against later writers */
        uint32_t n_tensors;
        /* [tensor]: updates so far, and hyperparameter set */
        const uint64_t *tensor_step, *tensor_set;
        /* A fingerprint of the clients' puts applied to the state.  Copies with the same puts have
         * the same fingerprint, whatever the order of the puts.  After a crash during a put it is
         * random. */
        uint64_t puts;
        /* [tensor]: has a gradient in this attempt; state_prepare() writes it to the file */
        uint8_t *present;
        const struct state_record *record; /* in the file; each change moves it */
        struct state_inside *in;
};

/*
 * The memory that trainers of the job may map for reading: the serve plane.  If it lies in the
 * file, it is the only owner's file, up to the end of the plane.  Without a serve plane all groups are
 * served from master, and it is the only owner's file, up to the end of master.
 * NULL: there is no such memory.
 */
const struct segment *state_serve(const struct state *state);
/* Byte offset of the group's shard in that memory.  Only for a group that is served from it. */
uint64_t state_serve_offset(const struct state *state, uint32_t group);

/* The name of the state's file; NULL: the file is deleted, or another state has taken the name. */
const char *state_file(const struct state *state);

/* True if the planes outlive the process, however it ends. */
bool state_survives(const struct state *state);
/* True if the CPU reads, writes and updates the planes.  Otherwise their device alone does. */
bool state_for_cpu(const struct state *state);

/*
 * ---- the record ----
 *
 * OPEN -> PREPARED (repeatedly, if need be) -> DECIDED -> OPEN.  A vote and a decision have the
 * record's version and attempt; these calls set the phase.  state_prepare() keeps the fields of the
 * last decision and ignores the vote's.  `present` must not change from state_prepare() until the
 * attempt is over or is prepared again.
 */

void state_prepare(struct state *state, const struct state_record *vote);
/* Also sets decided_attempt, and the Unix time if state_keeps_times(). */
void state_decide(struct state *state, const struct state_record *decision, uint32_t now_s);
/* When the last step was decided; 0: not known. */
uint32_t state_decided_s(const struct state *state);
bool state_keeps_times(const struct state *state);
/* From now on the file keeps the time of decisions, and the release before refuses the file.  0 or
 * -errno. */
int state_keep_times(struct state *state);
/*
 * Ends the attempt, once every chunk is at version + 1 or if the step was skipped.  After a commit
 * tensor_step of every present tensor is one higher.  It is exactly one, even if the process dies
 * in this call and a later process calls it again.
 */
void state_finish(struct state *state);
/* Makes the attempt void, gradients included, and opens the next one.  Not after the decision. */
void state_abort(struct state *state, uint64_t next_attempt);
/* Ends the filling of a draft: takes the record, whose attempt must be open, and sets all chunks to
 * the record's version.  Planes, steps and sets must be filled. */
void state_restore(struct state *state, const struct state_record *record);

/* ---- what clients put ---- */

/* Not while an update runs.  set is below ZERO_SET_MAX, step at most STATE_STEP_MAX. */
void state_put_step(struct state *state, uint32_t tensor, uint64_t step);
void state_put_set(struct state *state, uint32_t tensor, uint64_t set);
/*
 * Enclose all changes of a client's put; puts may overlap.  `what` identifies the put: the same
 * number in every copy, different numbers for different puts.
 */
void state_put_begin(struct state *state);
void state_put_end(struct state *state, uint64_t what);
/* True if a put has begun and not ended. */
bool state_putting(const struct state *state);
/* Sets state->puts of a draft that was filled from copies with that fingerprint. */
void state_set_puts(struct state *state, uint64_t puts);
/*
 * Returns the first trainable tensor with a part here whose hyperparameter set cannot be used;
 * n_tensors if there is none.  A set cannot be used if its number is not below n_sets, or if it
 * belongs to another optimizer than the group's.  The latter is not checked if sets is NULL.
 */
uint32_t state_check_sets(const struct state *state, const struct hyper_set *sets, uint32_t n_sets);

/* ---- what ranks keep with a step (zero_step_options.blob); blobs.c ---- */

/*
 * Stages a rank's n bytes (at most ZERO_BLOB_MAX; 0: nothing).  Call it for every rank before
 * state_prepare() of `attempt`.  A second call for the same rank and attempt replaces the bytes.
 *
 * 0 or -errno: -EDQUOT if the store's quota is used up, -ENOSPC if the file system is full.
 * -EINVAL for a rank or a length out of bounds, or for an attempt that is not later than the last
 * decided one.
 */
int state_blob_stage(struct state *state, uint32_t rank, uint64_t attempt, const void *p, size_t n);
/* Returns the blob that the rank kept with the last decided attempt; *ret_bytes is 0 if it kept
 * none.  Points into the file, and is valid until the next state_blob_stage(). */
const void *state_blob(const struct state *state, uint32_t rank, size_t *ret_bytes);
/* A bound: no rank from this number on has kept anything. */
uint32_t state_blob_ranks(const struct state *state);
