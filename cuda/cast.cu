/* The same values in another dtype, rounded to nearest even. */
#include "cuda/kernel.cuh"

template <typename T>
static __global__ void cast_kernel(zero_dtype to, void *dst, const T *src, size_t n, bool aligned)
{
        sweep(n, aligned, [&](auto span, size_t i) {
                float x[VEC];

                load(x, src + i, span);
                store_as(to, dst, i, x, span);
        });
}

int cuda_cast(zero_dtype to, void *dst, zero_dtype from, const void *src, size_t n, void *stream)
{
        if (!is_dtype(to) || (to != from && to != ZERO_FP32 && from != ZERO_FP32))
                return -EINVAL;
        return with_type(from, src, [&](auto *x) {
                if (to == from)
                        return cuda_copy(dst, src, n * sizeof(*x), stream);
                return launch(cast_kernel<element_of<decltype(x)>>, tiles(n), stream, to, dst, x, n,
                              all_aligned(static_cast<char *>(dst), x));
        });
}
