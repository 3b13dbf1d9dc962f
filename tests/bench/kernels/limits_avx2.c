/* The limits with AVX2. */
#include "daemon/compute/device/lanes_avx2.h"

/* So that the compiler does not see that a store writes what was loaded. */
static inline v16 keep(v16 x)
{
        __asm__ volatile("" : "+x"(x.low), "+x"(x.high));
        return x;
}

static inline h16 h16_of(v16 x)
{
        return _mm256_castps_si256(x.low);
}

#define LIMITS_OPS limit_avx2_ops
#define LIMITS_ISA "avx2"
#include "tests/bench/kernels/limits.inc.c"
