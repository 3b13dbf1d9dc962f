/*
 * An exact sum of doubles while they are of about one size: a window of an exact_sum, 128 bits of
 * two's complement from one bin on.  It takes every double whose own bits begin in its first two
 * bins, so that sums on both sides of a bin's bound stay in it; a thousand of them at least.  What
 * does not go in begins a window of its own, and the old one is added to the bins.
 *
 * Plain functions without CUDA: the kernel runs them on the GPU, and a unit test compares them with
 * exact_sum_add() on the CPU.  Parts are added as unsigned integers that wrap.  A part is below
 * 2^32, so bins take 2^31 of them.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "daemon/compute/device/device.h"

#ifdef __CUDACC__
#define EXACT_FUNCTION static __host__ __device__ inline
#else
#define EXACT_FUNCTION static inline
#endif

enum { EXACT_PARTS = 4 };

struct exact_window {
        unsigned bin; /* of its lowest bits */
        __int128 sum;
};

/* What the window adds to bin w->bin + i, for i < EXACT_PARTS. */
EXACT_FUNCTION uint64_t exact_window_part(const struct exact_window *w, int i)
{
        __int128 rest = w->sum >> 32 * i;

        return i + 1 < EXACT_PARTS ? (uint32_t)rest : (uint64_t)rest; /* the last has the sign */
}

/* Beyond 2^126, where one more double might not fit. */
EXACT_FUNCTION bool exact_window_full(const struct exact_window *w)
{
        int64_t high = (int64_t)(w->sum >> 64);

        return high >> 62 != high >> 63;
}

EXACT_FUNCTION __int128 exact_shifted(int64_t x, unsigned by)
{
        return (__int128)((unsigned __int128)x << by);
}

/* x is finite.  false: the window stays as it is, and *ret_other has x alone. */
EXACT_FUNCTION bool exact_window_add(struct exact_window *w, double x,
                                     struct exact_window *ret_other)
{
        const uint64_t hidden = (uint64_t)1 << 52;
        unsigned exponent, shift, distance;
        uint64_t bits;
        int64_t mantissa;

        memcpy(&bits, &x, sizeof(bits));
        exponent = (unsigned)(bits >> 52) & 0x7ff;
        mantissa = (int64_t)((bits & (hidden - 1)) | (exponent ? hidden : 0));
        mantissa = bits >> 63 ? -mantissa : mantissa;
        shift = exponent ? exponent - 1 : 0;
        distance = shift - 32 * w->bin; /* wraps where x begins below the window */
        if (mantissa == 0)
                return true;
        if (distance < 64 && !exact_window_full(w)) {
                w->sum += exact_shifted(mantissa, distance);
                return true;
        }
        ret_other->bin = shift / 32;
        ret_other->sum = exact_shifted(mantissa, shift % 32);
        return false;
}
