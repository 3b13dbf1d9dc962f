/*
 * moves.h - a small world of one job whose owner list changes: what daemons hold and know, the
 * messages between them, and the history by which a world is judged.
 *
 * The daemon's own machines decide: rules/coordinator.c for the coordinator, rules/owner.c for a node's
 * states, rules/pieces.c for the sources of a fill.  Every other function follows the daemon's
 * function of the same name.  The paxos register of placements is another model (paxos.h): here
 * placements come one after the other, and a node may hear of any of them at any time and restart
 * with it.
 *
 * Left out: trainers (one rank is always there, on the coordinator's node) and their gradients,
 * puts, refused steps, jobs that are made or dropped.
 */
#pragma once

#include "daemon/job/rules/coordinator.h"
#include "daemon/job/rules/owner.h"
#include "search.h"

enum { NODES = 3, PLACEMENTS = 4, COPIES = PLACEMENT_COPIES, HOLDERS = COPIES * NODES };
enum { MESSAGES = 48, STEPS = 3 };

struct bounds {
        u8 n_nodes;
        bool mirror;
        const char *lists[PLACEMENTS]; /* the owners, in their order */
        u8 coordinator;                /* owner, by number */
        u8 steps;                      /* in all */
        /* The most faults of each kind, and of all kinds.  A wipe is a crash after which the node
         * holds nothing, a death a crash without a start; both only if another copy of everything
         * is left. Haste: a coordinator stops waiting for nodes that it need not hear. */
        u8 crashes, wipes, deaths, cuts, hastes, faults;
        /* Fewer orders: links stand at once, one holder after the other pulls all at once. */
        bool less;
};
extern struct bounds bounds;
extern struct placement placements[PLACEMENTS];
extern u8 n_placements;

/* One holder's shards in one placement, and its record; attempt 0: there is none. */
struct state {
        u8 version, attempt, phase, decided; /* phase: enum owner_phase */
        u8 planes, made; /* the version of parameters, and the attempt that made it */
        u8 running;      /* an update; not in the record */
};

/* What a node says about a state; attempt 0: it has none. */
struct stand {
        u8 version, attempt, decided, done, prepared;
};

enum message_type {
        OPEN = 1,
        OPENED,
        SETTLE,
        SETTLED,
        FILL,
        FILLED,
        PLACED,
        START,
        PREPARE,
        PREPARED,
        DECISION,
        DONE
};

struct message {
        u8 type, status, copy, version, attempt, last, epoch, readable;
        struct stand stands[PLACEMENTS][COPIES];
};

/* A holder that is being filled. */
struct filling {
        u8 active, from, sources, pulled; /* holders of the placement `from`, a bit each */
        u8 version, attempt, last, made;
};

/* struct coordinator of the daemon, packed. */
struct coordination {
        u8 there, settled, whole, fault, hasty, old_placement; /* old: epoch + 1 */
        u8 waits; /* waits for nodes that may know more */
        u8 stale, lacks, filling, settling, settled_nodes;
        u8 asked_now; /* nodes asked in the current round */
        u8 nodes[NODES];
        struct stand stands[NODES][PLACEMENTS][COPIES];
        u8 told[NODES]; /* old states that the node last reported: a bit for each list and copy */
        u8 phase, version, attempt, heard, decided, open, voted, done;
};

/* A daemon: the states and the epoch survive it, the rest does not. */
struct node {
        u8 epoch, dead;
        struct state states[PLACEMENTS][COPIES];
        u8 alive, links;
        u8 has_job, started, version, attempt, whole, settles; /* settles: a call waits */
        u8 preparing;                                          /* copies, a bit each */
        struct filling fillings[COPIES];
        struct coordination c;
};

/* What was decided: the last attempt, and its result. */
struct truth {
        u8 attempt, version, made[STEPS + 1]; /* [version]: by which attempt */
        u8 whole;                             /* the last placement that was whole */
};

