/*
 * Counter-based random numbers: a value depends only on its key and its counter, so any
 * process can draw any number of any stream.  The mixing function is the finalizer of
 * SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
 */
#pragma once

#include <math.h>
#include <stdint.h>

static inline uint64_t random_mix(uint64_t x)
{
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
        return x ^ (x >> 31);
}

static inline uint64_t random_bits(uint64_t key, uint64_t counter)
{
        return random_mix(random_mix(key) + (counter + 1) * 0x9e3779b97f4a7c15u);
}

/* The key of stream `stream` under a key. */
static inline uint64_t random_key(uint64_t key, uint64_t stream)
{
        return random_bits(key ^ 0x6a09e667f3bcc909u, stream);
}

/* Uniform in [0, n), n > 0 and far below 2^64. */
static inline uint64_t random_below(uint64_t key, uint64_t counter, uint64_t n)
{
        return random_bits(key, counter) % n;
}

/* Standard normal by Box and Muller. */
static inline double random_normal(uint64_t key, uint64_t counter)
{
        double u = ((double)(random_bits(key, 2 * counter) >> 11) + 1) * 0x1p-53;
        double v = (double)(random_bits(key, 2 * counter + 1) >> 11) * 0x1p-53;
        return sqrt(-2 * log(u)) * cos(2 * M_PI * v);
}
