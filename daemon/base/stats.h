/*
 * stats.h - a histogram of durations: counts in buckets whose width grows with the value,
 * so that any quantile is right within 1/16 in 8 KiB, whatever comes.
 * Pure; 0 is an empty histogram.
 */
#pragma once

#include <stdint.h>

enum {
        HISTOGRAM_BITS = 4, /* 16 buckets from each power of two to the next */
        HISTOGRAM_BUCKETS = (64 - HISTOGRAM_BITS + 1) << HISTOGRAM_BITS,
};

struct histogram {
        uint64_t count, sum, max; /* the sum stops at its largest value */
        uint64_t buckets[HISTOGRAM_BUCKETS];
};

void histogram_add(struct histogram *h, uint64_t value);
/*
 * The value that a fraction q (0 to 1) of all values does not exceed, rounded up to its
 * bucket's end, never above max.  0 if it is empty.
 */
uint64_t histogram_quantile(const struct histogram *h, double q);
