/*
 * What only a GPU can do, for the kernels: conversions and stores by one instruction, and launches.
 * With another file in its place (tests/support/emulated) the kernels run on a CPU.
 */
#pragma once

#include <stdint.h>
#include <string.h>

#include "cuda/errors.h"

constexpr unsigned THREADS = 256; /* of a block */
constexpr unsigned WARP = 32;

static __device__ inline float fp32_of_fp16(uint16_t x)
{
        float wide;

        asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x));
        return wide;
}

/* To nearest, ties to even; subnormals are kept; every NaN becomes the same one, here and above. */
static __device__ inline uint16_t bf16_of_fp32(float x)
{
        uint16_t bits;

        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
        return bits;
}

static __device__ inline uint16_t fp16_of_fp32(float x)
{
        uint16_t bits;

        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
        return bits;
}

/*
 * 8 or 16 bytes, aligned to as many, by one instruction.  nvcc splits an assignment into elements
 * where the address comes from a table.
 */
template <typename Q> static __device__ inline void store_aligned(void *to, const Q &q)
{
        size_t address = __cvta_generic_to_global(to);
        uint32_t word[sizeof(q) / sizeof(uint32_t)];

        static_assert(sizeof(q) == 8 || sizeof(q) == 16, "one instruction stores it");
        memcpy(word, &q, sizeof(q));
        if constexpr (sizeof(q) == 16)
                asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(address),
                             "r"(word[0]), "r"(word[1]), "r"(word[2]), "r"(word[3])
                             : "memory");
        else
                asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(address), "r"(word[0]),
                             "r"(word[1])
                             : "memory");
}

/* Launches the kernel with that many blocks, or as many as the GPU runs at once. */
template <typename... P, typename... A>
static int launch(void (*kernel)(P...), size_t blocks, void *stream, const A &...arguments)
{
        int device = 0, multiprocessors = 0, resident = 0, r;
        size_t most;

        if (blocks == 0)
                return 0;
        r = cuda_errno(cudaGetDevice(&device));
        if (r == 0)
                r = cuda_errno(cudaDeviceGetAttribute(&multiprocessors,
                                                      cudaDevAttrMultiProcessorCount, device));
        if (r == 0)
                r = cuda_errno(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
                        &resident, reinterpret_cast<const void *>(kernel), THREADS, 0));
        if (r < 0)
                return r;
        most = static_cast<size_t>(multiprocessors) * resident;
        if (blocks > most)
                blocks = most;
        kernel<<<blocks, THREADS, 0, static_cast<cudaStream_t>(stream)>>>(arguments...);
        return cuda_errno(cudaGetLastError());
}
