/*
 * shard.h - the shards that this node holds: of its own owners, and mirrors of others'.
 *
 *   replica.c   making and finding them       planes.c   their bytes
 *   shard.c     who reads a group             shards.c   what the ways to a state have in common
 *   release.c   states that are deleted       shut.c     states that wait for memory
 *   facts.c     what the rules read of them
 */
#pragma once

#include "daemon/job/owner.h"
#include "daemon/store/state.h"
#include "daemon/store/undo.h"
#include "daemon/transfer/transfer.h"

struct accumulator;
struct capture;
struct update;

/* Of every state file, whatever the number of compute threads is now. */
enum { UNDO_SLOTS = 64 };
/* Of one job on one node. */
enum { HOLDINGS_MAX = OWNER_REPLICAS, STATES_MAX = 4 * HOLDINGS_MAX };
/* The first attempt of a state whose parameters have their first values. */
enum { JOB_FILLED = 1 };

/* One owner's shards on this node: of an owner that is this node's, or the mirror of another's. */
struct replica {
        struct list link; /* job.replicas */
        struct job *job;
        uint32_t owner, copy;
        uint64_t settling; /* call to be answered when its update is over; 0: none */
        struct state *state;
        uint64_t *shard_version; /* [group]: version of the bytes */
        uint32_t *idle;          /* [group]: committed steps since it last had a gradient, ... */
        uint32_t committed;      /* ... of so many since the state was taken up */
        uint32_t *pins;          /* [group]: payloads and copies that read the shard */
        struct list *pulls;      /* [group]: struct pull that wait for a version */
        struct accumulator *accumulator;
        struct update *update;
        struct capture *capture; /* of a checkpoint, this owner's part; or NULL */
        bool copying;          /* ... its planes are being copied: clients' puts wait */
        bool updating;         /* an update runs */
        bool *unread;          /* [group]: the update has yet to read the group's gradient */
};

#define for_replicas(job, h) \
        for (struct replica *h = replica_first(job); h; h = replica_next(job, h))

/* Empty, and the last of the job's.  -ENOMEM. */
int replica_new(struct job *job, uint32_t owner, uint32_t copy, struct replica **ret);
/* Of a state of an earlier placement.  -ENOMEM: the state is the caller's. */
int replica_new_old_placement(struct job *job, struct state *state, struct replica **ret);
void replica_free(struct replica *h);
struct replica *replica_first(const struct job *job);
struct replica *replica_next(const struct job *job, const struct replica *h);
/* Of an owner, whichever copy; NULL: not on this node. */
struct replica *replica_find(const struct job *job, uint32_t owner);
struct replica *replica_of_copy(const struct job *job, uint32_t owner, uint32_t copy);
/* The same of any placement. */
struct replica *replica_of_epoch(const struct job *job, uint64_t epoch, uint32_t owner,
                                 uint32_t copy);
/* Of those of earlier placements; NULL: there is none. */
struct replica *replica_newest_old_placement(const struct job *job);
/* All that the placement in force has on this node is here. */
bool replicas_whole(const struct job *job);
/* The replica of everything there is, if there is but one owner; else NULL. */
struct replica *replica_sole(const struct job *job);

/* ---- what the rules read (job/owner.h) --------------------------------------- */

struct owner_record record_facts(const struct state_record *r);
/* Whether the replica's record is as an action said that it would be. */
bool record_stands(const struct replica *h, const struct owner_record *r);
/* One replica, of any placement; its id is 0. */
void owner_of_replica(const struct replica *h, struct owner *ret);
/* All replicas in force; at[id] is each of them. */
void owner_of_job(const struct job *job, struct owner *ret, struct replica *at[OWNER_REPLICAS]);

/* ---- a group's bytes ------------------------------------------------------- */

/* Readers of this owner's shard: the update waits until there are none. */
void shard_pin(struct replica *h, uint32_t group);
void shard_unpin(struct replica *h, uint32_t group);
/* The shard has reached a version: waiting pulls and gathers go on. */
void shard_ready(struct replica *h, uint32_t group, uint64_t version);
void shard_pull_message(struct job *job, uint32_t node, const Zero__Pull *request);

/* What computes on a replica's planes. */
const struct device_ops *replica_ops(const struct replica *h);

