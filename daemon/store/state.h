/*
 * One job's state on one owner: planes, chunk table, undo slots and step record
 * in a state file that outlives the process, and the serve plane in a sealed memfd
 * that does not.
 *
 * Or on a GPU: then the planes, serve included, are in its memory and no CPU may touch them (what
 * reads and writes them goes through gpu_ops()); the file has all the rest, and a hole in their
 * place.  They survive an orderly end of the process, if the file has room for them
 * (store_save()), but no other: then the state is lost (state_lost()).
 *
 * The file holds everything that decides what the parameters are: a process killed
 * at any instruction leaves each chunk restorable (undo.h).  The layout is stored
 * with it, so the file alone says what it holds.
 *
 * Rule: a chunk is changed only after the decision is in the record
 * (state_decide()), and by undo_update().
 */
#pragma once

#include "daemon/device/device.h"
#include "daemon/store/plan.h"
#include "daemon/store/segment.h"

struct store;
struct planes;
struct record_copy;

/*
 * Versions and tensor steps share 64 bits with a check value in the file (seal.h): a tensor step
 * may be put up to this, and no state gets to a version above it (17 years at a thousand
 * steps a second).
 */
#define STATE_STEP_MAX ((UINT64_C(1) << 39) - 1)

/* Of state->puts. */
#define STATE_PUTS_MAX ((UINT64_C(1) << 40) - 1)

struct state_identity {
        const char *job; /* state.id: in the file's mapping */
        uint32_t uid;    /* who owns the job */
        uint32_t world_size;
        uint32_t n_owners;
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
        struct store *store;
        struct state_identity id;
        struct plan *plan;                           /* owned */
        float *master, *grad; /* in the file's mapping, or on a GPU */
        float *moments[OPTIMIZER_MOMENTS]; /* the same; a plane that no group has is empty */
        uint8_t *serve;                              /* NULL if there is nothing to serve from */
        struct segment serve_segment; /* it, where the planes are; sealed against later writers */
        /* [tensor]: updates so far, and hyperparameter set, below ZERO_SET_MAX; what is in the
         * file: change it by state_put_*() only */
        const uint64_t *tensor_step, *tensor_set;
        /* In the file: which puts of clients are in it.  Equal in two copies that took the same
         * ones, whatever their order, and unlike that of any other one after a crash in a put. */
        uint64_t puts;
        /* [tensor]: has a gradient in this attempt; state_prepare() writes it to the file */
        uint8_t *present;
        /* in the file; change it by state_*() only; another copy after each of them */
        const struct state_record *record;
        /* private from here */
        void *map;
        size_t map_bytes, file_bytes; /* on a GPU the mapping ends where the hole begins */
        struct planes *planes;        /* on a GPU (planes.h); NULL: in the file */
        bool lost;
        int fd;
        uint32_t n_undo, n_tensors;
        struct undo_slot *undo;
        struct record_copy *copies[2];
        /* the tables in the file, each number with its check value (tables.c) */
        uint64_t *steps[2], *presents[2], *sets, *puts_words, *versions;
        uint32_t putting;         /* puts under way */
        uint64_t *numbers;        /* tensor_step and tensor_set, to write */
        struct state_blobs {      /* blobs.c */
                int fd;           /* -1: there is no file */
                uint32_t n_ranks; /* mapped */
                uint64_t bytes;   /* of the file */
                void *map;
        } blobs;
        char *file; /* name in the directory */
};

/* ---- the directory ---- */

/*
 * Opens (makes) the state directory, mode 0700, and locks it: a second daemon gets
 * ZERO_EBUSY.  ZERO_EPERM if it belongs to somebody else or others may enter it.
 * quota: most bytes of all state files and serve planes; 0: no limit.
 * Outlives every state.
 */
int store_open(const char *directory, uint64_t quota, struct store **ret, struct fault *fault);
void store_close(struct store *store);
/*
 * Before store_close(), when all states are closed and the process will end: writes the planes of
 * those on a GPU to their files.  saved() hears of each, fault NULL, or why it could not be: that
 * state is lost.  Blocks as long as that takes.
 */
void store_save(struct store *store,
                void (*saved)(void *arg, const char *file, uint64_t bytes,
                              const struct fault *fault),
                void *arg);
