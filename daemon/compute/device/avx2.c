/* The vector kernels for AVX2 with F16C. */
#include "daemon/compute/device/lanes_avx2.h"

#define KERNELS_OPS host_avx2_ops
#define KERNELS_NAME "avx2"
#include "daemon/compute/device/kernels.inc.c"
