/* The instruction sets of x86-64 that have kernels.  AVX bits count only if the operating system
 * saves the registers.  __builtin_cpu_supports() checks that; for F16C, which uses the same
 * registers, this file asks cpuid. */
#include "daemon/compute/device/host.h"

#include <cpuid.h>

static bool has_f16c(void)
{
        unsigned a, b, c, d;

        return __get_cpuid(1, &a, &b, &c, &d) && c & bit_F16C;
}

static bool has_avx2(void)
{
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}

static bool has_avx512(void)
{
        return has_avx2() && __builtin_cpu_supports("avx512f") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vl");
}

const struct host_isa host_isas[] = {
        { &host_avx512_ops, has_avx512 },
        { &host_avx2_ops, has_avx2 },
        { NULL, NULL },
};
