/*
 * simulate.h - a cluster in one process: the machines that ship, on simulated links and clocks.
 *
 * A job is opened and makes steps, message by message.  daemon/job/rules decides; coordination.c and
 * owners.c carry out actions as daemon/cluster/coordinator and daemon/cluster/engine do, and world.c carries
 * messages.  The messages of gathers and gradients are counted from the partition (traffic.c).
 * There are too many of them to simulate all; for some nodes, burst.c simulates those that come in.
 *
 * Times are nanoseconds of the simulated clock.  The same description gives the same output, to the
 * byte: time and order come from the seed alone.
 */
#pragma once

#include <stdio.h>

#include "daemon/job/rules/coordinator.h"
#include "daemon/job/rules/owner.h"
#include "proto/partition.h"

/* clang-format off */
/* Kinds of messages, as the link names them (proto/zero.proto); an answer has no body. */
#define SIMULATED_KINDS(X)                                                                         \
        X(join) X(open) X(opened) X(start) X(answer) X(ready) X(prepare) X(prepared) X(decision)   \
        X(done) X(offer) X(pull)
/* clang-format on */
#define X(name) KIND_##name,
enum kind { SIMULATED_KINDS(X) KINDS };
#undef X
/* What a node tells itself. */
enum { WAKE_JOIN = KINDS, WAKE_READY, WAKE_UPDATED };
extern const char *const kind_names[KINDS];

enum { STEPS = 3, PHASES = STEPS + 1 }; /* phase 0 opens the job, phase i is step i */
enum { PART_BYTES = 8 << 20 };          /* of a payload: engine.part_bytes */

/* ---- what is simulated (description.c) ---- */

/* owners: nodes with shards, the first ones; devices, ranks: of each node. */
struct description {
        uint32_t nodes, owners, devices, ranks;
        bool mirror;
        bool announces; /* the bulk path reads offers up to ANNOUNCED_BYTES without asking */
        uint64_t seed;
        char job[ZERO_NAME_MAX + 1];
        uint64_t latency, message; /* ns; message: that a node's loop spends on one */
        uint64_t step, update;     /* ns, from one decision to the next call; of an owner */
        double link;               /* bytes a second that a node receives */
        uint32_t reduce_size;      /* bytes of an element of a gradient between nodes */
        uint32_t pushes;           /* of each group by each node, in a step */
        layout *layout;
        uint32_t *gathers; /* [group]: by each node, in a step */
        struct partition *partition;
        struct placement placement;
};

/* Checks everything; 0, or a status with a fault. */
int description_read(FILE *in, struct description *ret, struct fault *fault);
void description_free(struct description *d);

/* ---- messages, links and clocks (world.c) ---- */

/* Messages to and from other nodes. */
struct tally {
        uint64_t sent[KINDS], received[KINDS];
};

struct message {
        uint32_t kind; /* enum kind, or what wakes the node */
        uint32_t phase, from, to;
        uint32_t owner, copy, rank;
        uint64_t attempt, version;
        bool flag; /* open: create; opened: created; decision: commit */
};

struct replica {
        struct owner_record record;
        uint32_t owner, copy;
        bool asked, updating;
};

struct node {
        struct waiting *first, **end; /* messages that have come */
        bool busy;
        uint64_t due[2]; /* of the last message to and from the coordinator: links keep the order */
        bool has_job, started;
        uint64_t version, attempt;
        uint32_t n_replicas;
        struct replica replicas[OWNER_REPLICAS];
};

/* Most nodes that wait at once for one node's loop. */
struct incast {
        uint32_t senders, node;
        enum kind kind;
};

struct world {
        const struct description *d;
        uint64_t now, random;
        uint64_t free; /* when the loop that handles a message will have sent all so far */
        struct node *nodes;
        struct coordination *coordination;
        uint32_t coordinator; /* its node */
        struct event *heap;
        uint64_t n_events, capacity;
        struct tally *tallies[PHASES]; /* [node] */
        uint64_t began[PHASES];        /* its first message was sent */
        uint64_t told[PHASES];         /* the last node heard the start, or the decision */
        uint64_t ended[PHASES];        /* its last message was handled */
        uint32_t *waiting;             /* [node]: its messages that wait for the coordinator */
        uint32_t n_waiting;
        struct incast incast;
        uint64_t first_attempt;
        struct fault fault; /* a machine wants what the simulator does not know */
};

int world_init(struct world *w, const struct description *d);
void world_deinit(struct world *w);
/* From 0 to below `below`. */
uint64_t world_random(struct world *w, uint64_t below);
/* From the node whose message is being handled; the phase follows from kind and attempt. */
void world_send(struct world *w, struct message m);
void world_wake(struct world *w, uint32_t node, uint64_t after, struct message m);
/* Opens the job and makes all steps; a status with w->fault if that does not end well. */
int world_run(struct world *w);

/* owners.c */
void node_handle(struct world *w, uint32_t node, const struct message *m);

/* coordination.c */
int coordination_new(struct world *w);
void coordination_free(struct coordination *c);
void coordination_handle(struct world *w, const struct message *m);

/* ---- gathers and gradients ---- */

/* traffic.c: adds the messages of a step to each node's tally. */
void traffic_count(const struct description *d, struct tally *tallies /* [node] */);
/* Requests for one slice's gradient from each node. */
uint32_t traffic_grad_parts(const struct description *d, struct range slice);

/* burst.c: what comes in at one node in a step, message by message.  -ENOMEM. */
struct burst {
        uint64_t offers, pulls; /* that came */
        struct incast incast;
};
int burst_run(struct world *w, uint32_t node, struct burst *ret);
