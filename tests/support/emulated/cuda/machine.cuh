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
#define __launch_bounds__(threads, resident)

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

static inline void __syncthreads()
{
        lanes_barrier();
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
