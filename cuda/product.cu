/*
 * Products of matrices of bf16 by tensor cores, and the quotient of such a matrix and a number.
 *
 * A block has SIDE x SIDE elements of the result, and a warp a part of them.  The sums grow by
 * DEPTH of each row and column at a time: while tensor cores multiply one slice of both factors in
 * shared memory, the next one comes into registers.  What lies outside of a matrix counts as 0. The
 * order of a sum depends on the kind of GPU alone.
 */
#include "cuda/kernel.cuh"

constexpr unsigned SIDE = 128, DEPTH = 32;
constexpr unsigned DOWN = 64, ACROSS = 32; /* of a warp */
constexpr unsigned PAD = 8;                /* behind a line, so that lines lie in different banks */
constexpr unsigned QUADS = SIDE * DEPTH / QUAD / THREADS; /* of a slice, for each thread */

/* Which of the factors is the transposed of what lies in memory. */
enum product_form { OF_NEITHER, OF_A, OF_B };

/* A part of a factor, in lines as in memory. */
template <unsigned LINES> struct alignas(32) slice {
        static constexpr unsigned LENGTH = SIDE * DEPTH / LINES, STRIDE = LENGTH + PAD;

        uint16_t x[LINES][STRIDE];
};

using lines_of_sides = slice<SIDE>;
using lines_of_depth = slice<DEPTH>;

/* A factor in memory, from the block's first row or column on. */
struct factor {
        const uint16_t *x;
        size_t lines, length, stride;
        bool aligned; /* each fourth element of a line */
};

/* A quad of bf16 on its way to shared memory. */
struct alignas(8) packed {
        uint32_t word[2];
};

/* From a line, and an element of all lines, on. */
template <typename S>
static __device__ inline void fetch(packed (&to)[QUADS], const factor &f, size_t line, size_t first)
{
#pragma unroll
        for (unsigned i = 0; i < QUADS; i++) {
                const unsigned q = threadIdx.x + i * THREADS, own = q % (S::LENGTH / QUAD) * QUAD;
                const size_t l = line + q / (S::LENGTH / QUAD), at = first + own;
                const size_t left = l < f.lines && at < f.length ? f.length - at : 0;
                const uint16_t *from = f.x + l * f.stride + at;
                uint64_t bits = 0;

                if (f.aligned && left >= QUAD) {
                        to[i] = *reinterpret_cast<const packed *>(from);
                        continue;
                }
#pragma unroll 1
                for (unsigned k = 0; k < QUAD && k < left; k++)
                        bits |= static_cast<uint64_t>(from[k]) << 16 * k;
                to[i] = { { static_cast<uint32_t>(bits), static_cast<uint32_t>(bits >> 32) } };
        }
}

template <typename S> static __device__ inline void put(S &to, const packed (&from)[QUADS])
{
#pragma unroll
        for (unsigned i = 0; i < QUADS; i++) {
                unsigned q = threadIdx.x + i * THREADS;

                memcpy(&to.x[q / (S::LENGTH / QUAD)][q % (S::LENGTH / QUAD) * QUAD], &from[i],
                       sizeof(from[i]));
        }
}

/* The place in a slice of what begins at that row or column and that depth. */
static __device__ inline const uint16_t *at(const lines_of_sides &s, unsigned side, unsigned depth)
{
        return &s.x[side][depth];
}

static __device__ inline const uint16_t *at(const lines_of_depth &s, unsigned side, unsigned depth)
{
        return &s.x[depth][side];
}

using warp_sums = tile_sum[DOWN / TILE_SIDE][ACROSS / TILE_SIDE];

/* down, across: of the warp's first sum. */
template <product_form FORM, typename A, typename B>
static __device__ inline void multiply(warp_sums &sum, const A &a, const B &b, unsigned down,
                                       unsigned across)
{
#pragma unroll
        for (unsigned k = 0; k < DEPTH; k += TILE_SIDE) {
                tile_b<FORM == OF_B> right[ACROSS / TILE_SIDE];

#pragma unroll
                for (unsigned j = 0; j < ACROSS / TILE_SIDE; j++)
                        tile_load(right[j], at(b, across + j * TILE_SIDE, k), B::STRIDE);
#pragma unroll
                for (unsigned i = 0; i < DOWN / TILE_SIDE; i++) {
                        tile_a<FORM == OF_A> left;

                        tile_load(left, at(a, down + i * TILE_SIDE, k), A::STRIDE);
#pragma unroll
                        for (unsigned j = 0; j < ACROSS / TILE_SIDE; j++)
                                tile_multiply(sum[i][j], left, right[j]);
                }
        }
}

/* Four sums of a row, or as many as the matrix has. */
template <typename S>
static __device__ inline void write(const product &p, const float *sum, size_t at, S span)
{
        float x[QUAD];

        memcpy(x, sum, sizeof(x));
        if (p.add) {
                float add[QUAD];

                load(add, reinterpret_cast<const bf16 *>(p.add) + at, span);
#pragma unroll
                for (unsigned k = 0; k < QUAD; k++)
                        x[k] = p.alpha * x[k] + p.beta * add[k];
        }
        store(reinterpret_cast<bf16 *>(p.out) + at, x, span);
}

