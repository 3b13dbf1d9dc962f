/*
 * An update in one pass: reads the rule's planes and the gradient once, writes the planes and the
 * serve copy once.  The order of operations is that of the scalar truth.  Built without contraction
 * and with correctly rounded division and square root.
 */
#include "cuda/machine.cuh"

#define RULE_FUNCTION static __device__ inline
#include "cuda/kernel.cuh"

/* Master and moments. */
template <update_rule RULE> static constexpr unsigned OWN = 0;
#define X(rule, function, planes) template <> constexpr unsigned OWN<UPDATE_##rule> = planes;
UPDATE_RULE_MAP(X)
#undef X

template <update_rule RULE, bool EMA>
static __device__ inline void update_element(const update_scalars &s, float grad,
                                             float (&x)[UPDATE_PLANES])
{
        constexpr unsigned e = OWN<RULE>;
        float g = grad * s.grad_scale;

#define X(rule, function, planes)            \
        if constexpr (RULE == UPDATE_##rule) \
                function(&s, g, x);
        UPDATE_RULE_MAP(X)
#undef X
        if constexpr (EMA)
                x[e] += (x[0] - x[e]) * s.ema_rate;
}

/* The sum of the contributions, as reduce() would write it to an accumulator. */
template <typename S>
static __device__ inline void load_gradient(const update_piece &a, float (&grad)[VEC], size_t i,
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

struct table_piece {
        update_piece a; /* wire: what the sum is rounded to */
        bool aligned;   /* all of its addresses */
};

struct update_table {
        deal tiles;
        table_piece piece[ZERO_CUDA_PIECES];
};

template <update_rule RULE, bool EMA>
static __device__ inline void update_tile(const table_piece &piece, size_t tile)
{
        constexpr unsigned planes = OWN<RULE> + EMA;
        const update_piece &a = piece.a;

        with_tile(tile, a.n, piece.aligned, [&](auto span, size_t i) {
                float values[planes][VEC], grad[VEC];

#pragma unroll
                for (unsigned k = 0; k < planes; k++)
                        load(values[k], a.in[k] + i, span);
                load_gradient(a, grad, i, span);
#pragma unroll
                for (unsigned e = 0; e < VEC; e++) {
                        float x[UPDATE_PLANES] = { 0 };

#pragma unroll
                        for (unsigned k = 0; k < planes; k++)
                                x[k] = values[k][e];
                        update_element<RULE, EMA>(a.scalars, grad[e], x);
#pragma unroll
                        for (unsigned k = 0; k < planes; k++)
                                values[k][e] = x[k];
                }
#pragma unroll
                for (unsigned k = 0; k < planes; k++)
                        store(a.out[k] + i, values[k], span);
                if (a.serve)
                        store_as(a.serve_dtype, a.serve, i, values[0], span);
        });
}

/* Thread blocks of a multiprocessor: left to itself nvcc takes registers for one less. */
template <unsigned PLANES> static constexpr unsigned RESIDENT = PLANES > 3 ? 3 : 4;

template <update_rule RULE, bool EMA>
static __global__ void __launch_bounds__(THREADS, RESIDENT<OWN<RULE> + EMA>)
        update_kernel(const __grid_constant__ update_table t)
{
        each_tile(t.tiles, blockIdx.x, gridDim.x, [&](unsigned piece, size_t tile) {
                update_tile<RULE, EMA>(t.piece[piece], tile);
        });
}

static void table_add(update_table &t, const update_piece &a)
{
        /* NULL counts as aligned */
        bool aligned = all_aligned(static_cast<const float *>(a.serve));

        for (unsigned k = 0; k < update_planes(a.rule, &a.scalars); k++)
                aligned = aligned && all_aligned(a.in[k], a.out[k]);
        if (a.n == 0)
                return;
        for (unsigned j = 0; j < a.k; j++)
                aligned = aligned && all_aligned(static_cast<const char *>(a.grad[j]));
        t.piece[t.tiles.pieces] = { a, aligned };
        t.piece[t.tiles.pieces].a.wire = rounding(a.wire, a.from, a.k);
        deal_add(t.tiles, tiles(a.n));
}

static bool is_valid(const update_piece &a, const update_piece &first)
{
        return a.rule == first.rule && rule_planes(a.rule) > 0 &&
               update_has_ema(&a.scalars) == update_has_ema(&first.scalars) &&
               (!a.serve || is_dtype(a.serve_dtype)) && is_dtype(a.from) && is_dtype(a.wire) &&
               a.k >= 1 && a.k <= UPDATE_SOURCES;
}

template <update_rule RULE> static int launch_rule(bool ema, const update_table &t, void *stream)
{
        size_t n = deal_tiles(t.tiles);

        return ema ? launch(update_kernel<RULE, true>, n, stream, t)
                   : launch(update_kernel<RULE, false>, n, stream, t);
}

static int launch_update(const update_piece &first, const update_table &t, void *stream)
{
        switch (first.rule) {
#define X(rule, function, planes) \
        case UPDATE_##rule:       \
                return launch_rule<UPDATE_##rule>(update_has_ema(&first.scalars), t, stream);
                UPDATE_RULE_MAP(X)
#undef X
        case UPDATE_RULES:
                break;
        }
        return -EINVAL;
}

int cuda_update(const update_piece *pieces, size_t n, void *stream)
{
        update_table t;
        int r = 0;

        for (size_t i = 0; i < n; i++)
                if (!is_valid(pieces[i], pieces[0]))
                        return -EINVAL;
        for (size_t i = 0; i < n && r == 0;) {
                t.tiles.pieces = 0;
                while (i < n && t.tiles.pieces < ZERO_CUDA_PIECES)
                        table_add(t, pieces[i++]);
                r = launch_update(pieces[0], t, stream);
        }
        return r;
}
