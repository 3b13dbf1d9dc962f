/* Adds a contribution to an fp32 accumulator, or begins it. */
#include "cuda/kernel.cuh"

template <typename T>
static __global__ void accumulate_kernel(float *acc, const T *src, size_t n, bool first,
                                         bool aligned)
{
        sweep(n, aligned, [&](auto span, size_t i) {
                float x[VEC], sum[VEC];

                load(x, src + i, span);
                if (!first) {
                        load(sum, acc + i, span);
#pragma unroll
                        for (unsigned k = 0; k < VEC; k++)
                                x[k] = sum[k] + x[k];
                }
                store(acc + i, x, span);
        });
}

int cuda_accumulate(float *acc, zero_dtype from, const void *src, size_t n, bool first,
                    void *stream)
{
        return with_type(from, src, [&](auto *x) {
                return launch(accumulate_kernel<element_of<decltype(x)>>, tiles(n), stream, acc, x,
                              n, first, all_aligned(acc, x));
        });
}