/* What that has to write. */
uint64_t store_parked(const struct store *store);
uint64_t store_used(const struct store *store);
uint64_t store_quota(const struct store *store);
/*
 * Whether `bytes` more fit: 0, ZERO_EQUOTA or ZERO_ESHM; `elsewhere` of them need no room in the
 * directory: they are in a GPU's memory or in a memfd.  To be asked before a plan is made, whose
 * tables grow with the elements (up to 18 bytes each).  `what` is named in the fault.
 */
int store_admit(const struct store *store, uint64_t bytes, uint64_t elsewhere, const char *what,
                struct fault *fault);
/* Memory beside the states that the quota counts: there, and gone again.  Never refused. */
void store_count(struct store *store, uint64_t bytes);
void store_uncount(struct store *store, uint64_t bytes);
/*
 * Calls each() for every state file there is, with the name for state_open(); stops
 * when it returns non-zero, and returns that; -errno if the directory cannot be read.
 */
int store_each(const struct store *store, int (*each)(const char *file, void *arg), void *arg);

/* ---- a job's state ---- */

/*
 * Makes the state of a new job: space is reserved at once (ZERO_ESHM, ZERO_EQUOTA
 * leave nothing behind), contents are zero.  Out of GPU memory: ZERO_ENOMEM.  n_undo: how many
 * threads will update at once.  Takes the plan over on success; it must be plan_new()'s for
 * partition_new(l, id->n_owners).  ZERO_EBUSY if the job has a state here already.
 * For an offload thread: reserving takes about 0.3 s a GiB.
 */
int state_create(struct store *store, const struct state_identity *id, const layout *l,
                 struct plan *plan, uint32_t n_undo, struct state **ret, struct fault *fault);
/* ZERO_EBUSY if the job has that copy of the owner's state of that epoch here already, in use or
 * not.  Of the identity job, copy and epoch are looked at. */
int state_vacant(const struct store *store, const struct state_identity *id, uint32_t owner,
                 struct fault *fault);
/* What lies under the name of a state is one that was lost on a GPU. */
bool state_was_lost(const struct store *store, const struct state_identity *id, uint32_t owner);
/* Deletes the job's states of owner lists before that epoch, as far as they were lost on a GPU;
 * returns how many. */
uint32_t store_sweep_lost(struct store *store, const char *job, uint64_t before);
/*
 * As state_create(), for a state that is to be filled before it counts: beside another one of the
 * job, perhaps.  Until state_replace() it is no state of the job: a process that dies before leaves
 * nothing of it, and state_drop() deletes it.
 */
int state_draft(struct store *store, const struct state_identity *id, const layout *l,
                struct plan *plan, uint32_t n_undo, struct state **ret, struct fault *fault);
/*
 * The draft becomes the job's state of its owner, copy and epoch, at one instant; `old`, which was
 * that (or NULL: there was none), has no name any more and is still to be dropped.
 */
int state_replace(struct state *draft, struct state *old, struct fault *fault);
/* Whether the file, as store_each() names it, is of a state of the job. */
bool state_is_of(const char *file, const char *job);
/* Who owns the job of a file that store_each() names, also where there is no memory to open it. */
int state_file_uid(const struct store *store, const char *file, uint32_t *ret, struct fault *fault);
/* Deletes a file that store_each() names and nobody has open. */
void store_discard(struct store *store, const char *file);
/* Deletes what lies under the name of a state that nobody here has open, if there is anything. */
void state_discard(struct store *store, const struct state_identity *id, uint32_t owner);
/*
 * Opens the state that an earlier process left, as store_each() names it.  Everything but
 * what the planes hold is checked (file.h); a damaged file is refused (ZERO_EIO), left as it
 * is and never used.  Held undo slots put old values back, so that each chunk is at
 * record->version or, if the record says commit, at the next; presence marks of an
 * attempt that had not been prepared are clear.  The serve plane is empty until
 * state_serve_group().  The layout is the caller's; the identity is in state->id.
 * The state is in host memory, unless this process closed it on a GPU: then it is there still.
 * ZERO_ESHM and ZERO_ENOMEM: the file is whole, and memory is short now.
 */
int state_open(struct store *store, const char *file, struct state **ret, layout **ret_layout,
               struct fault *fault);
