/*
 * Causal multi-head attention, one head of one sequence at a time.
 *
 * The matrix products read and write heads in place, by strides; nothing is transposed in memory.
 * The score matrix is computed in bands of ATTENTION_ROWS rows.  A band's columns end at its last
 * row, which saves nearly half of the work of a full matrix.
 */
#include "block.h"
#include "ops.h"

struct head {
        const struct block_shape *shape;
        size_t size;   /* of a head */
        size_t stride; /* of qkv */
        real scale;
        const real *q, *k, *v;
        real *probability;
};

static struct head head_at(const struct block_shape *shape, const struct block_state *state,
                           size_t sequence, size_t index)
{
        size_t width = shape->width, context = shape->context, size = width / shape->heads;
        const real *q = state->qkv + sequence * context * 3 * width + index * size;
        return (struct head){
                .shape = shape,
                .size = size,
                .stride = 3 * width,
                .scale = 1 / real_sqrt((real)size),
                .q = q,
                .k = q + width,
                .v = q + 2 * width,
                .probability =
                        state->probability + (sequence * shape->heads + index) * context * context,
        };
}

static size_t band_rows(const struct block_shape *shape, size_t first)
{
        size_t left = shape->context - first;
        return left < ATTENTION_ROWS ? left : ATTENTION_ROWS;
}

static void head_forward(const struct head *h, real *ret_mixed)
{
        size_t context = h->shape->context, width = h->shape->width;
        struct matrix keys = { h->k, h->stride, true }, values = { h->v, h->stride, false };
        for (size_t i = 0; i < context; i += ATTENTION_ROWS) {
                size_t rows = band_rows(h->shape, i), columns = i + rows;
                real *p = h->probability + i * context;
                gemm(rows, columns, h->size, h->scale,
                     (struct matrix){ h->q + i * h->stride, h->stride, false }, keys, 0, p,
                     context);
                softmax_forward(rows, columns, context, i + 1, p);
                gemm(rows, h->size, columns, 1, (struct matrix){ p, context, false }, values, 0,
                     ret_mixed + i * width, width);
        }
}

/* dq is overwritten; dk and dv are added to. */
static void head_backward(const struct head *h, const real *dmixed, real *scores, real *dq,
                          real *dk, real *dv)
{
        size_t context = h->shape->context, width = h->shape->width;
        struct matrix keys = { h->k, h->stride, false }, values = { h->v, h->stride, true };
        for (size_t i = 0; i < context; i += ATTENTION_ROWS) {
                size_t rows = band_rows(h->shape, i), columns = i + rows;
                const real *p = h->probability + i * context;
                struct matrix d = { dmixed + i * width, width, false };
                struct matrix q = { h->q + i * h->stride, h->stride, false };
                gemm(columns, h->size, rows, 1, (struct matrix){ p, context, true }, d, 1, dv,
                     h->stride);
                gemm(rows, columns, h->size, 1, d, values, 0, scores, context);
                softmax_backward(rows, columns, p, context, h->scale, scores, context);
                gemm(rows, h->size, columns, 1, (struct matrix){ scores, context, false }, keys, 0,
                     dq + i * h->stride, h->stride);
                gemm(columns, h->size, rows, 1, (struct matrix){ scores, context, true }, q, 1, dk,
                     h->stride);
        }
}

void attention_forward(const struct block_shape *shape, struct block_state *state)
{
        for (size_t s = 0; s < shape->sequences; s++) {
                for (size_t i = 0; i < shape->heads; i++) {
                        struct head h = head_at(shape, state, s, i);
                        head_forward(&h,
                                     state->mixed + s * shape->context * shape->width + i * h.size);
                }
        }
}

void attention_backward(const struct block_shape *shape, const struct block_state *state,
                        const real *dmixed, real *scores, real *ret_dqkv)
{
        size_t width = shape->width;
        memset(ret_dqkv, 0, block_rows(shape) * 3 * width * sizeof(*ret_dqkv));
        for (size_t s = 0; s < shape->sequences; s++) {
                for (size_t i = 0; i < shape->heads; i++) {
                        struct head h = head_at(shape, state, s, i);
                        real *dq = ret_dqkv + s * shape->context * 3 * width + i * h.size;
                        head_backward(&h, dmixed + s * shape->context * width + i * h.size, scores,
                                      dq, dq + width, dq + 2 * width);
                }
        }
}
