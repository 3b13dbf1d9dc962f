/* Planes of fewer bytes than fp32, by themselves: for who reads and writes them beside updates. */
#include "cuda/formats.cuh"

static __global__ void pack_kernel(format f, void *dst, uint16_t *served, const float *src,
                                   size_t n, uint32_t dither, bool aligned)
{
        for (size_t tile = blockIdx.x; tile * TILE < n; tile += gridDim.x)
                with_records(tile, n, aligned, [&](auto span, auto records, size_t i) {
                        float x[VEC];

                        load(x, src + i, span);
                        store_format(f, dst, served, i, x, dither, span, records);
                });
}

static __global__ void unpack_kernel(format f, zero_dtype to, void *dst, const uint16_t *served,
                                     const void *src, size_t skip, size_t n, bool aligned)
{
        sweep(n, aligned, [&](auto span, size_t i) {
                float x[VEC];

                load_format(f, x, src, served, i + skip, span);
                store_as(to, dst, i, x, span);
        });
}

int cuda_pack(format f, void *dst, uint16_t *served, const float *src, size_t n, uint32_t dither,
              void *stream)
{
        if (!is_format(f) || n % FORMAT_STEP)
                return -EINVAL;
        if (f == FORMAT_FP32)
                return cuda_copy(dst, src, n * sizeof(*src), stream);
        return launch(pack_kernel, tiles(n), stream, f, dst, served, src, n, dither,
                      all_aligned(src) && format_aligned(f, dst) && format_aligned(f, served));
}

int cuda_unpack(format f, zero_dtype to, void *dst, const uint16_t *served, const void *src,
                size_t skip, size_t n, void *stream)
{
        if (!is_format(f) || !is_dtype(to))
                return -EINVAL;
        return launch(unpack_kernel, tiles(n), stream, f, to, dst, served, src, skip, n,
                      skip == 0 && all_aligned(static_cast<char *>(dst)) &&
                              format_aligned(f, src) && format_aligned(f, served));
}