/*
 * Its planes were in the GPU memory of a process that died, or had no room to write them.  Nothing
 * but its identity, plan and record may be looked at: it can be dropped or closed.
 */
bool state_lost(const struct state *state);
bool state_on_gpu(const struct state *state);
/*
 * A state in host memory goes to a GPU; before state_serve_group().  ZERO_ENOMEM and the like: it
 * stays where it is.  For a thread that may block.
 */
int state_to_gpu(struct state *state, uint32_t gpu, struct fault *fault);
/* Unmaps; the files stay, and planes on a GPU until the store is closed.  NULL is allowed. */
void state_close(struct state *state);
/* Deletes the files: nothing else does.  state_drop() is still due.  Takes no time. */
void state_unlink(struct state *state);
/*
 * Deletes the files and frees the memory, which takes 0.4 s a GiB: for a thread that may block.
 * NULL is allowed.
 */
void state_drop(struct state *state);
uint64_t state_bytes(const struct state *state);
/*
 * The first trainable tensor with a part here whose hyperparameter set is not below n_sets, or is one
 * of another optimizer than its group's (sets NULL: any will do); n_tensors if there is none.
 */
uint32_t state_check_sets(const struct state *state, const struct hyper_set *sets, uint32_t n_sets);
/* MASTER or a moment; plan_span() says where in it a group lies. */
static inline float *state_plane(const struct state *state, uint32_t plane)
{
        return plane == ZERO_PLANE_MASTER ? state->master
                                          : state->moments[plane - ZERO_PLANE_MOMENT1];
}
/* The version a chunk is at; UINT64_MAX if that cannot be read (the memory is damaged). */
uint64_t state_chunk_version(const struct state *state, uint32_t chunk);
/*
 * Each is in the file at once and whole.  Not while an update runs, and on the thread that
 * changes the record; set below ZERO_SET_MAX, step at most STATE_STEP_MAX.
 */
void state_put_step(struct state *state, uint32_t tensor, uint64_t step);
void state_put_set(struct state *state, uint32_t tensor, uint64_t set);
/*
 * Around whatever a client's put changes, on the thread that changes the record; several may be
 * under way.  `what` names the put: the same number for every copy, another one for another put.
 */
void state_put_begin(struct state *state);
void state_put_end(struct state *state, uint64_t what);
/* A put is under way. */
bool state_putting(const struct state *state);
/* Of a draft: it is filled from copies whose number this is. */
void state_set_puts(struct state *state, uint64_t puts);

/* Here and in snapshot/snapshot.h, `ops` are those of host memory; a state on a GPU uses gpu_ops().
 */

/*
 * Fills a shard's master segments with their tensors' first values (init.h) and writes serve.
 * For an offload thread; groups may be filled in parallel.  -ENOMEM.
 */
int state_init_group(struct state *state, const layout *l, uint32_t group,
                     const struct device_ops *ops);
/* Writes serve from master for a shard (nothing to do for fp32 groups). */
void state_serve_group(struct state *state, const layout *l, uint32_t group,
                       const struct device_ops *ops);
/* The shard as trainers get it: in serve, or in master for fp32 groups; on a GPU if the state is.
 */
const void *state_shard(const struct state *state, const layout *l, uint32_t group);

/*
 * ---- the record: each call leaves the file consistent at every instruction ----
 *
 * OPEN -> PREPARED (again and again, if need be) -> DECIDED -> OPEN.  The version and the
 * attempt of what is passed must be the record's own; the phase is set here.
 * The fields of the last decision change in state_decide() alone, which also sets
 * decided_attempt: what a vote has there is not taken.
 * `present` must not change from state_prepare() until the attempt is over, or prepared anew.
 */

void state_prepare(struct state *state, const struct state_record *vote);
void state_decide(struct state *state, const struct state_record *decision);
/*
 * Every chunk is at version + 1 (or the step was skipped): the attempt is over.  After a commit
 * tensor_step of every present tensor is one higher: exactly one, also if the
 * process dies in here and finishes again later.
 */
void state_finish(struct state *state);
/* The attempt is void: gradients count for nothing, a new attempt begins.  Not after
 * the decision. */
void state_abort(struct state *state, uint64_t next_attempt);
/* A draft, whose planes, steps and sets are filled: it is at an open attempt, all its chunks are at
 * the record's version. */
void state_restore(struct state *state, const struct state_record *record);
