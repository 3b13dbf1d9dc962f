/*
 * store.h - the states of jobs on this node.  A state holds all that determines the parameters, in
 * files that outlive the process.
 *
 * A state is one owner's part of a job.  Planes, chunk table, undo slots and record are in a file
 * (state.h, map.h).  The serve plane is in a sealed memfd that dies with the process, or in the
 * file if master weights need it (plan->keeps_served).  A process killed at any instruction leaves
 * each chunk restorable.
 *
 * A state may instead lie on a GPU.  Then its planes, serve included, are in the GPU's memory,
 * which no CPU may touch, and the file has a hole in their place.  The planes survive an orderly
 * end of the process if the file system has room for them (store_save()).  After any other end the
 * state is lost (state_lost()).
 *
 * Rule: an update changes a chunk only after the decision is in the record, and in host memory only
 * by undo_update().  Eager groups alone are updated before the decision, and keep their old values.
 */
#pragma once

#include "daemon/store/map.h"
#include "daemon/store/notes.h"
#include "daemon/store/undo.h"

struct store;

/* ---- the directory ---- */

/*
 * Opens the state directory, which it makes if need be, and locks it: a second daemon gets
 * ZERO_EBUSY.  ZERO_EPERM if the directory belongs to another user or is open to others.
 * quota: the most bytes that all states may take; 0: no limit.
 */
int store_open(const char *directory, uint64_t quota, struct store **ret, struct fault *fault);
/* All states must be closed.  NULL is allowed. */
void store_close(struct store *store);
/* Sets how many threads carry planes to GPUs and back; 1 at first. */
void store_set_threads(struct store *store, uint32_t threads);
struct store_saving {
        /* Called once for each state.  fault: why the state is lost; NULL: it is saved. */
        void (*saved)(const char *file, uint64_t bytes, const struct fault *fault);
        /* Called now and then with the bytes that are written; may be NULL. */
        void (*saves)(const char *file, uint64_t done, uint64_t bytes);
};
/*
 * Writes planes on GPUs to their files, as far as another process may need them.  Call it at the
 * end of the process, before store_close().  Blocks until all are written.
 */
void store_save(struct store *store, const struct store_saving *saving);
/* The bytes that store_save() has to write. */
uint64_t store_parked(const struct store *store);
uint64_t store_used(const struct store *store);
uint64_t store_quota(const struct store *store);
/* A quota below what is used refuses new states, and drops none. */
void store_set_quota(struct store *store, uint64_t quota);
/*
 * Checks that `bytes` more fit: 0, ZERO_EQUOTA or ZERO_ESHM.  `elsewhere` of them go to a GPU or a
 * memfd rather than to the directory.  The fault names `what`.
 */
int store_admit(const struct store *store, uint64_t bytes, uint64_t elsewhere, const char *what,
                struct fault *fault);
/* Charges the quota for memory beside the states, and takes the charge back.  Never refused. */
void store_count(struct store *store, uint64_t bytes);
void store_uncount(struct store *store, uint64_t bytes);
/* Calls each() with the name of every state file until each() returns non-zero, and returns that.
 * -errno if the directory cannot be read. */
int store_each(const struct store *store, int (*each)(const char *file, void *arg), void *arg);

/* ---- a state's file, by its name (store_each()) ---- */

/* True if the file belongs to the job. */
bool state_is_of(const char *file, const char *job);
/* Reads the identity of the file's state from its header. */
int state_file_look(const struct store *store, const char *file, struct state_identity *ret,
                    struct fault *fault);
bool store_has(const struct store *store, const char *file);
/* Deletes the file.  The state must not be open. */
void store_discard(struct store *store, const char *file);

/* ---- a state's file, by its identity: job, copy and epoch ---- */

/* Checks that the state has no file: 0, else ZERO_EBUSY. */
int state_vacant(const struct store *store, const struct state_identity *id, uint32_t owner,
                 struct fault *fault);
/* True if the file is there but its planes were lost with a GPU's memory. */
bool state_was_lost(const struct store *store, const struct state_identity *id, uint32_t owner);
/* Deletes the file.  The state must not be open. */
void state_discard(struct store *store, const struct state_identity *id, uint32_t owner);
/* Deletes the job's states of epochs below `before` that were lost on a GPU.  Returns how many. */
uint32_t store_sweep_lost(struct store *store, const char *job, uint64_t before);

/* ---- a job's state: blocking calls, 0.3 s a GiB ---- */

/*
 * Makes a state whose contents are zero, and reserves its space at once (ZERO_ESHM, ZERO_EQUOTA;
 * ZERO_ENOMEM on a GPU).  ZERO_EBUSY: the job has this state already.  n_undo: how many threads
 * update at the same time.  plan: from plan_new() for partition_new(l, id->n_owners); on success
 * the state owns it.
 */
int state_create(struct store *store, const struct state_identity *id, const layout *l,
                 struct plan *plan, uint32_t n_undo, struct state **ret, struct fault *fault);
/* As state_create(), but makes a draft for the caller to fill.  Only state_replace() makes the
 * draft a state of the job.  The next store_open() deletes a draft that was left behind. */
int state_draft(struct store *store, const struct state_identity *id, const layout *l,
                struct plan *plan, uint32_t n_undo, struct state **ret, struct fault *fault);
/* Makes the draft the job's state, in one atomic step.  old, or NULL: the state that it replaces.
 * old loses its file's name, and the caller still has to drop it. */
int state_replace(struct state *draft, struct state *old, struct fault *fault);
/*
 * Opens what an earlier process left.  Checks everything except what the planes hold; refuses a
 * damaged file (ZERO_EIO) and leaves it as it is.  Each chunk is then at record->version or, if the
 * record says commit, at the next version; serve is empty.  After ZERO_ESHM and ZERO_ENOMEM the
 * file is whole: only memory is short.
 */
int state_open(struct store *store, const char *file, struct state **ret, layout **ret_layout,
               struct fault *fault);
/* True if the planes were lost with a GPU's memory.  A lost state can be closed or dropped; callers
 * may read its identity, plan and record, and nothing else. */
bool state_lost(const struct state *state);
/* ZERO_EGPU: states in that place can only accumulate in fp32. */
int state_place_check(const struct job_spec *job, uint32_t place, struct fault *fault);
/* Moves the planes from host memory to another place; serve is empty afterwards.  After a failure
 * the state stays where it is. */
int state_move(struct state *state, uint32_t place, struct fault *fault);
/* Closes the state.  NULL is allowed.  Its files stay; planes on a GPU stay until store_close(). */
void state_close(struct state *state);
/* Deletes the files, which takes no time.  The state stays open. */
void state_unlink(struct state *state);
/*
 * Deletes the files, frees the memory and gives the quota back.  NULL is allowed.  Trainers that
 * map the file (state_serve()) keep what they map of it, and read what they read before.
 */
void state_drop(struct state *state);
/*
 * For a state of a dropped job, before state_drop(): takes the mapped file from trainers, who then
 * get SIGBUS.  If they kept its memory they could exceed the quota, job after job; zeros would be
 * silently wrong.  NULL is allowed.
 */
void state_withdraw(struct state *state);
uint64_t state_bytes(const struct state *state);
