/*
 * world.h - one state of a small cluster that trains one job: everything that daemons and trainers
 * know, the messages between them, and the explorer's memory by which it judges the state.
 *
 * A world is plain bytes: equal states have equal bytes (unused ones are zero), so that it can be
 * copied, hashed and compared as it is.  The daemon's own machines decide: rules/coordinator.c for
 * the coordinator (coordinator.c and machine.c here fill its struct and read it back), rules/owner.c
 * for a node's replicas (node.c).  Every other function follows the daemon's function of the same
 * name.
 *
 * Left out: payloads (an offer carries what it offers), refused steps, worlds that change their size,
 * jobs that are made or dropped, puts, deadlines.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/job/rules/owner.h"
#include "search.h"

enum { NODES = 3, RANKS = 3, PROCS = RANKS + 1, MICRO_BATCHES = 2 };
enum { COPIES = PLACEMENT_COPIES, HOLDERS = COPIES * NODES };
enum { MESSAGES = 40, EARLY = 10, COORDINATOR = 0, NOBODY = 0xff };

struct bounds {
        u8 n_nodes, owners, n_ranks; /* owners: a bit a node; rank r runs on node r */
        bool mirror;
        u8 micro_batches, steps;
        bool norm;     /* ranks ask for the norm, then end the step */
        bool overflow; /* the gradient of the first step is not finite at first */
        bool eager;    /* sums may be used ahead of the decision, and somebody may read the planes */
        /* The most faults of each kind, and of all kinds.  A crash may also come between the two
         * records of a node.  A wipe is a crash after which the node holds nothing; only if there
         * is another copy of everything. */
        u8 crashes, wipes, cuts, kills, moves, faults;
        u8 less; /* orders that are left out: LESS_* */
};

/*
 * Fewer orders of events, for larger bounds.  SELF: a daemon's messages to itself come before
 * anything else.  FLIGHT: messages in flight are lost at the moment a link breaks.  UP: a link
 * comes up at both ends at the same moment.
 */
enum { LESS_SELF = 1, LESS_FLIGHT = 2, LESS_UP = 4 };

extern struct bounds bounds;
extern struct placement placement;

enum message_type {
        JOIN = 1,
        JOIN_ANSWER,
        PART,
        PART_TOLD,
        OPEN,
        OPENED,
        START,
        READY,
        READY_REFUSED,
        PREPARE,
        PREPARED,
        DECISION,
        DONE,
        OFFER,
        LINKS,
        FILL,
        FILLED
};

/* What a holder says of its record; attempt 0: it has none. */
struct stand {
        u8 version, attempt, decided_attempt, decision, skipped, done, prepared_attempt, vote,
                scale;
};

struct message {
        u8 type, attempt, version, scale, decision, skipped;
        u8 rank, session, status, flag; /* flag: by type; of a step: the norm; FILL: the source */
        u8 copy;                        /* of what the sender holds; FILL: the receiver */
        u8 place[RANKS];                /* node or incarnation of each rank */
        u8 micro_batch, last, vote;
        u8 sum[MICRO_BATCHES][RANKS]; /* what an owner offers to its mirror */
        struct stand stands[COPIES];
};

/* struct state_record, and the planes it describes; attempt 0: there is none. */
struct record {
        u8 version, attempt, decided_attempt, decision, skipped, vote, scale;
        u8 phase;                       /* enum owner_phase */
        u8 planes;                      /* the version of parameters and moments */
        u8 parts[MICRO_BATCHES][RANKS]; /* for the judge: the incarnations that the vote sums */
};

/* What a node's ranks contributed to a micro-batch. */
struct node_gradient {
        u8 attempt, parts[RANKS];
};

/* An offer of an attempt that has not begun. */
struct early {
        u8 node, copy, attempt, micro_batch, last, place[RANKS], sum[MICRO_BATCHES][RANKS];
};

enum { RANK_EXISTS = 1, RANK_CALLING = 2, RANK_IN = 4, RANK_ATTACHING = 8, RANK_ADMITTED = 16 };

enum replica_runs { RUNS_NOTHING, RUNS_UPDATE, RUNS_UNDO };

/* One owner's shards: copy 0 of the node's own, copy 1 of the owner before it. */
struct replica {
        struct record record;
        u8 offered[NODES], finished;
        struct node_gradient landed[NODES][MICRO_BATCHES];
        u8 chained; /* the sum is offered to the mirror */
        u8 preparing; /* 1: the vote, 2: for the norm */
        u8 prepare_scale, running; /* enum replica_runs */
        u8 ahead; /* the attempt whose sum the planes have ahead of its decision; 0: none */
        u8 ahead_parts[MICRO_BATCHES][RANKS]; /* that sum */
        u8 from, pulled; /* where it is being filled from (node + 1); the planes are there */
        struct record draft;
};