/* staged_payload() of a replica's planes. */
int plane_payload(struct replica *h, uint32_t node, uint64_t transfer, enum traffic kind,
                  const void *p, size_t n, bulk_done *done, void *arg);
/* n bytes at p of the state's planes, for the CPU: they themselves, or copied to the buffer.  For
 * an offload thread. */
const void *plane_read(const struct replica *h, const void *p, size_t n, void *buffer);

/*
 * Who has to do with an owner's shards while they are made, read and updated.  engine/engine.c
 * lists all observers; each event is told to all of them in that order.  A NULL hook does nothing.
 * All on the loop thread, except update_chunk().
 */
struct shard_observer {
        int (*made)(struct replica *h); /* -ENOMEM */
        void (*freed)(struct replica *h);
        /* A group of it is at a new version. */
        void (*ready)(struct replica *h, uint32_t group);
        /* A group's last reader is gone. */
        void (*unpinned)(struct replica *h);
        /*
         * An update begins to change a group, which is not pinned: from where on in the stream of
         * a checkpoint the observer saves what changes.  UINT64_MAX: nothing; else update_chunk()
         * comes with each chunk's old values, on an offload thread, and update_end() when the group
         * is through.  At most one observer saves.
         */
        uint64_t (*update_begin)(struct replica *h, uint32_t group);
        void (*update_chunk)(const struct replica *h, uint32_t chunk, struct undo_values old,
                             uint64_t from);
        void (*update_end)(struct replica *h);
        /* An update is over, and the next has not begun. */
        void (*updated)(struct replica *h);
        /* No update runs any more, or what was voted for is decided, or planes are copied. */
        void (*settled)(struct job *job);
};

#define for_observers(x, o)                                                          \
        for (const struct shard_observer *const *o##_at = (x)->observers, *o = NULL; \
             o##_at < (x)->observers + (x)->n_observers && (o = *o##_at); o##_at++)

/* What waits for such an end goes on. */
void shard_settled(struct job *job);

/* ---- states ---------------------------------------------------------------- */

/*
 * Deletes the state's files at once, and frees its memory on another thread: the job, if it is not
 * NULL, is referred to until then.
 */
void state_drop_later(struct engine *x, struct job *job, struct state *state);
/* A file of a state that is whole, while memory is short: it waits to be taken up. */
void shut_add(struct engine *x, const char *file);
bool shut_any(const struct engine *x);
/* The node has such a state of the job. */
bool shut_has(const struct engine *x, const char *job);
/* Who owns the job, of which the node has such a state. */
int shut_uid(const struct engine *x, const char *job, uint32_t *ret, struct fault *fault);
/* Those that opens() takes up wait no more. */
void shut_retry(struct engine *x, bool (*opens)(struct engine *x, const char *file));
/* Deletes such states of the job. */
void shut_drop(struct engine *x, const char *job);
void shut_forget(struct engine *x);
/* state_create() or state_draft() */
typedef int shards_maker(struct store *store, const struct state_identity *id, const layout *l,
                         struct plan *plan, uint32_t n_undo, struct state **ret,
                         struct fault *fault);
/* Where this node puts states of the owner list in force (state_identity.place). */
uint32_t shards_place(const struct engine *x, uint32_t owner, uint32_t copy);
/* An owner's shards of the owner list in force, empty, in their place; p is over id->n_owners.
 * For a thread that may block. */
int shards_make(const struct engine *x, const struct state_identity *id, const layout *l,
                const struct partition *p, uint32_t owner, shards_maker *make, struct state **ret,
                struct fault *fault);

/* Trainable elements of a range of a group, gaps behind trainable tensors included. */
uint64_t shard_trainable(const layout *l, uint32_t group, struct range range);
/* Bytes of an owner's master weights and moments: what a fill brings. */
uint64_t shards_bytes(const layout *l, const struct partition *p, uint32_t owner);

/* Where a state stands; the messages it points to are the caller's. */
struct standing_message {
        Zero__Standing standing;
        Zero__Decision decision;
        struct step_params_message params;
        int64_t norm[EXACT_SUM_BINS];
};
Zero__Standing *standing_fill(const struct state *state, struct standing_message *ret);

extern const struct module shard_module;
