/*
 * Splits a double into what it adds to the bins of an exact_sum.  Plain functions without CUDA: the
 * kernel runs them on the GPU, and a unit test compares them with exact_sum_add() on the CPU.
 *
 * Terms are added as unsigned integers that wrap.  A term is below 2^32, so bins and terms take
 * 2^31 of them; EXACT_TERMS neighbouring bins take any double.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "daemon/device/device.h"

#ifdef __CUDACC__
#define EXACT_FUNCTION static __host__ __device__ inline
#else
#define EXACT_FUNCTION static inline
#endif

enum { EXACT_TERMS = 3 };

struct exact_terms {
        unsigned bin; /* of term[0] */
        uint64_t term[EXACT_TERMS];
};

/* x is finite. */
EXACT_FUNCTION struct exact_terms exact_terms_of(double x)
{
        const uint64_t low32 = 0xffffffff, hidden = (uint64_t)1 << 52;
        struct exact_terms t;
        uint64_t bits, mantissa, low, sign;
        unsigned exponent, shift;

        memcpy(&bits, &x, sizeof(bits));
        exponent = (unsigned)(bits >> 52) & 0x7ff;
        mantissa = (bits & (hidden - 1)) | (exponent ? hidden : 0);
        shift = exponent ? exponent - 1 : 0;
        t.bin = shift / 32;
        shift %= 32;
        low = mantissa << shift;
        sign = 0 - (bits >> 63); /* all ones: negative */
        t.term[0] = ((low & low32) ^ sign) - sign;
        t.term[1] = ((low >> 32) ^ sign) - sign;
        t.term[2] = ((mantissa >> 32 >> (32 - shift)) ^ sign) - sign;
        return t;
}

/* Adds t to sum if the terms have the same bins, or t is 0. */
EXACT_FUNCTION bool exact_terms_join(struct exact_terms *sum, const struct exact_terms *t)
{
        if (!(t->term[0] | t->term[1] | t->term[2]))
                return true;
        if (t->bin != sum->bin)
                return false;
        for (int i = 0; i < EXACT_TERMS; i++)
                sum->term[i] += t->term[i];
        return true;
}
