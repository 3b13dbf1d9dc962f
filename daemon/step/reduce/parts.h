/*
 * parts.h - plans in which places of a node a group's gradients are summed.  Pure.
 *
 * Each owner's slice is one part of the sum.  The part of an owner of this node lies where the
 * owner's states do; those of owners in host memory or on other nodes go in turn to the places that
 * hold gradients.  The parts in one place lie one behind the other in one block (pool.h), each at a
 * multiple of PART_ALIGN bytes.
 */
#pragma once

#include <stddef.h>

#include "daemon/compute/device/place/place.h"
#include "proto/partition.h"

enum { PART_ALIGN = 256 };

struct part {
        struct range range; /* of the group */
        uint32_t place;
        uint64_t at; /* offset in bytes in that place's block */
};

struct parts_rule {
        const struct partition *partition;
        const uint32_t *place_of_owner; /* [owner]; the host's: or on another node */
        uint64_t sources;               /* bits of the places that hold gradients; at least one */
        size_t size;                    /* bytes per element */
};

/* Plans partition->slices[group] parts, in the order of their ranges. */
void parts_plan(const struct parts_rule *rule, uint32_t group, struct part *parts);
/* Bits of the places that have parts. */
uint64_t parts_places(const struct part *parts, uint32_t n);
/* Bytes of the block in a place. */
uint64_t parts_bytes(const struct part *parts, uint32_t n, uint32_t place, size_t size);
/* The part that has the element; there is one. */
const struct part *parts_find(const struct part *parts, uint32_t n, uint64_t element);
