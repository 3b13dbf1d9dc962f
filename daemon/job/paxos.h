/*
 * The paxos register of views: which placement comes after the one that holds.  I/O-free: events go
 * in, a set of actions comes out.
 *
 * Epochs are decided one after the other.  For each, a single decree is agreed on in two rounds
 * (Lamport, "Paxos Made Simple", 2001) by the nodes of the static list, of which any majority is
 * enough: a proposer asks for promises under a ballot of its own, then for acceptance of one
 * view.  Nodes that promise tell what they have accepted before; the proposer goes on with the
 * newest of that, and only where there is none with what it wants itself.  So two
 * proposers cannot both have their way: the later one completes the earlier one's view, and
 * reports that another one won.
 *
 *   IDLE       nothing is proposed from here
 *   PREPARING  promises are collected         paxos_retry() begins either anew under a
 *   ACCEPTING  acceptances are collected      higher ballot; the driver pauses before it
 *
 * What a node has promised or accepted must outlive its process, and its machine's power: of an
 * event that gives PAXOS_WRITE nothing is said before the record is on the disk.  A proposer
 * asks its own acceptor first: what others have promised or accepted stands on its own disk.
 *
 * A node whose record is not there (its first start, or its disk was lost) does not
 * vote until it has heard all others.  It then stands where the furthest of them do, and as
 * proposers come first, whatever it may have promised before stands with one of those.  That holds
 * for one lost disk at a time.
 *
 * THE DEAD.  A person may declare nodes dead (`dead`, a bit each): their votes are not needed. Then
 * half of all nodes, or all that are left if these are fewer, is enough.  That meets every
 * majority of before in a node that lives, so what was chosen with the dead is not chosen again.
 * What is given up: if a declared node lives after all and cannot be reached, a majority with it,
 * or another person's word on the other side, can choose another view for the same epoch.  Then
 * there are two, and PAXOS_SPLIT is given when they meet.  With two nodes there is no other
 * way: one cannot know whether the other is dead.
 */
#pragma once

#include "daemon/job/placement.h"
#include "proto/fault.h"

enum { PAXOS_NODE_BITS = 6 };
/* A ballot is a round and its proposer's node; beyond this one none is believed. */
#define PAXOS_BALLOT_MAX (UINT64_MAX >> 1)

/* Whose ballot it is. */
static inline uint32_t paxos_ballot_node(uint64_t ballot)
{
        return (uint32_t)(ballot & ((1u << PAXOS_NODE_BITS) - 1));
}

/* What must be durable. */
struct paxos_record {
        bool voter;              /* it has been told what it may have forgotten */
        struct placement chosen; /* the highest epoch that it knows to be chosen */
        /* Of the epoch behind that one: */
        uint64_t promised;     /* ballot; 0: none */
        uint64_t accepted;     /* 0: none */
        struct placement view; /* ... what */
};

/* STATE answers where nothing is granted, and tells where the sender stands. */
enum paxos_kind {
        PAXOS_STATE,
        PAXOS_PREPARE,
        PAXOS_PROMISE,
        PAXOS_ACCEPT, /* record.view, accepted by the proposer itself under this ballot */
        PAXOS_ACCEPTED,
        PAXOS_KINDS
};

struct paxos_message {
        enum paxos_kind kind;
        uint64_t ballot;            /* means nothing with STATE */
        uint64_t dead;              /* PREPARE, ACCEPT */
        struct paxos_record record; /* the sender's */
};

enum paxos_action {
        PAXOS_WRITE = 1,   /* the record has changed: first of all it goes to the disk */
        PAXOS_ANSWER = 2,  /* `answer` goes to the node that the event came from */
        PAXOS_ASK = 4,     /* `ask` goes to the nodes `to` */
        PAXOS_CHOSEN = 8,  /* record.chosen is a new one */
        PAXOS_OVER = 16,   /* the proposal has come to its end: paxos_won() */
        PAXOS_BEATEN = 32, /* a higher ballot is about: paxos_retry() after a random pause */
        PAXOS_SPLIT = 64,  /* the sender knows another view of the same epoch */
};

enum paxos_phase { PAXOS_IDLE, PAXOS_PREPARING, PAXOS_ACCEPTING };

struct paxos {
        uint32_t n_nodes, self;
        struct paxos_record record;
        uint64_t heard; /* nodes, since the start; where this one is no voter */
        uint64_t top;   /* the highest ballot that was seen in this epoch */

        enum paxos_phase phase;
        struct placement wanted; /* what was asked for */
        struct placement value;  /* ACCEPTING: what is proposed */
        uint64_t dead, ballot;
        uint64_t votes; /* nodes that have promised or accepted, this one among them */
        uint64_t best;  /* PREPARING: the highest ballot that was accepted before */
        struct placement best_view;

        struct paxos_message answer, ask;
        uint64_t to;
};

/*
 * record: what was on the disk, or NULL; then `first` is chosen, of epoch 0.
 * A node alone is a voter from the start, and needs nobody.
 */
void paxos_init(struct paxos *r, uint32_t n_nodes, uint32_t self, const struct placement *first,
                const struct paxos_record *record);

/* How many votes are enough, the proposer's own counted. */
uint32_t paxos_quorum(uint32_t n_nodes, uint64_t dead);
/* Nodes, this one included, whose votes count. */
uint64_t paxos_voters(const struct paxos *r, uint64_t dead);

/*
 * Begins to propose a view: its epoch is set here.  Actions are a set of enum paxos_action.
 * ZERO_EBUSY: one is being proposed; ZERO_EPEER: this node is no voter yet.
 */
int paxos_propose(struct paxos *r, const struct placement *wanted, uint64_t dead,
                  uint32_t *ret_actions, struct fault *fault);
/* Again, under a higher ballot: messages may be lost. */
uint32_t paxos_retry(struct paxos *r);
/* The proposer waits no longer.  Whatever was accepted stays so: the view may yet be chosen. */
void paxos_give_up(struct paxos *r);
/* After PAXOS_OVER: what was wanted was chosen, by whomever. */
bool paxos_won(const struct paxos *r);
/* There is a view that was accepted here, and is not known to be chosen. */
bool paxos_undecided(const struct paxos *r);

/* The link to a node stands: what this node has to say. */
uint32_t paxos_up(struct paxos *r);
uint32_t paxos_hear(struct paxos *r, uint32_t from, const struct paxos_message *m);

/* Whether what came from outside makes sense for a cluster of so many nodes. */
bool paxos_record_sane(const struct paxos_record *record, uint32_t n_nodes);
