/*
 * What the kernels share: reading any dtype as fp32, writing it back rounded once, and the
 * sweep of a grid over a range.
 *
 * A thread takes VEC elements at a time: QUADs of neighbours, a whole block's quads apart, so that
 * the threads of a warp fill every sector of memory that an access touches.  Where all addresses
 * are aligned and the elements are all there (a `whole` span), a quad is one access, of 16 bytes
 * in fp32, and all loads are in flight together; else (a `part`) it goes element by element.
 * The values are the same.
 *
 * A launch may be of many pieces, in a table that is passed with it: their tiles are dealt over the
 * grid as if they were those of one range.
 */
#pragma once

#include <errno.h>
#include <type_traits>

#include "cuda/kernels.h"
#include "cuda/machine.cuh"

struct bf16 {
        uint16_t bits;
};

struct fp16 {
        uint16_t bits;
};

constexpr unsigned QUAD = 4;
constexpr unsigned VEC = 2 * QUAD;
constexpr unsigned TILE = THREADS * VEC; /* elements of a block at a time */
constexpr unsigned GAP = THREADS * QUAD; /* from a thread's quad to its next */

/* Which of a thread's elements are there: all, or those whose distance from the first is
 * below left. */
struct whole {
};

struct part {
        size_t left;
};

/* Passed with a launch: no array on the GPU has to be kept until it ran. */
struct sources {
        const void *address[ZERO_CUDA_SUM_MAX];
        unsigned count;
};

/* The distance of element k from the thread's first. */
static __device__ inline unsigned place(unsigned k)
{
        return k / QUAD * GAP + k % QUAD;
}

static __device__ inline float widen(float x)
{
        return x;
}

static __device__ inline float widen(bf16 x)
{
        return __uint_as_float((unsigned)x.bits << 16);
}

/*
 * The GPU's own conversions make one NaN of all.  Here a NaN keeps its sign and the upper bits of
 * its payload and becomes quiet, as in proto/dtype.c: a copy has the same bits wherever it is made.
 */
static __device__ inline float widen(fp16 x)
{
        unsigned bits = x.bits;
        float number = fp32_of_fp16(x.bits),
              nan = __uint_as_float((bits & 0x8000) << 16 | 0x7fc00000 | (bits & 0x03ff) << 13);

        return number == number ? number : nan;
}

/* Both are computed: a branch for NaN would have stores in each of its arms. */
static __device__ inline uint16_t narrow_to_bf16(float x)
{
        uint16_t number = bf16_of_fp32(x), nan = __float_as_uint(x) >> 16 | 0x0040;

        return x == x ? number : nan;
}

static __device__ inline uint16_t narrow_to_fp16(float x)
{
        unsigned bits = __float_as_uint(x);
        uint16_t number = fp16_of_fp32(x),
                 nan = (bits >> 16 & 0x8000) | 0x7e00 | (bits >> 13 & 0x03ff);

        return x == x ? number : nan;
}

static __device__ inline void narrow(float *to, float x)
{
        *to = x;
}

static __device__ inline void narrow(bf16 *to, float x)
{
        to->bits = narrow_to_bf16(x);
}

static __device__ inline void narrow(fp16 *to, float x)
{
        to->bits = narrow_to_fp16(x);
}

/* x = each of its elements as it crosses the wire: rounded once; for fp32 as they are. */
template <unsigned N> static __device__ inline void round_to(zero_dtype wire, float (&x)[N])
{
        if (wire == ZERO_BF16)
#pragma unroll
                for (unsigned i = 0; i < N; i++)
                        x[i] = widen(bf16{ narrow_to_bf16(x[i]) });
        else if (wire == ZERO_FP16)
#pragma unroll
                for (unsigned i = 0; i < N; i++)
                        x[i] = widen(fp16{ narrow_to_fp16(x[i]) });
}

/* The elements of one access. */
template <typename T> struct alignas(QUAD * sizeof(T)) quad {
        T element[QUAD];
};

template <unsigned N, typename T>
static __device__ inline void load(float (&x)[N], const T *from, whole)
{
#pragma unroll
        for (unsigned i = 0; i < N; i += QUAD) {
                quad<T> q = *reinterpret_cast<const quad<T> *>(from + place(i));

#pragma unroll
                for (unsigned j = 0; j < QUAD; j++)
                        x[i + j] = widen(q.element[j]);
        }
}

/* What is not there reads as 0. */
template <unsigned N, typename T>
static __device__ inline void load(float (&x)[N], const T *from, part span)
{
#pragma unroll
        for (unsigned i = 0; i < N; i++)
                x[i] = place(i) < span.left ? widen(from[place(i)]) : 0.0f;
}

template <unsigned N, typename T>
static __device__ inline void store(T *to, const float (&x)[N], whole)
{
#pragma unroll
        for (unsigned i = 0; i < N; i += QUAD) {
                quad<T> q;

#pragma unroll
                for (unsigned j = 0; j < QUAD; j++)
                        narrow(&q.element[j], x[i + j]);
                store_aligned(to + place(i), q);
        }
}

