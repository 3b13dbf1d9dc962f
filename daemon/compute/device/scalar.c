/*
 * The scalar truth: every other implementation, on the host or a GPU, must agree with it to the
 * bit.  Written to be read, not to be fast.
 */
#define RULE_FUNCTION static
#include "daemon/compute/device/host.h"

#include <assert.h>
#include <string.h>

typedef void rule_fn(const struct update_scalars *scalars, float g, float *x);

static void scalar_update(enum update_rule rule, const struct update_scalars *s, size_t n,
                          float *const *planes, const float *grad, const struct update_undo *undo)
{
        static rule_fn *const rules[UPDATE_RULES] = {
#define X(rule, function, planes) [UPDATE_##rule] = function,
                UPDATE_RULE_MAP(X)
#undef X
        };
        uint32_t n_planes = update_planes(rule, s);
        bool has_ema = update_has_ema(s);

        for (size_t i = 0; i < n; i++) {
                float x[UPDATE_PLANES];

                for (uint32_t k = 0; k < n_planes; k++)
                        x[k] = planes[k][i];
                for (uint32_t k = 0; undo && k < n_planes; k++)
                        undo->old[k][i] = x[k];
                if (undo) /* before the element changes */
                        undo_raise(undo, i + 1);
                rules[rule](s, grad[i] * s->grad_scale, x);
                if (has_ema)
                        x[n_planes - 1] += (x[0] - x[n_planes - 1]) * s->ema_rate;
                for (uint32_t k = 0; k < n_planes; k++)
                        planes[k][i] = x[k];
        }
}

/* ---- the rest ---- */

static void scalar_copy(void *dst, const void *src, size_t n)
{
        if (n)
                memcpy(dst, src, n);
}

static void scalar_zero(void *dst, size_t n)
{
        if (n)
                memset(dst, 0, n);
}

static void scalar_cast(enum zero_dtype to, void *dst, enum zero_dtype from, const void *src,
                        size_t n)
{
        assert(to == from || to == ZERO_FP32 || from == ZERO_FP32);
        if (to == from) {
                scalar_copy(dst, src, dtype_bytes(to, n));
                return;
        }
        for (size_t i = 0; i < n; i++)
                dtype_store(to, dst, i, dtype_load(from, src, i));
}

static void scalar_serve(enum zero_dtype to, void *dst, const float *src, size_t n)
{
        scalar_cast(to, dst, ZERO_FP32, src, n);
}

static void scalar_accumulate(float *acc, enum zero_dtype from, const void *src, size_t n,
                              bool first)
{
        for (size_t i = 0; i < n; i++) {
                float x = dtype_load(from, src, i);

                acc[i] = first ? x : acc[i] + x;
        }
}

static void scalar_sum(enum zero_dtype to, void *dst, enum zero_dtype from, const void *const *src,
                       size_t k, size_t n)
{
        assert(k >= 1);
        for (size_t i = 0; i < n; i++) {
                float x = dtype_load(from, src[0], i);

                for (size_t j = 1; j < k; j++)
                        x += dtype_load(from, src[j], i);
                dtype_store(to, dst, i, x);
        }
}

static double block_squares(const float *x, size_t n)
{
        double lane[NORM_LANES] = { 0 };

        for (size_t i = 0; i < n; i++)
                lane[i % NORM_LANES] += (double)x[i] * (double)x[i];
        for (int width = NORM_LANES / 2; width; width /= 2)
                for (int l = 0; l < width; l++)
                        lane[l] += lane[l + width];
        return lane[0];
}

static void scalar_update_packed(const struct packed_update *u)
{
        host_update_packed(&host_scalar_ops, u);
}

static void scalar_norm(const float *x, size_t n, double scale, struct exact_sum *acc, bool *finite)
{
        for (size_t i = 0; i < n; i += NORM_BLOCK) {
                size_t left = n - i;

                norm_add_block(block_squares(x + i, left < NORM_BLOCK ? left : NORM_BLOCK), scale,
                               acc, finite);
        }
}

/* x as it crosses the wire: rounded once. */
static float rounded(enum zero_dtype wire, float x)
{
        uint64_t crossing = 0;

        dtype_store(wire, &crossing, 0, x);
        return dtype_load(wire, &crossing, 0);
}

static float sum_of(const struct reduce_piece *p, enum zero_dtype from, size_t i)
{
        float x = dtype_load(from, p->src[0], i);

        for (size_t j = 1; j < p->k; j++)
                x += dtype_load(from, p->src[j], i);
        return x;
}

static void scalar_reduce(const struct reduce_piece *pieces, size_t n_pieces, enum zero_dtype wire,
                          enum zero_dtype from, double scale, struct exact_sum *norm, bool *finite)
{
        assert(dtype_valid(wire));
        for (const struct reduce_piece *p = pieces; p < pieces + n_pieces; p++) {
                for (size_t i = 0; p->k && i < p->n; i++) {
                        float x = rounded(wire, sum_of(p, from, i));

                        p->acc[i] = p->first ? x : p->acc[i] + x;
                }
                if (norm)
                        scalar_norm(p->acc, p->n, scale, norm, finite);
        }
}

static float element(const struct matrix_view *m, size_t row, size_t col)
{
        return dtype_fp32_from_bf16(
                m->x[m->transposed ? col * m->stride + row : row * m->stride + col]);
}

static float product_sum(const struct product *p, size_t i, size_t j, float sum)
{
        for (size_t k = 0; k < p->depth; k++)
                sum = fmaf(element(&p->a, i, k), element(&p->b, k, j), sum);
        return sum;
}

static float product_element(const struct product *p, size_t i, size_t j, float sum)
{
        if (!p->add)
                return sum;
        return p->alpha * sum + p->beta * dtype_fp32_from_bf16(p->add[i * p->stride + j]);
}

static void scalar_product(const struct product *p, const float *from, float *to)
{
        assert(p->rows <= PRODUCT_SIDE && p->cols <= PRODUCT_SIDE);
        for (size_t i = 0; i < p->rows; i++)
                for (size_t j = 0; j < p->cols; j++) {
                        size_t at = i * p->stride + j;
                        float sum = product_sum(p, i, j, from ? from[at] : 0);

                        if (to)
                                to[at] = sum;
                        else
                                p->out[at] = dtype_bf16_from_fp32(product_element(p, i, j, sum));
                }
}

const struct device_ops host_scalar_ops = {
        .name = "scalar",
        .update = scalar_update,
        .cast = scalar_cast,
        .serve = scalar_serve,
        .accumulate = scalar_accumulate,
        .sum = scalar_sum,
        .norm = scalar_norm,
        .reduce = scalar_reduce,
        .update_packed = scalar_update_packed,
        .pack = host_scalar_pack,
        .unpack = host_scalar_unpack,
        .zero = scalar_zero,
        .copy = scalar_copy,
        .product = scalar_product,
};
