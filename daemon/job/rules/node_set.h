/*
 * node_set.h - sets of nodes.
 *
 * A set is one bit for each node of a cluster, in words of 64 bits; &, | and ~ work on sets.  The
 * daemon's sets have one word, which is a plain number.  The simulator compiles the rules with more
 * words (NODE_SET_MAX), and tests/run.sh compiles everything with two once more; the width is all
 * that differs.  Nobody else shifts bits of nodes.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/zero_types.h"

#ifndef NODE_SET_MAX
#define NODE_SET_MAX ZERO_NODE_MAX
typedef uint64_t node_set;
#else
typedef uint64_t node_set __attribute__((vector_size(NODE_SET_MAX / 8), aligned(8)));
#endif

enum { NODE_SET_WORDS = sizeof(node_set) / 8 };
#define NODE_SET_NONE ((node_set){ 0 })
#define NODE_SET_ALL (~NODE_SET_NONE)

static inline bool node_set_has(node_set s, uint32_t node)
{
        return ((const uint64_t *)&s)[node / 64] >> node % 64 & 1;
}

static inline void node_set_add(node_set *s, uint32_t node)
{
        ((uint64_t *)s)[node / 64] |= 1ull << node % 64;
}

static inline void node_set_remove(node_set *s, uint32_t node)
{
        ((uint64_t *)s)[node / 64] &= ~(1ull << node % 64);
}

static inline node_set node_set_of(uint32_t node)
{
        node_set s = NODE_SET_NONE;

        node_set_add(&s, node);
        return s;
}

/* Nodes 0 to n - 1. */
static inline node_set node_set_first_n(uint32_t n)
{
        node_set s = NODE_SET_NONE;

        for (uint32_t i = 0; i < n; i++)
                node_set_add(&s, i);
        return s;
}

static inline bool node_set_any(node_set s)
{
        for (uint32_t i = 0; i < NODE_SET_WORDS; i++)
                if (((const uint64_t *)&s)[i])
                        return true;
        return false;
}

static inline uint32_t node_set_count(node_set s)
{
        uint32_t n = 0;

        for (uint32_t i = 0; i < NODE_SET_WORDS; i++)
                n += (uint32_t)__builtin_popcountll(((const uint64_t *)&s)[i]);
        return n;
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

/* As messages and files have sets: words, the lowest nodes first, without empty words at the end.
 */
static inline size_t node_set_words(const node_set *s, uint64_t **ret)
{
        size_t n = NODE_SET_WORDS;

        *ret = (uint64_t *)(uintptr_t)s;
        while (n && !(*ret)[n - 1])
                n--;
        return n;
}

/* False: the words name nodes that no set here can have. */
static inline bool node_set_from_words(const uint64_t *words, size_t n, node_set *ret)
{
        node_set s = NODE_SET_NONE;

        for (size_t i = 0; i < n; i++) {
                if (i >= NODE_SET_WORDS && words[i])
                        return false;
                if (i < NODE_SET_WORDS)
                        ((uint64_t *)&s)[i] = words[i];
        }
        *ret = s;
        return true;
}

/* In one word, enough for ZERO_NODE_MAX nodes; wider sets lose nothing. */
static inline uint64_t node_set_to_word(node_set s)
{
        uint64_t *words;

        return node_set_words(&s, &words) ? words[0] : 0;
}

static inline node_set node_set_from_word(uint64_t word)
{
        node_set s;

        node_set_from_words(&word, 1, &s);
        return s;
}