template <unsigned N, typename T>
static __device__ inline void store(T *to, const float (&x)[N], part span)
{
#pragma unroll
        for (unsigned i = 0; i < N; i++)
                if (place(i) < span.left)
                        narrow(&to[place(i)], x[i]);
}

/* The same for element i of an array whose dtype is known at run time. */
template <typename S>
static __device__ inline void load_as(zero_dtype dtype, float (&x)[VEC], const void *from, size_t i,
                                      S span)
{
        switch (dtype) {
        case ZERO_BF16:
                load(x, static_cast<const bf16 *>(from) + i, span);
                return;
        case ZERO_FP16:
                load(x, static_cast<const fp16 *>(from) + i, span);
                return;
        default: /* ZERO_FP32 */
                load(x, static_cast<const float *>(from) + i, span);
        }
}

template <typename S>
static __device__ inline void store_as(zero_dtype dtype, void *to, size_t i, const float (&x)[VEC],
                                       S span)
{
        switch (dtype) {
        case ZERO_BF16:
                store(static_cast<bf16 *>(to) + i, x, span);
                return;
        case ZERO_FP16:
                store(static_cast<fp16 *>(to) + i, x, span);
                return;
        default: /* ZERO_FP32 */
                store(static_cast<float *>(to) + i, x, span);
        }
}

/* Calls f(span, index of the thread's first element) for one tile of n elements. */
template <typename F>
static __device__ inline void with_tile(size_t tile, size_t n, bool aligned, F f)
{
        size_t start = tile * TILE, own = threadIdx.x * QUAD;

        if (aligned && n - start >= TILE)
                f(whole{}, start + own);
        else if (n - start > own)
                f(part{ n - start - own }, start + own);
}

/* The same for all of them, by the whole grid. */
template <typename F> static __device__ inline void sweep(size_t n, bool aligned, F f)
{
        for (size_t tile = blockIdx.x; tile * TILE < n; tile += gridDim.x)
                with_tile(tile, n, aligned, f);
}

/* Whose tiles are dealt: a tile is of one piece, in their order. */
struct deal {
        size_t end[ZERO_CUDA_PIECES]; /* the tiles up to and with this piece's */
        unsigned pieces;
};

static __host__ __device__ inline size_t deal_tiles(const deal &d)
{
        return d.pieces ? d.end[d.pieces - 1] : 0;
}

static __device__ inline unsigned deal_piece(const deal &d, size_t tile)
{
        unsigned low = 0, high = d.pieces - 1;

        while (low < high) {
                unsigned middle = (low + high) / 2;

                if (d.end[middle] <= tile)
                        low = middle + 1;
                else
                        high = middle;
        }
        return low;
}

/* Calls f(piece, tile of that piece) for every stride-th tile from `first` on. */
template <typename F>
static __device__ inline void each_tile(const deal &d, size_t first, size_t stride, F f)
{
        size_t tiles = deal_tiles(d);
        unsigned piece = 0;

        for (size_t tile = first; tile < tiles; tile += stride) {
                if (tile >= d.end[piece])
                        piece = deal_piece(d, tile);
                f(piece, tile - (piece ? d.end[piece - 1] : 0));
        }
}

/* ---- on the host -------------------------------------------------------------- */

template <typename... T> static bool all_aligned(const T *...address)
{
        return ((reinterpret_cast<uintptr_t>(address) % 16 == 0) && ...);
}

/* k <= ZERO_CUDA_SUM_MAX */
static inline sources sources_of(const void *const *src, size_t k)
{
        sources list = {};

        for (size_t i = 0; i < k; i++)
                list.address[i] = src[i];
        list.count = static_cast<unsigned>(k);
        return list;
}

static inline bool all_aligned(const sources &src)
{
        for (unsigned i = 0; i < src.count; i++)
                if (!all_aligned(static_cast<const char *>(src.address[i])))
                        return false;
        return true;
}

/* What the sum of k sources is rounded to; one source in the wire's dtype needs no rounding. */
static inline zero_dtype rounding(zero_dtype wire, zero_dtype from, size_t k)
{
        return k == 1 && from == wire ? ZERO_FP32 : wire;
}

static inline bool is_dtype(zero_dtype dtype)
{
        return dtype == ZERO_FP32 || dtype == ZERO_BF16 || dtype == ZERO_FP16;
}

/* T, of a `const T *`. */
template <typename P>
using element_of = std::remove_const_t<std::remove_pointer_t<std::remove_const_t<P>>>;

/* Calls f with src as a pointer to the type of its elements. */
template <typename F> static int with_type(zero_dtype dtype, const void *src, F f)
{
        switch (dtype) {
        case ZERO_FP32:
                return f(static_cast<const float *>(src));
        case ZERO_BF16:
                return f(static_cast<const bf16 *>(src));
        case ZERO_FP16:
                return f(static_cast<const fp16 *>(src));
        default:
                return -EINVAL;
        }
}

/* How many of `each` elements n take; of a sweep, so many blocks. */
static inline size_t tiles(size_t n, size_t each = TILE)
{
        return n / each + (n % each != 0);
}

/* There is room for it. */
static inline void deal_add(deal &d, size_t its_tiles)
{
        size_t before = deal_tiles(d);

        d.end[d.pieces++] = before + its_tiles;
}
