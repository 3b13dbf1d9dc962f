/*
 * A gradient's reduction: contributions are added in order, rounded once to the wire's dtype and
 * put or added into the fp32 accumulator; and in the same pass its norm is taken, and whether
 * it is finite.  Without sources only the norm.
 *
 * The norm is a double for each block of 128 elements, in the order of the scalar truth:
 * element i of a block goes to lane i % 16, in turn; then the lanes are added as a tree.
 * Four threads take a block, four neighbouring lanes each: a load of 16 bytes is one element
 * of each of them.  Lanes without an element add 0, which changes no sum of squares.
 *
 * The blocks' doubles are added exactly.  The first thread of the four keeps what it has added up
 * in registers while they are of about one size (the usual case), else passes it to bins of
 * the thread block, which at the end go to those in memory.
 */
#include "cuda/exact.h"
#include "cuda/kernel.cuh"

constexpr unsigned LANES = 16;
constexpr unsigned TEAM = 4; /* threads of a block */
constexpr unsigned OWN = LANES / TEAM;
constexpr unsigned ROUNDS = ZERO_CUDA_NORM_BLOCK / LANES;
constexpr unsigned STEP = ROUNDS / 2; /* rounds of a further array that are loaded at a time */
constexpr unsigned RESIDENT = 3;      /* thread blocks of a multiprocessor: 80 registers a thread */

/* What a thread has of a block: OWN neighbours every LANES elements, from `first` on. */
struct place_in_block {
        size_t first;
        unsigned left; /* elements of the array from there on; of more than a block's, as many */
        bool whole;    /* all are there, and aligned */
};

/* Calls f(round, span, index of its first element) for N rounds from `from` on. */
template <unsigned N, typename F>
static __device__ inline void each_round(const place_in_block &at, unsigned from, F f)
{
        if (at.whole) {
#pragma unroll
                for (unsigned r = 0; r < N; r++)
                        f(r, whole{}, at.first + LANES * (from + r));
        } else {
#pragma unroll
                for (unsigned r = 0; r < N; r++) {
                        unsigned skip = LANES * (from + r);

                        f(r, part{ at.left > skip ? at.left - skip : 0u }, at.first + skip);
                }
        }
}

template <unsigned N, typename T>
static __device__ inline void load_rounds(float (&y)[N][OWN], const T *x, const place_in_block &at,
                                          unsigned from)
{
        each_round<N>(at, from, [&](unsigned r, auto span, size_t i) { load(y[r], x + i, span); });
}

/* y = y + x, which is x + y. */
template <typename T>
static __device__ inline void add_rounds(float (&y)[ROUNDS][OWN], const T *x,
                                         const place_in_block &at)
{
#pragma unroll
        for (unsigned from = 0; from < ROUNDS; from += STEP) {
                float more[STEP][OWN];

                load_rounds(more, x, at, from);
#pragma unroll
                for (unsigned r = 0; r < STEP; r++)
#pragma unroll
                        for (unsigned l = 0; l < OWN; l++)
                                y[from + r][l] += more[r][l];
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

/* Calls values(y, place) for what the threads of the grid have of each block, and adds up the
 * squares of the y that it gives, unless norm is NULL. */
template <typename F>
static __device__ inline void each_block(size_t n, double scale, zero_cuda_norm *norm, bool aligned,
                                         F values)
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
                size_t rest = start < n ? n - start : 0;
                unsigned left = rest < ZERO_CUDA_NORM_BLOCK ? static_cast<unsigned>(rest) :
                                                              +ZERO_CUDA_NORM_BLOCK;
                float y[ROUNDS][OWN];
                double sum;

                values(y, place_in_block{ start, left,
                                          aligned && left >= LANES * (ROUNDS - 1) + OWN });
                if (!norm)
                        continue;
                sum = block_squares(y);
                if (own == 0 && block < blocks && !add_block(sum, scale, run, bins))
                        norm->nonfinite = 1;
        }
        pass_on(bins, run);
        __syncthreads();
        if (threadIdx.x < EXACT_SUM_BINS && bins[threadIdx.x])
                atomicAdd(reinterpret_cast<atomic_bin *>(norm->bin) + threadIdx.x,
                          bins[threadIdx.x]);
}

static __global__ void norm_kernel(const float *acc, size_t n, double scale, zero_cuda_norm *norm,
                                   bool aligned)
{
        each_block(n, scale, norm, aligned, [&](auto &y, const place_in_block &at) {
                load_rounds(y, acc, at, 0);
        });
}

template <typename T>
static __global__ void __launch_bounds__(THREADS, RESIDENT)
        reduce_kernel(float *acc, sources src, size_t n, bool round, bool first,
                                     double scale, zero_cuda_norm *norm, bool aligned)
{
        each_block(n, scale, norm, aligned, [&](auto &y, const place_in_block &at) {
                load_rounds(y, static_cast<const T *>(src.address[0]), at, 0);
#pragma unroll 1
                for (unsigned j = 1; j < src.count; j++)
                        add_rounds(y, static_cast<const T *>(src.address[j]), at);
                if (round)
#pragma unroll
                        for (unsigned r = 0; r < ROUNDS; r++)
#pragma unroll
                                for (unsigned l = 0; l < OWN; l++)
                                        y[r][l] = widen(bf16{ bf16_of_fp32(y[r][l]) });
                if (!first)
                        add_rounds(y, acc, at);
                each_round<ROUNDS>(at, 0, [&](unsigned r, auto span, size_t i) {
                        store(acc + i, y[r], span);
                });
        });
}

int cuda_reduce(const zero_cuda_reduce *reduce, void *stream)
{
        constexpr size_t each = ZERO_CUDA_NORM_BLOCK * (THREADS / TEAM); /* of a thread block */
        const zero_cuda_reduce &a = *reduce;
        size_t blocks = a.n / each + (a.n % each != 0);
        sources list;
        bool aligned;

        static_assert(EXACT_SUM_BINS <= THREADS, "a thread for each bin");
        if ((a.wire != ZERO_FP32 && a.wire != ZERO_BF16) || !is_dtype(a.from) ||
            a.k > ZERO_CUDA_SUM_MAX || (a.norm && a.n > ZERO_CUDA_NORM_MAX))
                return -EINVAL;
        list = sources_of(a.src, a.k);
        aligned = all_aligned(a.acc) && all_aligned(list);
        if (a.k == 0)
                return a.norm ? launch(norm_kernel, blocks, stream, static_cast<const float *>(a.acc),
                                       a.n, a.scale, a.norm, aligned) :
                                0;
        return with_type(a.from, a.src[0], [&](auto *x) {
                return launch(reduce_kernel<element_of<decltype(x)>>, blocks, stream, a.acc, list,
                              a.n, a.wire == ZERO_BF16, a.first, a.scale, a.norm, aligned);
        });
}
