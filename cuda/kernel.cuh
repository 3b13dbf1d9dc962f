/*
 * What the kernels share: reading any dtype as fp32, writing it back rounded once, and the
 * sweep of a grid over a range.
 *
 * A thread takes VEC elements at a time.  Where all addresses are aligned and the elements
 * are all there (a `whole` span), it moves 16 bytes an access and all its loads are in flight
 * together; else (a `part`) it goes element by element.  The values are the same.
 */
#pragma once

#include <errno.h>
#include <type_traits>

#include "cuda/kernels.h"

struct bf16 {
        uint16_t bits;
};

struct fp16 {
        uint16_t bits;
};

constexpr unsigned VEC = 8;
constexpr unsigned THREADS = 256; /* of a block */
constexpr unsigned WARP = 32;
constexpr unsigned RESIDENT_BLOCKS = 8; /* of a multiprocessor: 2048 threads, the most it holds */

/* How many elements are there: VEC, or fewer. */
struct whole {
};

struct part {
        size_t left;
};

static __device__ inline float widen(float x)
{
        return x;
}

static __device__ inline float widen(bf16 x)
{
        return __uint_as_float((unsigned)x.bits << 16);
}

static __device__ inline float widen(fp16 x)
{
        float wide;

        asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));
        return wide;
}

/* To nearest, ties to even; subnormals are kept. */
static __device__ inline void narrow(float *to, float x)
{
        *to = x;
}

static __device__ inline void narrow(bf16 *to, float x)
{
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(to->bits) : "f"(x));
}

static __device__ inline void narrow(fp16 *to, float x)
{
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to->bits) : "f"(x));
}

/* The elements of one 16-byte access. */
template <typename T> struct alignas(16) pack {
        static constexpr unsigned COUNT = 16 / sizeof(T);
        T element[COUNT];
};

template <unsigned N, typename T>
static __device__ inline void load(float (&x)[N], const T *from, whole)
{
        constexpr unsigned COUNT = pack<T>::COUNT;

        static_assert(N % COUNT == 0, "whole packs");
#pragma unroll
        for (unsigned i = 0; i < N; i += COUNT) {
                pack<T> q = *reinterpret_cast<const pack<T> *>(from + i);

#pragma unroll
                for (unsigned j = 0; j < COUNT; j++)
                        x[i + j] = widen(q.element[j]);
        }
}

/* What is not there reads as 0. */
template <unsigned N, typename T>
static __device__ inline void load(float (&x)[N], const T *from, part span)
{
#pragma unroll
        for (unsigned i = 0; i < N; i++)
                x[i] = i < span.left ? widen(from[i]) : 0.0f;
}

template <typename T> static __device__ inline void store(T *to, const float (&x)[VEC], whole)
{
        constexpr unsigned COUNT = pack<T>::COUNT;

#pragma unroll
        for (unsigned i = 0; i < VEC; i += COUNT) {
                pack<T> q;

#pragma unroll
                for (unsigned j = 0; j < COUNT; j++)
                        narrow(&q.element[j], x[i + j]);
                *reinterpret_cast<pack<T> *>(to + i) = q;
        }
}

template <typename T> static __device__ inline void store(T *to, const float (&x)[VEC], part span)
{
#pragma unroll
        for (unsigned i = 0; i < VEC; i++)
                if (i < span.left)
                        narrow(&to[i], x[i]);
}

/* The same from element i of an array whose dtype is known at run time. */
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
        case ZERO_FP32:
                store(static_cast<float *>(to) + i, x, span);
        }
}

/* Calls f(span, index of its first element) over all spans of n elements, by the whole grid. */
template <typename F> static __device__ inline void sweep(size_t n, bool aligned, F f)
{
        size_t stride = static_cast<size_t>(gridDim.x) * THREADS * VEC;
        size_t i = (static_cast<size_t>(blockIdx.x) * THREADS + threadIdx.x) * VEC;

        for (; i < n; i += stride) {
                if (aligned && n - i >= VEC)
                        f(whole{}, i);
                else
                        f(part{ n - i }, i);
        }
}

/* ---- on the host -------------------------------------------------------------- */

template <typename... T> static bool all_aligned(const T *...address)
{
        return ((reinterpret_cast<uintptr_t>(address) % 16 == 0) && ...);
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
        }
        return -EINVAL;
}

/* Launches the kernel with a thread for each of `threads`, or as many as the GPU holds. */
template <typename... P, typename... A>
static int launch(void (*kernel)(P...), size_t threads, void *stream, A... arguments)
{
        int device = 0, multiprocessors = 0, r;
        size_t blocks = threads / THREADS + (threads % THREADS != 0), most;

        if (blocks == 0)
                return 0;
        r = cuda_errno(cudaGetDevice(&device));
        if (r == 0)
                r = cuda_errno(cudaDeviceGetAttribute(&multiprocessors,
                                                      cudaDevAttrMultiProcessorCount, device));
        if (r < 0)
                return r;
        most = static_cast<size_t>(multiprocessors) * RESIDENT_BLOCKS;
        if (blocks > most)
                blocks = most;
        kernel<<<blocks, THREADS, 0, static_cast<cudaStream_t>(stream)>>>(arguments...);
        return cuda_errno(cudaGetLastError());
}

/* The threads of a sweep over n elements. */
static inline size_t sweep_threads(size_t n)
{
        return n / VEC + (n % VEC != 0);
}
