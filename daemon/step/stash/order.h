/*
 * order.h - the order in which the ranks of a set read entries, as the attempts before did: the
 * daemon brings ahead what comes next.  Pure, and lost with the process.
 *
 * Rule: keys[0..at) is what this attempt has read; keys[at..n) is what the attempts before read
 * after the same keys.  The first read that differs ends what is known.
 */
#pragma once

#include <stdint.h>

enum { ORDER_MOST = 16384 }; /* reads of an attempt; of later ones nothing is known */

struct order {
        uint32_t n, at;
        uint64_t keys[ORDER_MOST];
};

/* A member has made *n_reads reads in this attempt, and makes another one.  The member that is
 * furthest sets the order. */
void order_read(struct order *o, uint32_t *n_reads, uint64_t key);
