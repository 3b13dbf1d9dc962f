/*
 * Which nodes hold a job's shards.  Pure.  A placement is the owner list of one epoch.
 *
 * An owner is one device of a node: host memory or one of its GPUs.  Owners are numbered in the
 * order of the list; the owners of one node are adjacent.  With two copies, the next node in the
 * list holds each owner's shards a second time.  A holder has one copy of one owner's shards, and
 * its number is copy * n_owners + owner.  Copy 0 is the owner's own, copy 1 its mirror.
 *
 * A list also names the nodes that held shards in earlier lists, and the nodes that were declared
 * dead.  These are chosen together with the list.  So a node that knows the list in force knows
 * which nodes may have parts of a job.
 */
#pragma once

#include <stdbool.h>

#include "daemon/job/rules/node_set.h"
#include "proto/zero.pb-c.h"

enum { PLACEMENT_COPIES = 2, HOLDER_MAX = PLACEMENT_COPIES * NODE_SET_MAX };
/* NO_NODE occurs in messages, so all daemons of a cluster have sets of one width. */
enum { NO_OWNER = -1, NO_NODE = NODE_SET_MAX, NO_HOLDER = HOLDER_MAX };
/* The most owners on one node. */
enum { NODE_OWNERS_MAX = 8 };
/* How many earlier lists have their nodes kept list by list. */
enum { PLACEMENT_BEFORE = 32 };

struct placement {
        uint64_t epoch;
        uint32_t n_owners, copies;
        uint32_t node[NODE_SET_MAX];       /* [owner] */
        uint32_t mirror[NODE_SET_MAX];     /* [owner]: the node of its mirror, with two copies */
        node_set before[PLACEMENT_BEFORE]; /* [i]: the nodes of list epoch - 1 - i */
        node_set older;                    /* the nodes of all lists before those */
        node_set dead; /* nodes that a person has declared dead since they were last owners */
};

/* owners: the node of each owner.  mirror: make two copies if there are two nodes. */
void placement_init(struct placement *p, uint64_t epoch, const uint32_t *owners, uint32_t n,
                    bool mirror);
/* Makes p the successor of `last`, with `dead` declared dead. */
void placement_follow(struct placement *p, const struct placement *last, node_set dead);
bool placement_same_owners(const struct placement *a, const struct placement *b);
/* A hash of the owner list; never 0. */
uint64_t placement_mark(const struct placement *p);
/* The message points into the placement. */
void placement_to_message(const struct placement *p, Zero__Placement *ret);
/* True if each owner is a node of the cluster, and each node's owners are adjacent and not too
 * many. */
bool placement_sane(const struct placement *p, uint32_t n_nodes);
/*
 * Reads a placement from a message; false: the message is malformed.  partly: the nodes of some
 * owners or mirrors may be unknown (NO_NODE).  m may be NULL.
 */
bool placement_from_message(const Zero__Placement *m, uint32_t n_nodes, bool partly,
                            struct placement *ret);
uint32_t placement_holders(const struct placement *p);
uint32_t holder_owner(const struct placement *p, uint32_t holder);
uint32_t holder_copy(const struct placement *p, uint32_t holder);
uint32_t holder_node(const struct placement *p, uint32_t holder);
/* The holder of an owner's copy. */
uint32_t holder_of(const struct placement *p, uint32_t owner, uint32_t copy);
/* The first owner on the node, or NO_OWNER. */
int32_t placement_owner_on(const struct placement *p, uint32_t node);
/* How many owners are on the node. */
uint32_t placement_owners_on(const struct placement *p, uint32_t node);
/* The number of the device that a holder uses on its node, from 0.  A mirror uses its owner's
 * number. */
uint32_t holder_device(const struct placement *p, uint32_t holder);
/* The place in the list where one more node's owners move the fewest bytes (pieces.h). */
uint32_t placement_best_place(const struct placement *p);
/* The node that coordinates a job.  The jobs' names spread them over the owners. */
uint32_t placement_coordinator(const struct placement *p, const char *job);
/* The nodes that hold shards. */
node_set placement_nodes(const struct placement *p);
