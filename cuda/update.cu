/*
 * An update in one pass: reads the rule's planes and the gradient once, writes the planes and the
 * serve copy once.  The order of operations is that of the scalar truth.  Built without contraction
 * and with correctly rounded division and square root.
 */
#include "cuda/machine.cuh"

#define RULE_FUNCTION static __device__ inline
#include "cuda/formats.cuh"

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
        bool packed; /* some piece has planes that are not in fp32 */
        table_piece piece[ZERO_CUDA_PIECES];
};

template <update_rule RULE, bool EMA, unsigned PLANES, typename S>
static __device__ inline void update_elements(const update_scalars &s, float (&values)[PLANES][VEC],
                                              const float (&grad)[VEC], S span)
{
#pragma unroll
        for (unsigned e = 0; e < VEC; e++) {
                float x[UPDATE_PLANES] = { 0 };

                if (!is_there(span, e))
                        continue;
#pragma unroll
                for (unsigned k = 0; k < PLANES; k++)
                        x[k] = values[k][e];
                update_element<RULE, EMA>(s, grad[e], x);
#pragma unroll
                for (unsigned k = 0; k < PLANES; k++)
                        values[k][e] = x[k];
        }
}

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
                update_elements<RULE, EMA>(a.scalars, values, grad, span);
#pragma unroll
                for (unsigned k = 0; k < planes; k++)
                        store(a.out[k] + i, values[k], span);
                if (a.serve)
                        store_as(a.serve_dtype, a.serve, i, values[0], span);
        });
}

/* The same for planes of any formats.  What a record has behind the piece is packed with it. */
template <update_rule RULE, bool EMA>
static __device__ inline void update_records(const table_piece &piece, size_t tile)
{
        constexpr unsigned planes = OWN<RULE> + EMA;
        const update_piece &a = piece.a;

        with_records(tile, a.n, piece.aligned, [&](auto span, auto records, size_t i) {
                float values[planes][VEC], grad[VEC];

                if (a.skip > 0)
                        records = span;
#pragma unroll
                for (unsigned k = 0; k < planes; k++)
                        if (a.format[k] == FORMAT_FP32)
                                load(values[k], a.in[k] + i, span);
                        else
                                load_format(a.format[k], values[k], a.in[k], a.serve, i + a.skip,
                                            records);
                load_gradient(a, grad, i, span);
                update_elements<RULE, EMA>(a.scalars, values, grad, span);
#pragma unroll
                for (unsigned k = 0; k < planes; k++)
                        if (update_out_format(&a, k) == FORMAT_FP32)
                                store(a.out[k] + i, values[k], span);
                        else
                                store_format(a.format[k], a.out[k], a.serve, i + a.skip, values[k],
                                             a.dither[k], span, records);
                if (a.serve && !format_is_split(a.format[0]))
                        store_as(a.serve_dtype, a.serve, i, values[0], span);
        });
}

/* Thread blocks of a multiprocessor: left to itself nvcc takes registers for one less. */
template <unsigned PLANES, bool PACKED>
static constexpr unsigned RESIDENT = PACKED || PLANES > 3 ? 3 : 4;

template <update_rule RULE, bool EMA, bool PACKED>
static __global__ void __launch_bounds__(THREADS, RESIDENT<OWN<RULE> + EMA, PACKED>)
        update_kernel(const __grid_constant__ update_table t)
{
        each_tile(t.tiles, blockIdx.x, gridDim.x, [&](unsigned piece, size_t tile) {
                if constexpr (PACKED)
                        update_records<RULE, EMA>(t.piece[piece], tile);
                else
                        update_tile<RULE, EMA>(t.piece[piece], tile);
        });
}

static bool is_packed(const update_piece &a)
{
        for (unsigned k = 0; k < update_planes(a.rule, &a.scalars); k++)
                if (a.format[k] != FORMAT_FP32)
                        return true;
        return false;
}

static void table_add(update_table &t, const update_piece &a)
{
        /* NULL counts as aligned */
        bool aligned = all_aligned(static_cast<const float *>(a.serve)) && a.skip == 0;

        for (unsigned k = 0; k < update_planes(a.rule, &a.scalars); k++)
                aligned = aligned && format_aligned(a.format[k], a.in[k]) &&
                          format_aligned(update_out_format(&a, k), a.out[k]);
        if (a.n == 0)
                return;
        for (unsigned j = 0; j < a.k; j++)
                aligned = aligned && all_aligned(static_cast<const char *>(a.grad[j]));
        t.packed = t.packed || is_packed(a);
        t.piece[t.tiles.pieces] = { a, aligned };
        t.piece[t.tiles.pieces].a.wire = rounding(a.wire, a.from, a.k);
        deal_add(t.tiles, tiles(a.n));
}

static bool formats_are_valid(const update_piece &a)
{
        for (unsigned k = 0; k < update_planes(a.rule, &a.scalars); k++) {
                format f = a.format[k];

                if (!is_format(f) || (format_is_split(f) && (k > 0 || !a.serve)))
                        return false;
                if ((f == FORMAT_8BIT || f == FORMAT_8BIT_SQUARE) && a.in[k] == a.out[k] && a.skip)
                        return false;
        }
        return true;
}

static bool is_valid(const update_piece &a, const update_piece &first)
{
        return a.rule == first.rule && rule_planes(a.rule) > 0 &&
               update_has_ema(&a.scalars) == update_has_ema(&first.scalars) &&
               (!a.serve || is_dtype(a.serve_dtype)) && is_dtype(a.from) && is_dtype(a.wire) &&
               a.k >= 1 && a.k <= UPDATE_SOURCES && formats_are_valid(a);
}

template <update_rule RULE> static int launch_rule(bool ema, const update_table &t, void *stream)
{
        size_t n = deal_tiles(t.tiles);

        if (t.packed)
                return ema ? launch(update_kernel<RULE, true, true>, n, stream, t)
                           : launch(update_kernel<RULE, false, true>, n, stream, t);
        return ema ? launch(update_kernel<RULE, true, false>, n, stream, t)
                   : launch(update_kernel<RULE, false, false>, n, stream, t);
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
                t.packed = false;
                while (i < n && t.tiles.pieces < ZERO_CUDA_PIECES)
                        table_add(t, pieces[i++]);
                r = launch_update(pieces[0], t, stream);
        }
        return r;
}
