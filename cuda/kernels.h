/* The operations of zero_cuda.h, each in its own .cu.  Internal to cuda/. */
#pragma once

#include "cuda/zero_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

int cuda_update(const struct update_piece *pieces, size_t n, void *stream);
int cuda_cast(enum zero_dtype to, void *dst, enum zero_dtype from, const void *src, size_t n,
              void *stream);
int cuda_sum(enum zero_dtype to, void *dst, enum zero_dtype from, const void *const *src, size_t k,
             size_t n, void *stream);
int cuda_reduce(const struct zero_cuda_reduce *reduce, void *stream);
/* Not a kernel; a cast to the same dtype uses it. */
int cuda_copy(void *dst, const void *src, size_t n, void *stream);

#ifdef __cplusplus
}
#endif
