/* The operations by the scalar host kernels, the truth; products by the fastest ones, whose bits
 * are the same and which take a tenth of the time. */
#include <stdlib.h>
#include <string.h>

#include "cuda/kernels.h"
#include "daemon/compute/device/host.h"
#include "proto/dtype.h"

static float *values_new(size_t n)
{
        float *values = malloc((n + 1) * sizeof *values);

        if (!values)
                abort();
        return values;
}

/* Elements of the records in which n behind the first `skip` lie. */
static size_t in_records(size_t skip, size_t n)
{
        return (skip + n + FORMAT_STEP - 1) / FORMAT_STEP * FORMAT_STEP;
}

/* Points *at to plane k in fp32: where the update leaves it, or in the values that this returns. */
static float *load_plane(const struct update_piece *u, uint32_t k, float **at)
{
        size_t n = in_records(u->skip, u->n);
        float *values = u->format[k] == FORMAT_FP32 ? NULL : values_new(n);

        *at = u->out[k];
        if (values)
                host_scalar_unpack(u->format[k], values, u->serve, u->in[k], n);
        if (update_out_format(u, k) == FORMAT_FP32)
                memmove(*at, values ? values + u->skip : u->in[k], u->n * sizeof *values);
        else
                *at = values + u->skip;
        return values;
}

static void update(const struct update_piece *u)
{
        uint32_t planes = update_planes(u->rule, &u->scalars);
        float *grad, *values[UPDATE_PLANES], *at[UPDATE_PLANES] = { NULL };

        if (u->n == 0)
                return;
        grad = values_new(u->n);
        host_scalar_ops.reduce(&(struct reduce_piece){ grad, u->n, u->k, u->grad, true }, 1,
                               u->wire, u->from, 0, NULL, NULL);
        for (uint32_t k = 0; k < planes; k++)
                values[k] = load_plane(u, k, &at[k]);
        host_scalar_ops.update(u->rule, &u->scalars, u->n, at, grad, NULL);
        if (u->serve && !format_is_split(u->format[0]))
                host_scalar_ops.serve(u->serve_dtype, u->serve, at[0], u->n);
        for (uint32_t k = 0; k < planes; k++) {
                if (update_out_format(u, k) != FORMAT_FP32)
                        host_scalar_pack(u->format[k], u->out[k], u->serve, values[k],
                                         in_records(u->skip, u->n), u->dither[k]);
                free(values[k]);
        }
        free(grad);
}

int cuda_pack(enum format format, void *dst, uint16_t *served, const float *src, size_t n,
              uint32_t dither, void *stream)
{
        host_scalar_pack(format, dst, served, src, n, dither);
        return 0;
}

int cuda_unpack(enum format format, enum zero_dtype to, void *dst, const uint16_t *served,
                const void *src, size_t skip, size_t n, void *stream)
{
        float *values = values_new(in_records(skip, n));

        if (format == FORMAT_FP32)
                memcpy(values + skip, (const float *)src + skip, n * sizeof *values);
        else
                host_scalar_unpack(format, values, served, src, in_records(skip, n));
        host_scalar_ops.cast(to, dst, ZERO_FP32, values + skip, n);
        free(values);
        return 0;
}

int cuda_update(const struct update_piece *pieces, size_t n, void *stream)
{
        for (size_t i = 0; i < n; i++)
                update(&pieces[i]);
        return 0;
}

int cuda_cast(enum zero_dtype to, void *dst, enum zero_dtype from, const void *src, size_t n,
              void *stream)
{
        host_scalar_ops.cast(to, dst, from, src, n);
        return 0;
}

int cuda_sum(enum zero_dtype to, void *dst, enum zero_dtype from, const void *const *src, size_t k,
             size_t n, void *stream)
{
        host_scalar_ops.sum(to, dst, from, src, k, n);
        return 0;
}

static void reduce_piece(const struct zero_cuda_reduce *r, struct reduce_piece p,
                         struct exact_sum *sum, bool *finite)
{
        float *own = p.acc ? NULL : malloc((p.n + 1) * sizeof *own);

        if (own)
                p.acc = own;
        if (!p.acc)
                abort();
        host_scalar_ops.reduce(&p, 1, r->wire, r->from, r->scale, r->norm ? sum : NULL, finite);
        free(own);
}

int cuda_reduce(const struct zero_cuda_reduce *reduce, void *stream)
{
        struct exact_sum sum;
        bool finite = true;

        exact_sum_init(&sum);
        for (size_t i = 0; i < reduce->n_pieces; i++)
                reduce_piece(reduce, reduce->pieces[i], &sum, &finite);
        for (int i = 0; reduce->norm && i < EXACT_SUM_BINS; i++)
                reduce->norm->bin[i] += sum.bin[i];
        if (!finite)
                reduce->norm->nonfinite = 1;
        return 0;
}

static struct matrix_view view_at(struct matrix_view m, size_t row, size_t col)
{
        m.x += m.transposed ? col * m.stride + row : row * m.stride + col;
        return m;
}

static size_t side(size_t left)
{
        return left < PRODUCT_SIDE ? left : PRODUCT_SIDE;
}

int cuda_product(const struct product *all, void *stream)
{
        for (size_t row = 0; row < all->rows; row += PRODUCT_SIDE)
                for (size_t col = 0; col < all->cols; col += PRODUCT_SIDE) {
                        struct product p = *all;

                        p.rows = side(all->rows - row);
                        p.cols = side(all->cols - col);
                        p.a = view_at(p.a, row, 0);
                        p.b = view_at(p.b, 0, col);
                        p.add += p.add ? row * p.stride + col : 0;
                        p.out += row * p.stride + col;
                        device_host(NULL)->product(&p, NULL, NULL);
                }
        return 0;
}

int cuda_divide(uint16_t *to, const uint16_t *from, float by, size_t n, void *stream)
{
        for (size_t i = 0; i < n; i++)
                to[i] = dtype_bf16_from_fp32(dtype_fp32_from_bf16(from[i]) / by);
        return 0;
}