/* A daemon: the records survive it, the rest does not. */
struct node {
        struct replica replicas[COPIES];
        u8 alive;
        u8 up; /* nodes whose link stands, as this daemon knows */
        u8 has_job, started, version, attempt, scale, skipped, last_attempt, last_version,
                last_decision;
        u8 node_of_rank[RANKS], stepped, closed; /* a bit a rank */
        u8 session[RANKS];                       /* process + 1 */
        u8 pushed[RANKS], reduced;               /* micro-batches */
        u8 contributed[RANKS][MICRO_BATCHES];    /* for the judge: by which incarnation */
        u8 ranks[PROCS];                         /* struct rank of each process */
        u8 gathered;                             /* version + 1 that its gather window holds */
        u8 n_early;
        struct early early[EARLY];
};

/* struct join */
struct waiting {
        u8 node, rank, session, admitted;
};

/* struct coordinator of the daemon, packed. */
struct coordination {
        u8 settled, lacks;
        u8 filling;   /* holders that were asked to fill themselves, a bit each */
        u8 asked_now; /* nodes asked in the current round */
        u8 nodes[NODES], sessions[RANKS];
        struct stand standings[HOLDERS];
        u8 n_joins;
        struct waiting joins[PROCS];
        u8 phase, version, attempt, heard, node_of_rank[RANKS], rank_slots[RANKS], open, cut[NODES],
                ready, votes[HOLDERS], done, have_params, params_rank, params_scale, decision,
                decided_attempt, scale, skipped;
        u8 norm; /* a bit: collecting_norm, norm_only, normed */
};

enum proc_state {
        PROC_NONE,
        PROC_AWAY,
        PROC_ATTACHING,
        PROC_RUNS,
        PROC_NORMS,
        PROC_STEPS,
        PROC_FENCED
};

/* A trainer. */
struct proc {
        u8 state, rank, node, incarnation, version, attempt, micro_batch, scale;
        u8 in_flight; /* attempt of a zero_step() that its lost daemon did not answer */
        u8 normed;    /* it was told the norm of its attempt */
        u8 zombie;    /* another process has taken its rank */
        u8 displaced; /* sessions of this incarnation that ended because its rank was elsewhere */
};

/* A decision; the world keeps the last two. */
struct truth {
        u8 attempt, version, decision;
};

struct world {
        struct node nodes[NODES];
        u8 connected[NODES]; /* a bit a node */
        u8 count[NODES][NODES];
        struct coordination c;
        struct proc procs[PROCS];
        struct truth truth[2];
        u8 told[RANKS]; /* the highest version that a process of the rank was told */
        u8 crashes, wipes, cuts, kills, moves;
        struct message messages[MESSAGES]; /* queue by queue; last, because most are unused */
};

/* The session of a process: 2 bits of the process, 3 of its incarnation, 3 of its sessions before.
 */
static inline u8 session_of(const struct world *w, uint32_t p)
{
        return (u8)(p << 6 | w->procs[p].incarnation << 3 | w->procs[p].displaced);
}
static inline u8 session_proc(uint64_t session)
{
        return (u8)(session >> 6);
}
static inline u8 session_incarnation(uint64_t session)
{
        return session >> 3 & 7;
}

/* ---- world.c: links and messages ---- */

bool is_owner(uint32_t node);
/* The holder that a copy on a node is; the replica with the other copy. */
uint32_t holder_on(uint32_t node, uint32_t copy);
struct replica *twin_of(struct world *w, uint32_t node, uint32_t copy);
bool is_up(const struct world *w, uint32_t node, uint32_t to);
/* Bytes up to the last message; those behind are zero. */
size_t world_bytes(const void *world);
/* As fabric_send(): false if the node knows no link. */
bool send(struct world *w, uint32_t from, uint32_t to, struct message m);
void send_all(struct world *w, uint32_t from, struct message m);
const struct message *first(const struct world *w, uint32_t from, uint32_t to);
struct message take(struct world *w, uint32_t from, uint32_t to);
void link_up(struct world *w, uint32_t node, uint32_t to);
void link_down(struct world *w, uint32_t node, uint32_t to);
void link_cut(struct world *w, uint32_t a, uint32_t b);
void daemon_crash(struct world *w, uint32_t node);
/* A crash that also loses the records. */
void daemon_wipe(struct world *w, uint32_t node);
void daemon_start(struct world *w, uint32_t node);
void deliver(struct world *w, uint32_t from, uint32_t to);
/* The cluster at rest: the job exists, all links stand, no trainer has come. */
void world_init(void *world);
/* Checks what must hold in every state. */
void world_check(const struct world *w);
bool world_done(const void *world);

/* ---- node.c: drives daemon/job/rules/owner.h, as job.c, update.c, resume.c do ---- */

