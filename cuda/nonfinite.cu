/* Is there a NaN or an infinity?  Only a thread that sees one writes. */
#include "cuda/kernel.cuh"

template <typename T>
static __global__ void nonfinite_kernel(const T *x, size_t n, uint32_t *flag, bool aligned)
{
        sweep(n, aligned, [&](auto span, size_t i) {
                float y[VEC];
                bool found = false;

                load(y, x + i, span);
#pragma unroll
                for (unsigned k = 0; k < VEC; k++)
                        found |= (__float_as_uint(y[k]) & 0x7f800000) == 0x7f800000;
                if (found)
                        atomicExch(flag, 1u);
        });
}

int cuda_nonfinite(zero_dtype dtype, const void *x, size_t n, uint32_t *flag, void *stream)
{
        return with_type(dtype, x, [&](auto *y) {
                return launch(nonfinite_kernel<element_of<decltype(y)>>, tiles(n), stream, y, n,
                              flag, all_aligned(y));
        });
}
