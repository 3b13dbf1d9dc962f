/*
 * What only a GPU can do, for the kernels: conversions and stores by one instruction, and launches.
 * With another file in its place (tests/support/emulated) the kernels run on a CPU.
 */
#pragma once

#include <mma.h>
#include <stdint.h>
#include <string.h>
#include <type_traits>

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
 * 4, 8 or 16 bytes, aligned to as many, by one instruction.  nvcc splits an assignment into
 * elements where the address comes from a table.
 */
template <typename Q> static __device__ inline void store_aligned(void *to, const Q &q)
{
        size_t address = __cvta_generic_to_global(to);
        uint32_t word[sizeof(q) / sizeof(uint32_t)];

        static_assert(sizeof(q) == 4 || sizeof(q) == 8 || sizeof(q) == 16,
                      "one instruction stores it");
        memcpy(word, &q, sizeof(q));
        if constexpr (sizeof(q) == 16)
                asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(address),
                             "r"(word[0]), "r"(word[1]), "r"(word[2]), "r"(word[3])
                             : "memory");
        else if constexpr (sizeof(q) == 8)
                asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(address), "r"(word[0]),
                             "r"(word[1])
                             : "memory");
        else
                asm volatile("st.global.b32 [%0], %1;" ::"l"(address), "r"(word[0]) : "memory");
}

/* The greatest number of `team` neighbours in a warp, for each of them.  All of the warp call. */
static __device__ inline uint32_t greatest_of_team(uint32_t x, unsigned team)
{
        for (unsigned by = team / 2; by > 0; by /= 2) {
                uint32_t other = __shfl_xor_sync(0xffffffff, x, by);

                x = other > x ? other : x;
        }
        return x;
}

/*
 * What tensor cores multiply: TILE_SIDE rows and columns of bf16, added up in fp32.  All threads of
 * a warp have a tile together, and load, multiply and store it together.  BY_COLUMNS: the tile's
 * columns are lines of memory, not its rows.  Lines begin at multiples of 16 bytes, tiles of 32.
 */
constexpr unsigned TILE_SIDE = 16;

template <typename USE, bool BY_COLUMNS>
using tile_of = nvcuda::wmma::fragment<
        USE, TILE_SIDE, TILE_SIDE, TILE_SIDE, __nv_bfloat16,
        std::conditional_t<BY_COLUMNS, nvcuda::wmma::col_major, nvcuda::wmma::row_major>>;
template <bool BY_COLUMNS> using tile_a = tile_of<nvcuda::wmma::matrix_a, BY_COLUMNS>;
template <bool BY_COLUMNS> using tile_b = tile_of<nvcuda::wmma::matrix_b, BY_COLUMNS>;
using tile_sum =
        nvcuda::wmma::fragment<nvcuda::wmma::accumulator, TILE_SIDE, TILE_SIDE, TILE_SIDE, float>;

template <typename T>
static __device__ inline void tile_load(T &tile, const uint16_t *from, unsigned stride)
{
        nvcuda::wmma::load_matrix_sync(tile, reinterpret_cast<const __nv_bfloat16 *>(from), stride);
}

static __device__ inline void tile_clear(tile_sum &sum)
{
        nvcuda::wmma::fill_fragment(sum, 0);
}

/* sum = sum + a b */
template <typename A, typename B>
static __device__ inline void tile_multiply(tile_sum &sum, const A &a, const B &b)
{
        nvcuda::wmma::mma_sync(sum, a, b, sum);
}

/* [TILE_SIDE][TILE_SIDE] */
static __device__ inline void tile_store(float *to, const tile_sum &sum)
{
        nvcuda::wmma::store_matrix_sync(to, sum, TILE_SIDE, nvcuda::wmma::mem_row_major);
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
