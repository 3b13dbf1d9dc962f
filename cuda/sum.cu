/* The sum of k contributions, in order, in fp32, rounded once. */
#include "cuda/kernel.cuh"

template <typename T>
static __global__ void sum_kernel(zero_dtype to, void *dst, sources src, size_t n, bool aligned)
{
        sweep(n, aligned, [&](auto span, size_t i) {
                float sum[VEC];

                load(sum, static_cast<const T *>(src.address[0]) + i, span);
#pragma unroll 4
                for (unsigned j = 1; j < src.count; j++) {
                        float x[VEC];

                        load(x, static_cast<const T *>(src.address[j]) + i, span);
#pragma unroll
                        for (unsigned k = 0; k < VEC; k++)
                                sum[k] += x[k];
                }
                store_as(to, dst, i, sum, span);
        });
}

int cuda_sum(zero_dtype to, void *dst, zero_dtype from, const void *const *src, size_t k, size_t n,
             void *stream)
{
        if (!is_dtype(to) || k < 1 || k > ZERO_CUDA_SUM_MAX)
                return -EINVAL;
        return with_type(from, src[0], [&](auto *x) {
                sources list = sources_of(src, k);

                return launch(sum_kernel<element_of<decltype(x)>>, tiles(n), stream, to, dst, list,
                              n, all_aligned(static_cast<char *>(dst)) && all_aligned(list));
        });
}
