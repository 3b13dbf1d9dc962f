/*
 * What the files of the plugin share: the operations, as zero_cuda.h describes them, one
 * in each .cu, and the translation of CUDA's codes.  Internal to cuda/.
 */
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/zero_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* 0 or -errno.  Takes an error that is not fatal off this thread's record. */
int cuda_errno(cudaError_t error);

/* Chooses the GPU of the calling thread, whose waits block instead of spinning. */
int cuda_use(int device);

int cuda_adamw(const struct zero_cuda_adamw *update, void *stream);
int cuda_cast(enum zero_dtype to, void *dst, enum zero_dtype from, const void *src, size_t n,
              void *stream);
int cuda_accumulate(float *acc, enum zero_dtype from, const void *src, size_t n, bool first,
                    void *stream);
int cuda_sum(enum zero_dtype to, void *dst, enum zero_dtype from, const void *const *src, size_t k,
             size_t n, void *stream);
int cuda_norm(const float *x, size_t n, double scale, struct zero_cuda_norm *acc, void *stream);
int cuda_nonfinite(enum zero_dtype dtype, const void *x, size_t n, uint32_t *flag, void *stream);
int cuda_copy(void *dst, const void *src, size_t n, void *stream);

#ifdef __cplusplus
}
#endif
