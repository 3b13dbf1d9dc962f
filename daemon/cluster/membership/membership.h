/*
 * membership.h - which nodes hold shards, and how that changes.  Drives rules/paxos.h over the
 * links, and keeps its record on a disk (ballots.h).
 *
 * Events are handled one after the other.  If an event changes the record, a blocking thread writes
 * the record.  Until it is on the disk, this node says nothing about the event and handles no other
 * event.  Of each node the last message waits; earlier messages are lost, and the nodes repeat
 * them.
 *
 * If the proposer of a change dies, any node that has accepted the change completes it once enough
 * nodes are up.
 *
 * A chosen placement comes into force when the node restarts (node_ops).  A job may then find
 * states of an earlier placement: rules/coordinator_place.c moves them.
 */
#pragma once

#include "daemon/cluster/membership/ballots.h"
#include "daemon/job/rules/paxos.h"
#include "daemon/job/transfer/transfer.h"

/* A change that a person asks for. */
struct membership_change {
        struct placement wanted;
        node_set dead;
        void (*done)(struct membership_change *c, int status, const char *text);
};

/* A return to the owner list before the one in force, because a job cannot move. */
struct membership_back {
        struct membership_change change;
        struct engine *x;
        struct taken_back note;
        bool wished;
};

struct membership {
        struct engine *x;
        struct paxos r;
        struct paxos_record durable; /* what is on the disk */
        struct ballots *ballots;     /* NULL: a node without peers */
        struct drained *drained;
        struct membership_change *change; /* a client's change in progress, or back.change */
        struct membership_back back;
        uint64_t retry_ms, complete_ms; /* loop times */

        bool writing;
        struct blocking_work disk;
        struct ballots_record record;
        int written;      /* -errno or 0 */
        uint32_t actions; /* to carry out once the record is written */
        uint32_t from;    /* the node that sent the event */
        bool split_told[ZERO_NODE_MAX];
        struct membership_waiting {
                bool there;
                struct paxos_message m;
        } waiting[ZERO_NODE_MAX];
};

/* Reads the record.  Its placement replaces the configured one.  Call it after engine_start(). */
int membership_start(struct engine *x, struct fault *fault);
/* No write may be in progress. */
void membership_free(struct engine *x);
void membership_up(struct engine *x, uint32_t node);
void membership_message(struct engine *x, uint32_t node, const Zero__LinkMessage *m);

enum membership_kind { MEMBERSHIP_ADD, MEMBERSHIP_REMOVE, MEMBERSHIP_TAKEOVER };
/* Plans the change.  names: a node, or several with commas for MEMBERSHIP_TAKEOVER. */
int membership_plan(const struct engine *x, enum membership_kind kind, const char *names,
                    struct membership_change *ret, struct fault *fault);
/* Begins the change.  done() is called later, once, but not after membership_forget(): a forgotten
 * change may still be chosen. */
int membership_change(struct engine *x, struct membership_change *change, struct fault *fault);
void membership_forget(struct engine *x, const struct membership_change *change);
/* Says whose votes the change waits for. */
void membership_describe(const struct engine *x, node_set dead, struct wait_line *ret);
/* The last chosen owner list, which comes into force when the node restarts. */
const struct placement *membership_chosen(const struct engine *x);
/* The list of a change that began and may still be chosen; NULL: none. */
const struct placement *membership_undecided(const struct engine *x);
/* True if this node has a vote. */
bool membership_votes(const struct engine *x);
/* True while a change is in progress: until it is decided, no job may be created. */
bool membership_changing(const struct engine *x);

/*
 * Takes a change back because a job cannot move: proposes the previous owners in a new epoch, again
 * and again, until another list is chosen.
 */
void membership_take_back(struct engine *x, const struct placement *before, const char *why);
/* Ends membership_take_back(): the daemon stops. */
void membership_back_forget(struct engine *x);

/* drained.c: a node that takes no new ranks. */
enum { DRAINED_MAX = 65536 };
struct rank;
struct rank_needs;
struct drained_rank {
        char job[ZERO_NAME_MAX + 1];
        uint32_t rank, pid;
        uint64_t start; /* process_start() */
};
bool membership_drained(const struct engine *x);
/* A change of the drain.  It belongs to drained.c until done(). */
struct drained_change {
        struct list link;
        bool on;
        void (*done)(struct drained_change *c, int error); /* errno, or 0 */
};
/* Begins or queues the change: changes come one after the other.  done() is called when the disk
 * has the change, perhaps before this call returns.  After an error, membership_drained() says if
 * the node is drained. */
void drained_set(struct engine *x, struct drained_change *change);
/* The ranks of this node whose processes run; valid until the next call.  0 or -ENOMEM. */
int drained_ranks(const struct engine *x, const struct drained_rank **ret, uint32_t *ret_n);
/* True if the rank may attach to the drained node: it comes back, so it is not new. */
bool drained_admits(const struct engine *x, const char *job, const struct rank_needs *needs);
/* Adds a rank that has come back to the file. */
void drained_keep(struct engine *x, const struct rank *rank);
int drained_start(struct engine *x, struct fault *fault);
bool drained_idle(const struct engine *x);
void drained_free(struct membership *v);

/* message.c */
void membership_send(struct engine *x, uint32_t node, const struct paxos_message *m,
                     const struct fault *refusal);
int membership_receive(const struct engine *x, uint32_t node, const Zero__Paxos *from,
                       struct paxos_message *ret);
void record_to_ballots(const struct paxos_record *r, struct ballots_record *ret);
/* False: no cluster of this configuration can have that record. */
bool record_from_ballots(const struct engine *x, const struct ballots_record *b,
                         struct paxos_record *ret);

extern const struct module membership_module;
