/*
 * order.h - the order in which the ranks of a set read entries.  It is learned from earlier
 * attempts, and lets the daemon bring the next entries ahead of their reads.  Pure, and lost with
 * the process.
 *
 * Rule: keys[0..at) are the reads of this attempt; keys[at..n) are the reads that followed the same
 * keys in an earlier attempt.  A read of another key drops keys[at..n).
 */
#pragma once

#include <stdint.h>

enum { ORDER_MOST = 16384 }; /* reads of an attempt whose order is kept */

struct order {
        uint32_t n, at;
        uint64_t keys[ORDER_MOST];
};

/* Counts a read: before it, the member had made *n_reads reads in this attempt.  The member with
 * the most reads sets the order. */
void order_read(struct order *o, uint32_t *n_reads, uint64_t key);
