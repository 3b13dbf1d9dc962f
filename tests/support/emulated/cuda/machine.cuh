/*
 * In place of cuda/machine.cuh: the kernels as programs of the CPU, so that their arithmetic and
 * their indices can be checked where there is no GPU.  A grid has at most GRID blocks, so that
 * blocks come round more than once.
 */
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

extern "C" {
#include "tests/support/emulated/lanes.h"
float dtype_fp32_from_fp16(uint16_t x);
uint16_t dtype_bf16_from_fp32(float x);
uint16_t dtype_fp16_from_fp32(float x);
}

#define __host__
#define __device__
#define __global__
#define __shared__ static
#define __grid_constant__
#define __launch_bounds__(...)

constexpr unsigned THREADS = LANES_BLOCK;
constexpr unsigned WARP = LANES_WARP;
constexpr size_t GRID = 3;

#define threadIdx (lanes_now.thread)
#define blockIdx (lanes_now.block)
#define gridDim (lanes_now.grid)

using std::isfinite;

static inline float __uint_as_float(unsigned bits)
{
        float x;

        memcpy(&x, &bits, sizeof(x));
        return x;
}

static inline unsigned __float_as_uint(float x)
{
        unsigned bits;

        memcpy(&bits, &x, sizeof(x));
        return bits;
}

/* As on a GPU, every NaN becomes the same one. */
static inline float fp32_of_fp16(uint16_t x)
{
        return (x & 0x7fff) > 0x7c00 ? __uint_as_float(0x7fffffff) : dtype_fp32_from_fp16(x);
}

static inline uint16_t bf16_of_fp32(float x)
{
        return std::isnan(x) ? 0x7fff : dtype_bf16_from_fp32(x);
}

static inline uint16_t fp16_of_fp32(float x)
{
        return std::isnan(x) ? 0x7fff : dtype_fp16_from_fp32(x);
}

/* As on a GPU, a wrong alignment is an error. */
template <typename Q> static inline void store_aligned(void *to, const Q &q)
{
        if (reinterpret_cast<uintptr_t>(to) % sizeof(q))
                abort();
        memcpy(to, &q, sizeof(q));
}

static inline double __shfl_down_sync(unsigned, double x, unsigned by, unsigned team)
{
        return lanes_shuffle_down(x, by, team);
}

static inline uint32_t greatest_of_team(uint32_t x, unsigned team)
{
        return static_cast<uint32_t>(lanes_greatest(x, team));
}

static inline void __syncthreads()
{
        lanes_barrier();
}

static inline void __syncwarp()
{
        lanes_shuffle_down(0, 0, 1);
}

/* A tile is all with the warp's first thread, and a sum is the chain of product.h. */
constexpr unsigned TILE_SIDE = 16;

struct tile_sum {
        float x[TILE_SIDE][TILE_SIDE];
};

template <bool BY_COLUMNS> struct tile_a {
        float x[TILE_SIDE][TILE_SIDE];
        static constexpr bool by_columns = BY_COLUMNS;
};

template <bool BY_COLUMNS> struct tile_b : tile_a<BY_COLUMNS> {
};

static inline bool tile_is_here()
{
        return threadIdx.x % WARP == 0;
}

/* As on a GPU, a wrong alignment is an error. */
template <typename T> static inline void tile_load(T &tile, const uint16_t *from, unsigned stride)
{
        if (reinterpret_cast<uintptr_t>(from) % 32 || stride % 8)
                abort();
        for (unsigned i = 0; tile_is_here() && i < TILE_SIDE; i++)
                for (unsigned j = 0; j < TILE_SIDE; j++)
                        (T::by_columns ? tile.x[j][i] : tile.x[i][j]) =
                                __uint_as_float((unsigned)from[i * stride + j] << 16);
}

static inline void tile_clear(tile_sum &sum)
{
        sum = {};
}

template <typename A, typename B>
static inline void tile_multiply(tile_sum &sum, const A &a, const B &b)
{
        for (unsigned i = 0; tile_is_here() && i < TILE_SIDE; i++)
                for (unsigned k = 0; k < TILE_SIDE; k++)
                        for (unsigned j = 0; j < TILE_SIDE; j++)
                                sum.x[i][j] = fmaf(a.x[i][k], b.x[k][j], sum.x[i][j]);
}

static inline void tile_store(float *to, const tile_sum &sum)
{
        if (tile_is_here())
                memcpy(to, sum.x, sizeof(sum.x));
}

template <typename T, typename U> static inline void atomicAdd(T *to, U x)
{
        *to += x;
}

template <typename T, typename U> static inline void atomicExch(T *to, U x)
{
        *to = x;
}

template <typename... P, typename... A>
static int launch(void (*kernel)(P...), size_t blocks, void *, const A &...arguments)
{
        auto thread = [&]() { kernel(arguments...); };

        lanes_run(
                static_cast<unsigned>(blocks < GRID ? blocks : GRID),
                [](void *run) { (*static_cast<decltype(thread) *>(run))(); }, &thread);
        return 0;
}
