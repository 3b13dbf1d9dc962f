/*
 * A group as runs of equal pieces, which no cut of the partition divides: LAYOUT_ALIGN elements, a
 * whole tensor, or matrices.  Runs lie one behind the other and cover the group.  A stack of equal
 * matrices is one run, however many they are.  Pure.
 */
#pragma once

#include "proto/layout.h"

struct run {
        uint64_t pieces, size; /* size: elements of a piece, a multiple of LAYOUT_ALIGN */
        uint64_t words;        /* of a piece, that an owner keeps for it */
        uint64_t work;         /* of a piece: run_work() */
};

/* Equal blocks of matrices, one behind the other.  count 0: the tensor has no matrices. */
struct run_blocks {
        uint64_t count, size, work; /* size, work: of each */
};

/* Where a walk through a group stands.  Begins as { .l = l, .g = &l->groups[group] }. */
struct run_walk {
        const layout *l;
        const struct layout_group *g;
        uint32_t tensor;          /* of the group */
        uint32_t row;             /* of the tensor's rows */
        uint64_t at;              /* element of the tensor */
        struct run_blocks blocks; /* of the tensor */
};

/* False: the group has no more. */
bool run_next(struct run_walk *w, struct run *ret);
/* Floating-point operations of a step of Newton-Schulz, which squares a Gram matrix of the shorter
 * side.  At most 6 * 2^60, as for all matrices of a group together. */
uint64_t run_work(uint64_t rows, uint64_t cols);