struct owner_stand record_stand(const struct record *r);
void job_resume(struct world *w, uint32_t node);
void job_message(struct world *w, uint32_t node, uint32_t from, const struct message *m);
/* One of the node's records has the decision, then the daemon is killed. */
void job_tear(struct world *w, uint32_t node, uint32_t copy);
/* Votes if all that the replica's vote waits for has come. */
void replica_summed(struct world *w, uint32_t node, uint32_t copy);
void update_finish(struct world *w, uint32_t node, uint32_t copy);
/* update.c: a complete sum is used ahead of the decision; old values are put back. */
bool lead_can(const struct world *w, uint32_t node, uint32_t copy);
void lead(struct world *w, uint32_t node, uint32_t copy);
void update_undo(struct replica *h);

/* ---- accumulator.c: accumulator.c, vote.c ---- */

void accumulator_offer(struct world *w, uint32_t node, uint32_t from, const struct message *m);
/* Offers of attempts that have not begun are lost with the link. */
void accumulator_lose(struct world *w, uint32_t node, uint32_t from);
/* Clears the sums for a new attempt. */
void accumulator_reset(struct world *w, uint32_t node);
/* Whether all that the replica sums in this attempt has come. */
bool accumulator_complete(const struct world *w, uint32_t node, uint32_t copy);
void accumulator_sum(const struct world *w, uint32_t node, uint32_t copy,
                     u8 parts[MICRO_BATCHES][RANKS]);
/* If the sum is complete: offers it to the mirror, and votes. */
void accumulator_vote(struct world *w, uint32_t node, uint32_t copy);

/* ---- filling.c: a holder that has lost its state takes the other copy's ---- */

void fill_begin(struct world *w, uint32_t node, const struct message *m);
/* Fills from another node are lost. */
void fill_lose(struct world *w, uint32_t node, uint32_t from);
/* Whether the holder can get the next part now. */
bool fill_can(const struct world *w, uint32_t node, uint32_t copy);
void fill_go_on(struct world *w, uint32_t node, uint32_t copy);
struct stand stand_of(const struct record *r);

/* ---- ranks.c: attach.c, rank.c, and libzero ---- */

void proc_attach(struct world *w, uint32_t p);
bool proc_can_push(const struct world *w, uint32_t p);
void proc_push(struct world *w, uint32_t p);
void proc_step(struct world *w, uint32_t p);
void proc_kill(struct world *w, uint32_t p);
void proc_move(struct world *w, uint32_t p, uint32_t node);
void proc_lose_daemon(struct world *w, uint32_t p);
void rank_joined(struct world *w, uint32_t node, const struct message *m);
void rank_fence(struct world *w, uint32_t node, const struct message *m);
void ranks_up(struct world *w, uint32_t node);
void ranks_down(struct world *w, uint32_t node);
void ranks_admit(struct world *w, uint32_t node);
/* The attempt has ranks of these sessions on other nodes: the sessions end, and their trainers
 * attach again. */
void ranks_displace(struct world *w, uint32_t node);
/* Those that wait for the norm get it. */
void ranks_tell_norm(struct world *w, uint32_t node);
/* Waiting calls of the node's ranks end: decided (its result) or not (ZERO_EABORTED). */
void ranks_answer(struct world *w, uint32_t node, bool decided);
void ranks_refuse_step(struct world *w, uint32_t node, int status);

/* ---- coordinator.c: daemon/cluster/coordinator ---- */

void coordinator_new(struct world *w);
void coordinator_up(struct world *w, uint32_t node);
void coordinator_down(struct world *w, uint32_t node);
void coordinator_tick(struct world *w);
void coordinator_message(struct world *w, uint32_t from, const struct message *m);

/* ---- judge.c: votes and decisions by number, and what must hold of them ---- */

/* The bounds have changed: forgets all numbers. */
void numbers_forget(void);
u8 vote_of(uint32_t owner, uint32_t version, uint32_t skipped);
struct votes;
struct decision;
const struct votes *vote_at(u8 number);
u8 decision_number(const struct decision *d);
const struct decision *decision_at(u8 number);
bool commits(u8 decision);
double decision_scale(u8 decision);
double scale_value(u8 scale);
u8 scale_number(double value);
/* An attempt was decided, for the first time or again. */
void truth_decide(struct world *w, u8 attempt, u8 version, u8 decision);
/* What was voted for is of processes on the nodes where ranks have their places, not of fenced
 * ones. */
void truth_rank_slots(const struct world *w);
/* A process was told that its zero_step() of an attempt came to this. */
void truth_told(struct world *w, uint32_t p, u8 attempt, u8 version, u8 decision);
/* A process was told to replay a step at a version. */
void truth_aborted(struct world *w, uint32_t p, u8 attempt, u8 version);
/* A process was told where the job stands. */
void truth_stands(struct world *w, uint32_t p, u8 version);
