/*
 * Which nodes hold a job's shards.  Pure.
 *
 * Owners are numbered in the order of the list.  With two copies each owner's shards are held a
 * second time, by the node of the owner behind it; who holds one copy of one owner is a
 * holder, numbered copy * n_owners + owner.  Copy 0 is the owner's own, copy 1 its mirror.
 */
#pragma once

#include <stdbool.h>

#include "proto/zero.pb-c.h"
#include "proto/zero_types.h"

enum { PLACEMENT_COPIES = 2, HOLDER_MAX = PLACEMENT_COPIES * ZERO_NODE_MAX };
enum { NO_OWNER = -1, NO_HOLDER = HOLDER_MAX };

struct placement {
        uint64_t epoch;
        uint32_t n_owners, copies;
        uint32_t node[ZERO_NODE_MAX]; /* [owner] */
};

/* owners: nodes in their order, each once.  mirror: two copies, where there are two owners. */
void placement_init(struct placement *p, uint64_t epoch, const uint32_t *owners, uint32_t n,
                    bool mirror);
/* The message points into the placement. */
void placement_to_message(const struct placement *p, Zero__Placement *ret);
/*
 * False if it makes no sense: owners are nodes of the cluster, each once.  partly: of some owners
 * it need not be known where they were; they have node ZERO_NODE_MAX.  m may be NULL.
 */
bool placement_from_message(const Zero__Placement *m, uint32_t n_nodes, bool partly,
                            struct placement *ret);
uint32_t placement_holders(const struct placement *p);
uint32_t holder_owner(const struct placement *p, uint32_t holder);
uint32_t holder_copy(const struct placement *p, uint32_t holder);
uint32_t holder_node(const struct placement *p, uint32_t holder);
/* The holder of an owner's copy. */
uint32_t holder_of(const struct placement *p, uint32_t owner, uint32_t copy);
/* The owner whose copy 0 a node holds, or NO_OWNER. */
int32_t placement_owner_on(const struct placement *p, uint32_t node);
/* Where in the list one more owner costs the fewest bytes (pieces.h). */
uint32_t placement_best_place(const struct placement *p);
/* Nodes that hold anything, a bit each. */
uint64_t placement_nodes(const struct placement *p);
