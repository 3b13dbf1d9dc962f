/*
 * Which nodes hold a job's shards.  Pure.
 *
 * An owner is one device of a node: host memory, or one of its GPUs.  Owners are numbered in the
 * order of the list; those of one node stand together.  With two copies each owner's shards are
 * held a second time, by the next node in the list; who holds one copy of one owner is a
 * holder, numbered copy * n_owners + owner.  Copy 0 is the owner's own, copy 1 its mirror.
 *
 * A list carries which nodes held anything by those before it, and which were declared dead: it is
 * chosen with them, so whoever knows the list in force knows who may have what of a job.
 */
#pragma once

#include <stdbool.h>

#include "proto/zero.pb-c.h"
#include "proto/zero_types.h"

enum { PLACEMENT_COPIES = 2, HOLDER_MAX = PLACEMENT_COPIES * ZERO_NODE_MAX };
enum { NO_OWNER = -1, NO_HOLDER = HOLDER_MAX };
/* Devices of one node. */
enum { NODE_OWNERS_MAX = 8 };
/* So many lists before the one in force are known one by one. */
enum { PLACEMENT_BEFORE = 32 };

struct placement {
        uint64_t epoch;
        uint32_t n_owners, copies;
        uint32_t node[ZERO_NODE_MAX];      /* [owner] */
        uint32_t mirror[ZERO_NODE_MAX];    /* [owner]: its node, with two copies */
        uint64_t before[PLACEMENT_BEFORE]; /* [i]: nodes of list epoch - 1 - i, a bit each */
        uint64_t older;                    /* ... of any list before those */
        uint64_t dead; /* nodes that a person has declared dead since they were last owners */
};

/* owners: the node of each.  mirror: two copies, where there are two nodes. */
void placement_init(struct placement *p, uint64_t epoch, const uint32_t *owners, uint32_t n,
                    bool mirror);
/* It comes after `last`, as nodes are declared dead. */
void placement_follow(struct placement *p, const struct placement *last, uint64_t dead);
/* The message points into the placement. */
void placement_to_message(const struct placement *p, Zero__Placement *ret);
/* Owners are nodes of the cluster, those of one node stand together and are not too many. */
bool placement_sane(const struct placement *p, uint32_t n_nodes);
/*
 * False if it makes no sense.  partly: of some owners it need not be known where they, or their
 * mirrors, were; these have node ZERO_NODE_MAX.  m may be NULL.
 */
bool placement_from_message(const Zero__Placement *m, uint32_t n_nodes, bool partly,
                            struct placement *ret);
uint32_t placement_holders(const struct placement *p);
uint32_t holder_owner(const struct placement *p, uint32_t holder);
uint32_t holder_copy(const struct placement *p, uint32_t holder);
uint32_t holder_node(const struct placement *p, uint32_t holder);
/* The holder of an owner's copy. */
uint32_t holder_of(const struct placement *p, uint32_t owner, uint32_t copy);
/* The first owner whose copy 0 a node holds, or NO_OWNER; how many there are. */
int32_t placement_owner_on(const struct placement *p, uint32_t node);
uint32_t placement_owners_on(const struct placement *p, uint32_t node);
/* Which of its node's devices a holder is on, counted from 0; a mirror's goes by its owner's. */
uint32_t holder_device(const struct placement *p, uint32_t holder);
/* Where in the list the owners of one more node cost the fewest bytes (pieces.h). */
uint32_t placement_best_place(const struct placement *p);
/* Nodes that hold anything, a bit each. */
uint64_t placement_nodes(const struct placement *p);
