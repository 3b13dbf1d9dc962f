/*
 * shard.h - the shards on this node: those of its own owners, and mirrors of others.
 *
 *   replica.c   makes and finds replicas      shards.c   makes the shards of a state
 *   shard.c     readers of a group            facts.c    describes replicas to rules/owner.h
 *   release.c   deletes states
 */
#pragma once

#include "daemon/job/rules/owner.h"
#include "daemon/job/shard/observer.h"
#include "daemon/job/shard/part.h"
#include "daemon/job/transfer/transfer.h"

struct accumulator;
struct capture;
struct update;

/* Of one job on one node. */
enum { REPLICAS_MAX = OWNER_REPLICAS, STATES_MAX = 4 * REPLICAS_MAX };
enum { JOB_FILLED = 1 }; /* the first attempt of a state whose parameters have been set */

/* One owner's shards on this node: the owner's own, or a mirror. */
struct replica {
        struct list link; /* job.replicas */
        struct job *job;
        uint32_t owner, copy;
        uint64_t settling; /* call to answer when the update is over; 0: none */
        struct state *state;
        uint64_t *shard_version; /* [group]: version of what is served, unless it changes now */
        bool *changing; /* [group]: from the first chunk of a decided update until shard_ready() */
        uint32_t *order; /* groups: the n_used that ranks asked for, then the others */
        uint32_t n_used; /* at used_version */
        uint64_t used_version;
        uint32_t *idle;     /* [group]: committed steps since its last gradient */
        uint32_t committed; /* steps since the state was taken up */
        uint32_t *pins;     /* [group]: payloads and copies that read the shard */
        struct list *pulls; /* [group]: struct pull that wait for a version */
        uint32_t codings;   /* deltas of it that are being coded: they have the state mapped */
        struct accumulator *accumulator;
        struct update *update;
        struct capture *capture; /* this owner's part of a checkpoint; or NULL */
        bool copying;            /* a checkpoint copies planes: puts of clients wait */
        bool updating;           /* an update runs, or its undoing */
        bool ahead;              /* planes are, or may be, ahead of the record */
        bool *unread;            /* [group]: the update still has to read the gradient */
};

#define for_replicas(job, h) \
        for (struct replica *h = replica_first(job); h; h = replica_next(job, h))

/* Appends an empty replica to the job's.  -ENOMEM. */
int replica_new(struct job *job, uint32_t owner, uint32_t copy, struct replica **ret);
/* Of a state of an earlier placement.  -ENOMEM: the state stays the caller's. */
int replica_new_old_placement(struct job *job, struct state *state, struct replica **ret);
void replica_free(struct replica *h);
struct replica *replica_first(const struct job *job);
struct replica *replica_next(const struct job *job, const struct replica *h);
/* Of the owner, its own or a mirror; NULL: not on this node. */
struct replica *replica_find(const struct job *job, uint32_t owner);
struct replica *replica_of_copy(const struct job *job, uint32_t owner, uint32_t copy);
/* The same, in the placement of any epoch. */
struct replica *replica_of_epoch(const struct job *job, uint64_t epoch, uint32_t owner,
                                 uint32_t copy);
/* The newest replica of an earlier placement; NULL: none. */
struct replica *replica_newest_old_placement(const struct job *job);
/* Whether this node has all that the placement in force gives it. */
bool replicas_whole(const struct job *job);
/* If there is one owner: its replica, which holds everything.  Else NULL. */
struct replica *replica_sole(const struct job *job);

/* ---- what the rules read (rules/owner.h) --------------------------------------- */

struct owner_record record_facts(const struct state_record *r);
/* Whether the replica's record is what an action said that it would be. */
bool record_stands(const struct replica *h, const struct owner_record *r);
/* Describes one replica, of any placement; its id is 0. */
void owner_of_replica(const struct replica *h, struct owner *ret);
/* Describes all replicas of the placement in force; at[id] is each of them. */
void owner_of_job(const struct job *job, struct owner *ret, struct replica *at[OWNER_REPLICAS]);

/* ---- a group's bytes ------------------------------------------------------- */

/* A reader of the shard begins: the update waits until there are none. */
void shard_pin(struct replica *h, uint32_t group);
void shard_unpin(struct replica *h, uint32_t group);
/* Whether what is served is of that version now. */
static inline bool shard_has(const struct replica *h, uint32_t group, uint64_t version)
{
        return h->shard_version[group] == version && !h->changing[group];
}
/* The shard has reached a version: pulls and gathers that wait for it go on. */
void shard_ready(struct replica *h, uint32_t group, uint64_t version);
/* Answers the pulls of the group that need wait no longer. */
void shard_pulls(struct replica *h, uint32_t group);
/* A rank of any node uses the group at that version.  Updates take groups in the order of use. */
void shard_use(struct replica *h, uint32_t group, uint64_t version);
void shard_pull_message(struct job *job, uint32_t node, const Zero__Pull *request);

void shard_settled(struct job *job);

/* ---- states ---------------------------------------------------------------- */

/* As state_drop(), but frees the memory on another thread; the job, if any, stays until then. */
void state_drop_later(struct engine *x, struct job *job, struct state *state);
/* Where this node puts states under the owner list in force (state_identity.place). */
uint32_t shards_place(const struct engine *x, uint32_t owner, uint32_t copy);
/* Makes an owner's empty shards, a state or a draft.  p is over `under`.  May block. */
int shards_make(const struct engine *x, const struct job_spec *job, const struct placement *under,
                const struct partition *p, uint32_t owner, uint32_t copy, bool draft,
                struct state **ret, struct fault *fault);
bool job_fresh(const struct job *job); /* all of its states here are as they were created */

/* Records what a vote's step is to be; standing_fill() tells it. */
void record_params(struct state_record *r, const struct step_params *params);
/* The message that says where a state stands; what it points to belongs to the caller. */
struct standing_message {
        Zero__Standing standing;
        Zero__Decision decision;
        struct step_params given;
        struct step_params_message params;
        int64_t norm[EXACT_SUM_BINS];
};
Zero__Standing *standing_fill(const struct state *state, struct standing_message *ret);

extern const struct module shard_module;
