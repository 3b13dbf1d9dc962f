/* A small world of registers of placements, and what can happen to it. */
#pragma once

#include "daemon/job/rules/paxos.h"
#include "search.h"

enum {
        NODES = 4,
        EPOCHS = 3,
        MESSAGES = 112,
        ALONE_MAX = 400,
};

struct bounds {
        u8 n_nodes, proposers, retriers; /* a bit each */
        u8 epochs;                       /* the most epochs that are proposed */
        u8 proposals, retries, twice, crashes, losses, deaths;
        bool blank; /* nobody has a record yet */
};
extern struct bounds bounds;

/* ---- a world, small ---- */

/* A placement is its only owner + 1, or 0: all nodes. */
struct record {
        u8 voter, epoch, chosen, promised, accepted, value;
};

struct node {
        struct record record;
        u8 heard, top, phase, wanted, value, dead, ballot, votes, best, best_value;
};

struct message {
        u8 from, to, kind, ballot, dead;
        struct record record;
};

struct world {
        struct node nodes[NODES];
        u8 proposals, retries, twice, crashes, losses, deaths; /* that have happened */
        u8 gone;                                               /* nodes that are dead */
        u8 truth[EPOCHS + 1];                                  /* [epoch]: placement, 0: none yet */
        u8 n_messages;
        struct message messages[MESSAGES]; /* in their order */
};

enum event_kind { DELIVER, DELIVER_TWICE, PROPOSE, RETRY, CRASH, LOSE, DIE };

/* For search.h; a world is printed with its events. */
size_t world_bytes(const void *world);
void world_init(void *world);
uint32_t events(const void *world, struct event *ret);
void happen(void *world, struct event e);
void print_event(const void *world, struct event e);
/* Checks that without further failures a proposal of any node comes to its end. */
void alone(const void *world);
