/*
 * The paxos register of placements: which one follows the current one.  I/O-free: events go in, a
 * set of actions comes out.
 *
 * Epochs are decided one after the other.  The nodes of the static list agree on a single decree
 * for each in two rounds (Lamport, "Paxos Made Simple", 2001); any majority is enough.  A proposer
 * asks for promises under a ballot of its own, then for acceptance of one placement.  Nodes that
 * promise say what they have accepted before.  The proposer continues with the newest of these
 * placements; only if there is none it continues with its own.  So two proposers cannot both win:
 * the later one completes the earlier one's placement and reports that another one has won.
 *
 *   IDLE       this node proposes nothing
 *   PREPARING  it collects promises      paxos_retry() begins either again under
 *   ACCEPTING  it collects acceptances   a higher ballot; the driver pauses before that
 *
 * What a node has promised or accepted must outlive its process and a loss of power.  So after an
 * event that gives PAXOS_WRITE, nothing is said before the record is on the disk.  A proposer asks
 * its own acceptor first, so its own disk has what others may have promised or accepted.
 *
 * A node has no record at its first start, or after the loss of its disk.  It does not vote until
 * it has heard from all others.  Then it has the record of the furthest of them.  Proposers ask
 * themselves first, so one of the others has whatever this node may have promised before.  That
 * holds for one lost disk at a time.
 *
 * GROWTH.  New nodes come to the end of the static list.  The others' records stay in force: a node
 * without a record begins with the list of its configuration and takes over theirs.  It votes once
 * it has heard from all nodes of the longer list, so two majorities of different lists always meet.
 *
 * THE DEAD.  A person may declare nodes dead (`dead`): their votes are not needed.  Then half of
 * all nodes is enough, or all remaining ones if these are fewer.  Such a quorum shares a living
 * node with every earlier majority, so nothing chosen together with the dead is chosen again.
 *
 * The price: a declared node may be alive and only out of reach.  Then a majority with it, or
 * another person's word on its side, can choose another placement for the same epoch.  When the two
 * placements meet, PAXOS_SPLIT is given.  With two nodes there is no other way: one node cannot
 * know if the other is dead.
 */
#pragma once

#include "daemon/job/rules/placement.h"
#include "proto/fault.h"

enum { PAXOS_NODE_BITS = 6 };
/* A ballot is a round and its proposer's node.  Higher ballots than this are refused. */
#define PAXOS_BALLOT_MAX (UINT64_MAX >> 1)

/* The node that made the ballot. */
static inline uint32_t paxos_ballot_node(uint64_t ballot)
{
        return (uint32_t)(ballot & ((1u << PAXOS_NODE_BITS) - 1));
}

/* The part that must be durable. */
struct paxos_record {
        bool voter;              /* it has heard what it may have forgotten */
        struct placement chosen; /* the highest epoch known to be chosen */
        /* In the epoch after that one: */
        uint64_t promised;      /* ballot; 0: none */
        uint64_t accepted;      /* ballot; 0: none */
        struct placement value; /* accepted under that ballot */
};

/* STATE says where the sender stands.  It is also the answer if nothing is granted. */
enum paxos_kind {
        PAXOS_STATE,
        PAXOS_PREPARE,
        PAXOS_PROMISE,
        PAXOS_ACCEPT, /* record.value, accepted by the proposer itself under this ballot */
        PAXOS_ACCEPTED,
        PAXOS_KINDS
};

struct paxos_message {
        enum paxos_kind kind;
        uint64_t ballot;            /* not used by STATE */
        node_set dead;              /* PREPARE, ACCEPT */
        struct paxos_record record; /* the sender's */
};

enum paxos_action {
        PAXOS_WRITE = 1,   /* the record has changed: write it before any other action */
        PAXOS_ANSWER = 2,  /* send `answer` to the node that the event came from */
        PAXOS_ASK = 4,     /* send `ask` to the nodes `to` */
        PAXOS_CHOSEN = 8,  /* record.chosen is new */
        PAXOS_OVER = 16,   /* the proposal has ended: paxos_won() */
        PAXOS_BEATEN = 32, /* there is a higher ballot: paxos_retry() after a random pause */
        PAXOS_SPLIT = 64,  /* the sender has another placement of the same epoch */
};

enum paxos_phase { PAXOS_IDLE, PAXOS_PREPARING, PAXOS_ACCEPTING };

struct paxos {
        uint32_t n_nodes, self;
        struct paxos_record record;
        node_set heard; /* nodes heard since the start; used until this node is a voter */
        uint64_t top;   /* the highest ballot seen in this epoch */

        enum paxos_phase phase;
        struct placement wanted; /* what was asked for */
        struct placement value;  /* ACCEPTING: the proposed placement */
        node_set dead;
        uint64_t ballot;
        node_set votes; /* nodes that have promised or accepted, including this one */
        uint64_t best;  /* PREPARING: the highest ballot accepted before */
        struct placement best_value;

        struct paxos_message answer, ask;
        node_set to;
};

/*
 * record: from the disk; NULL: `first` counts as chosen.  A node alone is a voter from the start
 * and needs no other.
 */
void paxos_init(struct paxos *r, uint32_t n_nodes, uint32_t self, const struct placement *first,
                const struct paxos_record *record);

/* How many votes are enough, including the proposer's own. */
uint32_t paxos_quorum(uint32_t n_nodes, node_set dead);
/* Nodes whose votes count, including this one. */
node_set paxos_voters(const struct paxos *r, node_set dead);

/*
 * Begins to propose a placement; sets its epoch.  Actions are a set of enum paxos_action.
 * ZERO_EBUSY: a proposal is in progress; ZERO_EPEER: this node is no voter yet.
 */
int paxos_propose(struct paxos *r, const struct placement *wanted, node_set dead,
                  uint32_t *ret_actions, struct fault *fault);
/* Proposes again under a higher ballot, because messages may be lost. */
uint32_t paxos_retry(struct paxos *r);
/* The proposer waits no longer.  Acceptances stay: the placement may still be chosen. */
void paxos_give_up(struct paxos *r);
/* After PAXOS_OVER: true if the wanted placement was chosen, by whichever proposer. */
bool paxos_won(const struct paxos *r);
/* True if this node has accepted a placement that is not known to be chosen. */
bool paxos_undecided(const struct paxos *r);

/* The link to a node is up: answers with where this node stands. */
uint32_t paxos_up(struct paxos *r);
uint32_t paxos_hear(struct paxos *r, uint32_t from, const struct paxos_message *m);

/* True if a cluster of n_nodes can have such a record. */
bool paxos_record_sane(const struct paxos_record *record, uint32_t n_nodes);