struct world {
        struct node nodes[NODES];
        u8 chosen; /* the last one that was chosen */
        struct truth truth;
        u8 crashes, wipes, deaths, cuts, hastes;
        u8 count[NODES][NODES];
        struct message messages[MESSAGES]; /* queue by queue */
};

/* ---- moves_world.c: nodes, links and messages ---- */

void world_init(void *w);
size_t world_bytes(const void *w);
bool linked(const struct world *w, uint32_t a, uint32_t b);
/* False: no link. */
bool send(struct world *w, uint32_t from, uint32_t to, struct message m);
const struct placement *placement_of(const struct world *w, uint32_t node);
uint32_t coordinator_of(const struct world *w, uint32_t node);
/* Which holder a copy on a node is; NO_HOLDER: none. */
uint32_t holder_on(const struct placement *placement, uint32_t node, uint32_t copy);
/* The state of a holder. */
struct state *state_at(struct world *w, uint32_t epoch, uint32_t holder);
void daemon_start(struct world *w, uint32_t node);
void daemon_crash(struct world *w, uint32_t node);
void daemon_learn(struct world *w, uint32_t node, u8 epoch);
void link_make(struct world *w, uint32_t a, uint32_t b);
void link_cut(struct world *w, uint32_t a, uint32_t b);
void deliver(struct world *w, uint32_t from, uint32_t to);

/* ---- moves_node.c: job.c, resume.c, old_placement.c, fill_target.c, fill_source.c, update.c  */

struct stand stand_of(const struct state *s);
void job_resume(struct world *w, uint32_t node);
void job_message(struct world *w, uint32_t node, uint32_t from, const struct message *m);
void update_finish(struct world *w, uint32_t node, uint32_t epoch, uint32_t copy);
bool filling_goes_on(struct world *w, uint32_t node, uint32_t copy);
void filling_lose(struct world *w, uint32_t node, uint32_t lost);

/* ---- moves_coordinator.c: daemon/cluster/coordinator ---- */

void coordinator_new(struct world *w, uint32_t node);
void coordinator_up(struct world *w, uint32_t self, uint32_t node);
void coordinator_down(struct world *w, uint32_t self, uint32_t node);
void coordinator_message(struct world *w, uint32_t self, uint32_t from, const struct message *m);
/* Whether the coordinator waits for nodes to say where the job stands. */
bool coordinator_waits(const struct world *w, uint32_t self);
void coordinator_hasten(struct world *w, uint32_t self);
void coordinator_tick(struct world *w, uint32_t self);
bool coordinator_can_step(const struct world *w, uint32_t self);
void coordinator_begin(struct world *w, uint32_t self);

/* ---- moves_machine.c: the coordinator, read from a world and written back ---- */

enum { MACHINE_ACTIONS = 32 };

struct machine_action {
        struct coordinator_action action;
        u8 from, readable; /* COORDINATOR_SETTLE, COORDINATOR_FILL: of which list; holders */
};

extern const struct step_params step_params;
const struct votes *vote_of(uint32_t owner);
/* Steps the coordinator on a node with an event; returns the number of actions. */
uint32_t machine_step(struct world *w, uint32_t self, const struct coordinator_event *e,
                      struct machine_action ret[MACHINE_ACTIONS]);
/* For events: a node's report, valid until the next one of this list and copy. */
struct told_state machine_told(uint32_t node, uint32_t epoch, uint32_t copy, const struct stand *s);

/* ---- moves_judge.c ---- */

void truth_decide(struct world *w, u8 attempt, u8 version);
/* All holders of the placement with a state have voted. */
void truth_voted(struct world *w, uint32_t epoch, u8 attempt);
/* The job goes on from there. */
void truth_stands(const struct world *w, u8 attempt, u8 version);
/* Whether the last commit is complete in some placement: the last one that was complete, or a later
 * one. */
bool truth_kept(struct world *w);
void world_check(struct world *w);
bool world_done(const void *w);