/* The warp's sums go through its own shared memory. */
static __device__ inline void write_sums(const product &p, const warp_sums &sum, float *room,
                                         size_t row, size_t col, bool aligned)
{
        const unsigned lane = threadIdx.x % WARP;

#pragma unroll
        for (unsigned i = 0; i < DOWN / TILE_SIDE; i++)
#pragma unroll
                for (unsigned j = 0; j < ACROSS / TILE_SIDE; j++) {
                        tile_store(room, sum[i][j]);
                        __syncwarp();
#pragma unroll 1
                        for (unsigned q = lane; q < TILE_SIDE * TILE_SIDE / QUAD; q += WARP) {
                                size_t r = row + i * TILE_SIDE + q / (TILE_SIDE / QUAD);
                                size_t c = col + j * TILE_SIDE + q % (TILE_SIDE / QUAD) * QUAD;

                                if (r >= p.rows || c >= p.cols)
                                        continue;
                                if (aligned && p.cols - c >= QUAD)
                                        write(p, room + q * QUAD, r * p.stride + c, whole{});
                                else
                                        write(p, room + q * QUAD, r * p.stride + c,
                                              part{ p.cols - c });
                        }
                        __syncwarp();
                }
}

/* How many blocks a row and the result have, and in which matrices a thread may move four values at
 * once. */
struct product_cut {
        size_t across, blocks;
        bool a, b, out;
};

/* Two blocks on a multiprocessor: while one waits for the other's memory, tensor cores go on. */
template <product_form FORM>
static __global__ void __launch_bounds__(THREADS, 2)
        product_kernel(const __grid_constant__ product p, const product_cut cut)
{
        using A = std::conditional_t<FORM == OF_A, lines_of_depth, lines_of_sides>;
        using B = std::conditional_t<FORM == OF_B, lines_of_sides, lines_of_depth>;
        struct rooms {
                A a[2];
                B b[2];
        };
        __shared__ rooms room;
        const unsigned warp = threadIdx.x / WARP;
        const unsigned down = warp / (SIDE / ACROSS) * DOWN,
                       across = warp % (SIDE / ACROSS) * ACROSS;

        for (size_t i = blockIdx.x; i < cut.blocks; i += gridDim.x) {
                const size_t row = i / cut.across * SIDE, col = i % cut.across * SIDE;
                const factor a = { p.a.x, FORM == OF_A ? p.depth : p.rows,
                                   FORM == OF_A ? p.rows : p.depth, p.a.stride, cut.a };
                const factor b = { p.b.x, FORM == OF_B ? p.cols : p.depth,
                                   FORM == OF_B ? p.depth : p.cols, p.b.stride, cut.b };
                packed next_a[QUADS], next_b[QUADS];
                warp_sums sum;

#pragma unroll
                for (auto &line : sum)
#pragma unroll
                        for (auto &s : line)
                                tile_clear(s);
#pragma unroll 1
                for (size_t k = 0, half = 0; k < p.depth + DEPTH; k += DEPTH, half ^= 1) {
                        if (k < p.depth) {
                                fetch<A>(next_a, a, FORM == OF_A ? k : row, FORM == OF_A ? row : k);
                                fetch<B>(next_b, b, FORM == OF_B ? col : k, FORM == OF_B ? k : col);
                        }
                        if (k > 0)
                                multiply<FORM>(sum, room.a[half ^ 1], room.b[half ^ 1], down,
                                               across);
                        if (k < p.depth) {
                                put(room.a[half], next_a);
                                put(room.b[half], next_b);
                        }
                        __syncthreads();
                }
                write_sums(p, sum, reinterpret_cast<float *>(&room) + warp * TILE_SIDE * TILE_SIDE,
                           row + down, col + across, cut.out);
                __syncthreads();
        }
}

static bool quads_aligned(const uint16_t *x, size_t stride)
{
        return reinterpret_cast<uintptr_t>(x) % (QUAD * sizeof(*x)) == 0 && stride % QUAD == 0;
}

int cuda_product(const product *p, void *stream)
{
        const size_t across = tiles(p->cols, SIDE);
        const product_cut cut = { across, tiles(p->rows, SIDE) * across,
                                  quads_aligned(p->a.x, p->a.stride),
                                  quads_aligned(p->b.x, p->b.stride),
                                  quads_aligned(p->out, p->stride) &&
                                          quads_aligned(p->add, p->stride) };

        if (p->a.transposed && p->b.transposed)
                return -EINVAL;
        if (p->a.transposed)
                return launch(product_kernel<OF_A>, cut.blocks, stream, *p, cut);
        if (p->b.transposed)
                return launch(product_kernel<OF_B>, cut.blocks, stream, *p, cut);
        return launch(product_kernel<OF_NEITHER>, cut.blocks, stream, *p, cut);
}

template <typename T>
static __global__ void divide_kernel(T *to, const T *from, float by, size_t n, bool aligned)
{
        sweep(n, aligned, [&](auto span, size_t i) {
                float x[VEC];

                load(x, from + i, span);
#pragma unroll
                for (unsigned k = 0; k < VEC; k++)
                        x[k] /= by;
                store(to + i, x, span);
        });
}

int cuda_divide(uint16_t *to, const uint16_t *from, float by, size_t n, void *stream)
{
        return launch(divide_kernel<bf16>, tiles(n), stream, reinterpret_cast<bf16 *>(to),
                      reinterpret_cast<const bf16 *>(from), by, n, all_aligned(to, from));
}
