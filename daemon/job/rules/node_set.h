/*
 * node_set.h - sets of nodes, for the state machines of this folder.
 *
 * A set is one bit for each node of a cluster, in words of 64 bits; &, | and ~ work on sets.  The
 * daemon's sets have one word, which is a plain number.  The simulator compiles this folder with
 * more (NODE_SET_MAX); the width is all that differs.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "proto/zero_types.h"

#ifndef NODE_SET_MAX
#define NODE_SET_MAX ZERO_NODE_MAX
typedef uint64_t node_set;
#else
typedef uint64_t node_set __attribute__((vector_size(NODE_SET_MAX / 8), aligned(8)));
#endif

static inline bool node_set_has(const node_set *s, uint32_t node)
{
        return ((const uint64_t *)s)[node / 64] >> node % 64 & 1;
}

static inline void node_set_add(node_set *s, uint32_t node)
{
        ((uint64_t *)s)[node / 64] |= 1ull << node % 64;
}

static inline void node_set_remove(node_set *s, uint32_t node)
{
        ((uint64_t *)s)[node / 64] &= ~(1ull << node % 64);
}

static inline bool node_set_any(node_set s)
{
        for (uint32_t i = 0; i < sizeof s / 8; i++)
                if (((const uint64_t *)&s)[i])
                        return true;
        return false;
}

/* The lowest one; s is not empty. */
static inline uint32_t node_set_first(node_set s)
{
        const uint64_t *word = (const uint64_t *)&s;
        uint32_t i = 0;

        while (!word[i])
                i++;
        return 64 * i + (uint32_t)__builtin_ctzll(word[i]);
}
