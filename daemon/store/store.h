/*
 * store.h - the states of jobs on this node: what decides what the parameters are, in files that
 * outlive the process.
 *
 * A state is one owner's part of a job: planes, chunk table, undo slots and record in a file
 * (state.h, map.h), and the serve plane in a sealed memfd that goes with the process.  A process
 * killed at any instruction leaves each chunk restorable.
 *
 * Or it is on a GPU: its planes, serve included, are in the GPU's memory and no CPU may touch them;
 * the file has a hole in their place.  They survive an orderly end of the process, if the file has
 * room for them (store_save()), but no other: then the state is lost (state_lost()).
 *
 * Rule: a chunk is changed only after the decision is in the record, and by undo_update().
 */
#pragma once

#include "daemon/store/map.h"
#include "daemon/store/state.h"

struct store;

/* ---- the directory ---- */

/*
 * Opens (makes) the state directory and locks it: a second daemon gets ZERO_EBUSY.  ZERO_EPERM if
 * it belongs to somebody else or others may enter it.  quota: most bytes of all states; 0: no
 * limit.
 */
int store_open(const char *directory, uint64_t quota, struct store **ret, struct fault *fault);
/* When all states are closed. */
void store_close(struct store *store);
/*
 * Before store_close(), at the end of the process: writes planes on GPUs to their files.  saved()
 * hears of each, fault NULL, or why it is lost.  Blocks as long as that takes.
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
 * Whether `bytes` more fit: 0, ZERO_EQUOTA or ZERO_ESHM; `elsewhere` of them are not for the
 * directory, but for a GPU or a memfd.  `what` is named in the fault.
 */
int store_admit(const struct store *store, uint64_t bytes, uint64_t elsewhere, const char *what,
                struct fault *fault);
/* Memory beside the states that the quota counts: there, and gone again.  Never refused. */
void store_count(struct store *store, uint64_t bytes);
void store_uncount(struct store *store, uint64_t bytes);
/* Calls each() for every state file until it returns non-zero, and returns that, or -errno. */
int store_each(const struct store *store, int (*each)(const char *file, void *arg), void *arg);
/* Of a file that store_each() names: whether it is of the job; the owner of its job, also where
 * there is no memory to open it.  It is deleted, if nobody has it open. */
bool state_is_of(const char *file, const char *job);
int state_file_uid(const struct store *store, const char *file, uint32_t *ret, struct fault *fault);
void store_discard(struct store *store, const char *file);
/* What lies under the name of a state, of which job, copy and epoch count: ZERO_EBUSY if anything
 * does; whether it was lost on a GPU; it is deleted, if nobody has it open. */
int state_vacant(const struct store *store, const struct state_identity *id, uint32_t owner,
                 struct fault *fault);
bool state_was_lost(const struct store *store, const struct state_identity *id, uint32_t owner);
void state_discard(struct store *store, const struct state_identity *id, uint32_t owner);
/* Deletes the job's states of epochs before that one which were lost on a GPU; how many. */
uint32_t store_sweep_lost(struct store *store, const char *job, uint64_t before);

/* A dropped job: which nodes may not have heard of it.  A small file beside the states. */
struct drop_note {
        const char *job;
        const char *nodes; /* names with blanks between */
        uint32_t uid;      /* of the job */
};

/* Takes the place of an older one of the job. */
int drops_write(const struct store *store, const struct drop_note *note, struct fault *fault);
void drops_delete(const struct store *store, const char *job);
void drops_each(const struct store *store, void (*each)(const struct drop_note *note, void *arg),
                void *arg);

/* ---- a job's state: blocking calls, 0.3 s a GiB; the file's name is as store_each() has it ----
 */

/*
 * Space is reserved at once (ZERO_ESHM, ZERO_EQUOTA, ZERO_ENOMEM on a GPU), contents are zero.
 * n_undo: how many threads update at once.  Takes over the plan, which is plan_new()'s for
 * partition_new(l, id->n_owners).  ZERO_EBUSY if the job has the state already.
 */
int state_create(struct store *store, const struct state_identity *id, const layout *l,
                 struct plan *plan, uint32_t n_undo, struct state **ret, struct fault *fault);
/* One that is to be filled: until state_replace() it is no state of the job, and goes with the
 * process. */
int state_draft(struct store *store, const struct state_identity *id, const layout *l,
                struct plan *plan, uint32_t n_undo, struct state **ret, struct fault *fault);
/* The draft becomes the job's state at one instant; `old`, which was that (or NULL), has no name
 * any more and is still to be dropped. */
int state_replace(struct state *draft, struct state *old, struct fault *fault);
/*
 * What an earlier process left: all but what the planes hold is checked; a damaged file is refused
 * (ZERO_EIO) and left.  Each chunk is at record->version or, if the record says commit, at the
 * next; serve is empty.  ZERO_ESHM and ZERO_ENOMEM: the file is whole, and memory is short now.
 */
int state_open(struct store *store, const char *file, struct state **ret, layout **ret_layout,
               struct fault *fault);
/* Nothing but its identity, plan and record may be looked at: it can be dropped or closed. */
bool state_lost(const struct state *state);
/* From host memory, before state_serve_group().  After a failure it stays where it is. */
int state_to_gpu(struct state *state, uint32_t gpu, struct fault *fault);
/* The files stay, and planes on a GPU until the store is closed.  NULL is allowed. */
void state_close(struct state *state);
/* Deletes the files, which takes no time; state_drop() does that too and frees the memory. */
void state_unlink(struct state *state);
void state_drop(struct state *state);
uint64_t state_bytes(const struct state *state);
