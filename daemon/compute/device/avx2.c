/* The vector kernels for AVX2 with F16C and FMA. */
#include "daemon/compute/device/codes_avx2.h"

#define KERNELS_OPS host_avx2_ops
#define KERNELS_NAME "avx2"
#include "daemon/compute/device/formats.inc.c"
#include "daemon/compute/device/kernels.inc.c"
#include "daemon/compute/device/packed.inc.c"
#include "daemon/compute/device/product.inc.c"
