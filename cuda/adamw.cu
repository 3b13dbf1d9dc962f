/*
 * AdamW in one pass: reads p, m, v and the gradient once, writes p, m, v and the serve copy
 * once.  The order of operations is that of the scalar truth; built without contraction
 * and with correctly rounded division and square root.
 */
#include "cuda/kernel.cuh"

static __device__ inline void update_element(const struct adamw_scalars &s, float grad, float &p,
                                             float &m, float &v)
{
        float g = grad * s.grad_scale;

        p = p * s.decay;
        m = m + (g - m) * s.one_minus_beta1;
        v = v * s.beta2 + (g * g) * s.one_minus_beta2;
        p -= s.step_size * (m / (sqrtf(v) / s.sqrt_bias2 + s.eps));
}

/* The sum of the contributions, as reduce() would put it into an accumulator. */
template <typename S>
static __device__ inline void load_gradient(const zero_cuda_adamw &a, float (&grad)[VEC], size_t i,
                                            S span)
{
        load_as(a.from, grad, a.grad[0], i, span);
#pragma unroll 1
        for (unsigned j = 1; j < a.k; j++) {
                float more[VEC];

                load_as(a.from, more, a.grad[j], i, span);
#pragma unroll
                for (unsigned k = 0; k < VEC; k++)
                        grad[k] += more[k];
        }
        round_to(a.wire, grad);
}

struct adamw_piece {
        zero_cuda_adamw a;
        bool aligned; /* all of its addresses */
};

struct adamw_table {
        deal tiles;
        adamw_piece piece[ZERO_CUDA_PIECES];
};

static __device__ inline void update_tile(const adamw_piece &piece, size_t tile)
{
        const zero_cuda_adamw &a = piece.a;

        with_tile(tile, a.n, piece.aligned, [&](auto span, size_t i) {
                float p[VEC], m[VEC], v[VEC], grad[VEC];

                load(p, a.p + i, span);
                load(m, a.m + i, span);
                load(v, a.v + i, span);
                load_gradient(a, grad, i, span);
#pragma unroll
                for (unsigned k = 0; k < VEC; k++)
                        update_element(a.scalars, grad[k], p[k], m[k], v[k]);
                store(a.out_p + i, p, span);
                store(a.out_m + i, m, span);
                store(a.out_v + i, v, span);
                if (a.serve)
                        store_as(a.serve_dtype, a.serve, i, p, span);
        });
}

static __global__ void adamw_kernel(const __grid_constant__ adamw_table t)
{
        each_tile(t.tiles, blockIdx.x, gridDim.x,
                  [&](unsigned piece, size_t tile) { update_tile(t.piece[piece], tile); });
}

static void table_add(adamw_table &t, const zero_cuda_adamw &a)
{
        /* NULL counts as aligned */
        bool aligned = all_aligned(a.p, a.m, a.v, a.out_p, a.out_m, a.out_v,
                                   static_cast<const float *>(a.serve));

        if (a.n == 0)
                return;
        for (unsigned j = 0; j < a.k; j++)
                aligned = aligned && all_aligned(static_cast<const char *>(a.grad[j]));
        t.piece[t.tiles.pieces] = { a, aligned };
        deal_add(t.tiles, tiles(a.n));
}

static bool is_valid(const zero_cuda_adamw &a)
{
        return (!a.serve || is_dtype(a.serve_dtype)) && is_dtype(a.from) &&
               is_dtype(a.wire) && a.k >= 1 && a.k <= ZERO_CUDA_GRADS;
}

int cuda_adamw(const zero_cuda_adamw *pieces, size_t n, void *stream)
{
        adamw_table t;
        int r = 0;

        for (size_t i = 0; i < n; i++)
                if (!is_valid(pieces[i]))
                        return -EINVAL;
        for (size_t i = 0; i < n && r == 0;) {
                t.tiles.pieces = 0;
                while (i < n && t.tiles.pieces < ZERO_CUDA_PIECES)
                        table_add(t, pieces[i++]);
                r = launch(adamw_kernel, deal_tiles(t.tiles), stream, t);
        }
        return r;
}
