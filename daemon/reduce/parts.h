/*
 * parts.h - plans on which GPUs of a node a group's gradients are summed.  Pure.
 *
 * Each owner's slice is one part of the sum.  The part of an owner on a GPU of this node lies on
 * that GPU; the other parts go in turn to the GPUs that hold gradients.  The parts of one GPU lie
 * one behind the other in one piece of its memory, each at a multiple of PART_ALIGN bytes.
 */
#pragma once

#include <stddef.h>

#include "proto/partition.h"

enum { PART_ALIGN = 256, PART_NO_GPU = -1 };

struct part {
        struct range range; /* of the group */
        uint32_t gpu;
        uint64_t at; /* offset in bytes in that GPU's piece */
};

struct parts_rule {
        const struct partition *partition;
        const int *gpu_of_owner; /* [owner]; PART_NO_GPU: on none of this node */
        uint64_t sources;        /* bits of the GPUs that hold gradients; at least one */
        size_t size;             /* bytes per element */
};

/* Plans partition->slices[group] parts, in the order of their ranges. */
void parts_plan(const struct parts_rule *rule, uint32_t group, struct part *parts);
/* Bits of the GPUs that have parts. */
uint64_t parts_gpus(const struct part *parts, uint32_t n);
/* Bytes of the piece on a GPU. */
uint64_t parts_bytes(const struct part *parts, uint32_t n, uint32_t gpu, size_t size);
/* The part that has the element; there is one. */
const struct part *parts_find(const struct part *parts, uint32_t n, uint64_t element);
/* The intersection of two ranges; count 0: none. */
struct range range_common(struct range a, struct range b);
