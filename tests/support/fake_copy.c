/* The one operation of cuda/kernels.h that is no kernel. */
#include <string.h>

#include "cuda/kernels.h"

int cuda_copy(void *dst, const void *src, size_t n, void *stream)
{
        memcpy(dst, src, n);
        return 0;
}
