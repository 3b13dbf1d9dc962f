/*
 * stats.c - log-linear buckets.
 *
 * Values below 2^HISTOGRAM_BITS have a bucket each.  Above, the bucket is the position of the
 * highest bit, and the HISTOGRAM_BITS bits below it.
 */
#include "daemon/base/stats.h"

#include <math.h>

enum { FIRST = 1 << HISTOGRAM_BITS };

static uint32_t bucket_of(uint64_t value)
{
        uint32_t shift;

        if (value < FIRST)
                return (uint32_t)value;
        shift = 63 - (uint32_t)__builtin_clzll(value) - HISTOGRAM_BITS;
        return (shift << HISTOGRAM_BITS) + (uint32_t)(value >> shift);
}

/* The largest value of a bucket. */
static uint64_t bucket_end(uint32_t bucket)
{
        uint32_t shift;

        if (bucket < FIRST)
                return bucket;
        shift = (bucket >> HISTOGRAM_BITS) - 1;
        return ((uint64_t)(bucket - (shift << HISTOGRAM_BITS)) << shift) +
               (((uint64_t)1 << shift) - 1);
}

void histogram_add(struct histogram *h, uint64_t value)
{
        h->buckets[bucket_of(value)]++;
        h->count++;
        if (__builtin_add_overflow(h->sum, value, &h->sum))
                h->sum = UINT64_MAX;
        if (value > h->max)
                h->max = value;
}

uint64_t histogram_quantile(const struct histogram *h, double q)
{
        double wanted = ceil(q * (double)h->count);
        uint64_t rank = wanted < 1 ? 1 : wanted > (double)h->count ? h->count : (uint64_t)wanted;
        uint64_t seen = 0;

        for (uint32_t i = 0; i < HISTOGRAM_BUCKETS; i++) {
                seen += h->buckets[i];
                if (seen >= rank)
                        return bucket_end(i) < h->max ? bucket_end(i) : h->max;
        }
        return h->max;
}
