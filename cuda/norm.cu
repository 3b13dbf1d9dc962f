/*
 * Sums of squares, one double a block of 128 elements, in the order of the scalar truth:
 * element i of a block goes to lane i % 16, in turn; then the lanes are added as a tree.
 *
 * Four threads take a block, four neighbouring lanes each: a load of 16 bytes is one element
 * of each of them.  Lanes without an element add 0, which changes no sum of squares.
 *
 * The sums are added exactly.  The first thread of the four keeps what it has added up in
 * registers while the sums are of about one size (the usual case), else passes it to bins of
 * the thread block, which at the end go to those in memory.
 */
#include "cuda/exact.h"
#include "cuda/kernel.cuh"

constexpr unsigned LANES = 16;
constexpr unsigned TEAM = 4; /* threads of a block */
constexpr unsigned OWN = LANES / TEAM;
constexpr unsigned ROUNDS = ZERO_CUDA_NORM_BLOCK / LANES;

/* x: the thread's first element of the block; left: elements from there on. */
static __device__ inline void load_rounds(float (&y)[ROUNDS][OWN], const float *x, size_t left,
                                          bool aligned)
{
        if (aligned && left > LANES * (ROUNDS - 1) + OWN - 1) {
#pragma unroll
                for (unsigned r = 0; r < ROUNDS; r++)
                        load(y[r], x + LANES * r, whole{});
        } else {
#pragma unroll
                for (unsigned r = 0; r < ROUNDS; r++)
                        load(y[r], x + LANES * r, part{ left > LANES * r ? left - LANES * r : 0 });
        }
}

static __device__ inline double block_squares(const float (&y)[ROUNDS][OWN])
{
        double lane[OWN] = {};

#pragma unroll
        for (unsigned r = 0; r < ROUNDS; r++)
#pragma unroll
                for (unsigned l = 0; l < OWN; l++)
                        lane[l] += static_cast<double>(y[r][l]) * static_cast<double>(y[r][l]);
#pragma unroll
        for (unsigned width = TEAM / 2; width; width /= 2)
#pragma unroll
                for (unsigned l = 0; l < OWN; l++)
                        lane[l] += __shfl_down_sync(~0u, lane[l], width, TEAM);
        return (lane[0] + lane[2]) + (lane[1] + lane[3]);
}

using atomic_bin = unsigned long long;

static __device__ inline void pass_on(atomic_bin *bins, const struct exact_terms &terms)
{
#pragma unroll
        for (unsigned i = 0; i < EXACT_TERMS; i++)
                if (terms.term[i])
                        atomicAdd(bins + terms.bin + i, terms.term[i]);
}

/* false: not a number of which there is a sum. */
static __device__ inline bool add_block(double sum, double scale, struct exact_terms &run,
                                        atomic_bin *bins)
{
        double value = sum * scale;
        struct exact_terms terms;

        if (!isfinite(value) || !isfinite(sum))
                return false;
        terms = exact_terms_of(value);
        if (!exact_terms_join(&run, &terms)) {
                pass_on(bins, run);
                run = terms;
        }
        return true;
}

static __global__ void norm_kernel(const float *x, size_t n, double scale, zero_cuda_norm *acc,
                                   bool aligned)
{
        __shared__ atomic_bin bins[EXACT_SUM_BINS];
        size_t blocks = (n + ZERO_CUDA_NORM_BLOCK - 1) / ZERO_CUDA_NORM_BLOCK;
        size_t stride = static_cast<size_t>(gridDim.x) * (THREADS / TEAM);
        size_t team = (static_cast<size_t>(blockIdx.x) * THREADS + threadIdx.x) / TEAM;
        unsigned in_warp = threadIdx.x % WARP / TEAM, own = threadIdx.x % TEAM * OWN;
        struct exact_terms run = {};

        if (threadIdx.x < EXACT_SUM_BINS)
                bins[threadIdx.x] = 0;
        __syncthreads();
        /* the threads of a warp go round together: the shuffles need them all */
        for (size_t first = team - in_warp; first < blocks; first += stride) {
                size_t block = first + in_warp, start = block * ZERO_CUDA_NORM_BLOCK + own;
                float y[ROUNDS][OWN];
                double sum;

                load_rounds(y, x + start, start < n ? n - start : 0, aligned);
                sum = block_squares(y);
                if (own == 0 && block < blocks && !add_block(sum, scale, run, bins))
                        acc->nonfinite = 1;
        }
        pass_on(bins, run);
        __syncthreads();
        if (threadIdx.x < EXACT_SUM_BINS && bins[threadIdx.x])
                atomicAdd(reinterpret_cast<atomic_bin *>(acc->bin) + threadIdx.x,
                          bins[threadIdx.x]);
}

int cuda_norm(const float *x, size_t n, double scale, zero_cuda_norm *acc, void *stream)
{
        constexpr size_t each = ZERO_CUDA_NORM_BLOCK * (THREADS / TEAM); /* of a thread block */

        static_assert(EXACT_SUM_BINS <= THREADS, "a thread for each bin");
        if (n > ZERO_CUDA_NORM_MAX)
                return -EINVAL;
        return launch(norm_kernel, n / each + (n % each != 0), stream, x, n, scale, acc,
                      all_aligned(x));
}
