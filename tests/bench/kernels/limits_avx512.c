/* The limits with AVX-512. */
#include "daemon/compute/device/lanes_avx512.h"

/* So that the compiler does not see that a store writes what was loaded. */
static inline v16 keep(v16 x)
{
        __asm__ volatile("" : "+v"(x));
        return x;
}

static inline h16 h16_of(v16 x)
{
        return _mm256_castps_si256(_mm512_castps512_ps256(x));
}

#define LIMITS_OPS limit_avx512_ops
#define LIMITS_ISA "avx512"
#include "tests/bench/kernels/limits.inc.c"
