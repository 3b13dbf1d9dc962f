/*
 * Which holders send a holder its shards, when owners change or when the holder has lost them.
 * Pure: computed from the two placements and their partitions.
 *
 * Each element comes once.  If the holder's own node has the element in any copy, it comes from
 * there, so only bytes that change their node travel.  Otherwise it comes from another node; two
 * copies share the load.
 */
#pragma once

#include "daemon/job/rules/placement.h"
#include "proto/partition.h"

struct shared_out {
        const struct placement *placement;
        const struct partition *partition; /* over the placement's owners */
};

struct piece {
        uint32_t group, source; /* source: a holder in the old placement */
        uint64_t first, count;  /* elements of the group, multiples of LAYOUT_ALIGN */
};

struct pieces {
        struct piece *items; /* in the order of groups and elements */
        uint32_t n;
        uint64_t elements, moved; /* in total; moved: from other nodes */
};

/*
 * holder: in the new placement.  readable: [holder of the old one].  most: elements of a piece, a
 * multiple of LAYOUT_ALIGN.  -ENODATA: no readable holder has some of the elements; -ENOMEM.
 */
int pieces_new(const struct shared_out *from, const bool *readable, const struct shared_out *to,
               uint32_t holder, uint64_t most, struct pieces **ret);
void pieces_free(struct pieces *p);
