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
 * in registers while they are of about one size (exact.h; the usual case), else passes it to bins
 * of the thread block, which at the end go to those in memory.
 */
#include "cuda/exact.h"
#include "cuda/kernel.cuh"

constexpr unsigned LANES = 16;
constexpr unsigned TEAM = 4; /* threads of a block */
constexpr unsigned OWN = LANES / TEAM;
constexpr unsigned ROUNDS = ZERO_CUDA_NORM_BLOCK / LANES;
constexpr unsigned STEP = ROUNDS / 2; /* rounds of a further array that are loaded at a time */
constexpr unsigned RESIDENT = 3;      /* thread blocks of a multiprocessor: 80 registers a thread */

/* A thread's part of a block: OWN neighbours every LANES elements, from `first` on. */
struct place_in_block {
        size_t first;
        unsigned left; /* elements of the array from there on, at most a block's */
        bool whole;    /* all exist and are aligned */
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

static __device__ inline void pass_on(atomic_bin *bins, const struct exact_window &run)
{
#pragma unroll
        for (int i = 0; i < EXACT_PARTS; i++)
                if (exact_window_part(&run, i))
                        atomicAdd(bins + run.bin + i, exact_window_part(&run, i));
}

/* false: there is no such sum. */
static __device__ inline bool add_block(double sum, double scale, struct exact_window &run,
                                        atomic_bin *bins)
{
        double value = sum * scale;
        struct exact_window other;

        if (!isfinite(value) || !isfinite(sum))
                return false;
        if (!exact_window_add(&run, value, &other)) {
                pass_on(bins, run);
                run = other;
        }
        return true;
}

/* ---- the pieces of a launch ------------------------------------------------------- */

constexpr unsigned PER_WARP = WARP / TEAM * ZERO_CUDA_NORM_BLOCK; /* elements of a tile: a warp's */
constexpr unsigned WARPS = THREADS / WARP;
constexpr unsigned SOURCES = 512; /* of all pieces of a launch */

static_assert(SOURCES >= ZERO_CUDA_SUM_MAX, "room for any piece");

struct piece {
        float *acc;
        size_t n;
        unsigned source, k;  /* the first of its k sources */
        zero_dtype rounding; /* of their sum */
        bool first, aligned;
};

struct reduce_table {
        deal tiles;
        piece pieces[ZERO_CUDA_PIECES];
        const void *sources[SOURCES];
        unsigned n_sources;
};

/* A thread's part of a tile. */
static __device__ inline place_in_block place_in(const piece &p, size_t tile)
{
        size_t start = tile * PER_WARP + threadIdx.x % WARP / TEAM * ZERO_CUDA_NORM_BLOCK +
                       threadIdx.x % TEAM * OWN;
        size_t rest = start < p.n ? p.n - start : 0;
        unsigned left =
                rest < ZERO_CUDA_NORM_BLOCK ? static_cast<unsigned>(rest) : +ZERO_CUDA_NORM_BLOCK;

        return { start, left, p.aligned && left >= LANES * (ROUNDS - 1) + OWN };
}

/* The new values of the accumulator, stored if there is one; without sources the old ones. */
template <typename T>
static __device__ inline void reduce_piece_at(const piece &p, const void *const *src,
                                              const place_in_block &at, float (&y)[ROUNDS][OWN])
{
        if (p.k == 0) {
                load_rounds(y, p.acc, at, 0);
                return;
        }
        load_rounds(y, static_cast<const T *>(src[0]), at, 0);
#pragma unroll 1
        for (unsigned j = 1; j < p.k; j++)
                add_rounds(y, static_cast<const T *>(src[j]), at);
#pragma unroll
        for (unsigned r = 0; r < ROUNDS; r++)
                round_to(p.rounding, y[r]);
        if (!p.first)
                add_rounds(y, p.acc, at);
        if (p.acc)
                each_round<ROUNDS>(at, 0, [&](unsigned r, auto span, size_t i) {
                        store(p.acc + i, y[r], span);
                });
}

template <typename T>
static __global__ void __launch_bounds__(THREADS, RESIDENT)
        reduce_kernel(const __grid_constant__ reduce_table t, double scale, zero_cuda_norm *norm)
{
        __shared__ atomic_bin bins[EXACT_SUM_BINS];
        size_t warp = static_cast<size_t>(blockIdx.x) * WARPS + threadIdx.x / WARP;
        struct exact_window run = {};

        if (threadIdx.x < EXACT_SUM_BINS)
                bins[threadIdx.x] = 0;
        __syncthreads();
        /* the threads of a warp go round together, because the shuffles need all of them */
        each_tile(t.tiles, warp, static_cast<size_t>(gridDim.x) * WARPS,
                  [&](unsigned i, size_t tile) {
                          const piece &p = t.pieces[i];
                          place_in_block at = place_in(p, tile);
                          float y[ROUNDS][OWN];
                          double sum;

                          reduce_piece_at<T>(p, t.sources + p.source, at, y);
                          if (!norm)
                                  return;
                          sum = block_squares(y);
                          if (threadIdx.x % TEAM == 0 && at.left &&
                              !add_block(sum, scale, run, bins))
                                  norm->nonfinite = 1;
                  });
        pass_on(bins, run);
        __syncthreads();
        if (threadIdx.x < EXACT_SUM_BINS && bins[threadIdx.x])
                atomicAdd(reinterpret_cast<atomic_bin *>(norm->bin) + threadIdx.x,
                          bins[threadIdx.x]);
}

/* ---- on the host ------------------------------------------------------------------- */

static bool has_room(const reduce_table &t, const struct reduce_piece &p)
{
        return t.tiles.pieces < ZERO_CUDA_PIECES && t.n_sources + p.k <= SOURCES;
}

static void table_add(reduce_table &t, const zero_cuda_reduce &a, const struct reduce_piece &p)
{
        bool aligned = all_aligned(p.acc);

        if (p.n == 0 || (p.k == 0 && !a.norm))
                return;
        for (size_t j = 0; j < p.k; j++) {
                aligned = aligned && all_aligned(static_cast<const char *>(p.src[j]));
                t.sources[t.n_sources + j] = p.src[j];
        }
        t.pieces[t.tiles.pieces] = { p.acc,
                                     p.n,
                                     t.n_sources,
                                     static_cast<unsigned>(p.k),
                                     rounding(a.wire, a.from, p.k),
                                     p.first,
                                     aligned };
        deal_add(t.tiles, tiles(p.n, PER_WARP));
        t.n_sources += static_cast<unsigned>(p.k);
}

static bool is_valid(const zero_cuda_reduce &a)
{
        for (size_t i = 0; i < a.n_pieces; i++)
                if (a.pieces[i].k > ZERO_CUDA_SUM_MAX ||
                    (a.norm && a.pieces[i].n > ZERO_CUDA_NORM_MAX))
                        return false;
        return is_dtype(a.wire) && is_dtype(a.from);
}

int cuda_reduce(const zero_cuda_reduce *reduce, void *stream)
{
        const zero_cuda_reduce &a = *reduce;
        reduce_table t;
        int r = 0;

        static_assert(EXACT_SUM_BINS <= THREADS, "a thread for each bin");
        if (!is_valid(a))
                return -EINVAL;
        for (size_t i = 0; i < a.n_pieces && r == 0;) {
                t.tiles.pieces = t.n_sources = 0;
                while (i < a.n_pieces && has_room(t, a.pieces[i]))
                        table_add(t, a, a.pieces[i++]);
                r = with_type(a.from, nullptr, [&](auto *x) {
                        return launch(reduce_kernel<element_of<decltype(x)>>,
                                      tiles(deal_tiles(t.tiles), WARPS), stream, t, a.scale,
                                      a.norm);
                });
        }
        return r;
}
