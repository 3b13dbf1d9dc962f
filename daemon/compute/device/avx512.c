/* The vector kernels for AVX-512. */
#include "daemon/compute/device/codes_avx512.h"

#define KERNELS_OPS host_avx512_ops
#define KERNELS_NAME "avx512"
#include "daemon/compute/device/formats.inc.c"
#include "daemon/compute/device/kernels.inc.c"
#include "daemon/compute/device/packed.inc.c"
#include "daemon/compute/device/product.inc.c"
