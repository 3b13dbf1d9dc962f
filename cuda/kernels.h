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
int cuda_product(const struct product *p, void *stream);
int cuda_divide(uint16_t *to, const uint16_t *from, float by, size_t n, void *stream);
int cuda_pack(enum format format, void *dst, uint16_t *served, const float *src, size_t n,
              uint32_t dither, void *stream);
int cuda_unpack(enum format format, enum zero_dtype to, void *dst, const uint16_t *served,
                const void *src, size_t skip, size_t n, void *stream);
/* Not a kernel; a cast to the same dtype uses it. */
int cuda_copy(void *dst, const void *src, size_t n, void *stream);

#ifdef __cplusplus
}
#endif
