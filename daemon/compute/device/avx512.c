/* The vector kernels for AVX-512. */
#include "daemon/compute/device/lanes_avx512.h"

#define KERNELS_OPS host_avx512_ops
#define KERNELS_NAME "avx512"
#include "daemon/compute/device/kernels.inc.c"
