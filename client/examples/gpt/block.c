/*
 * A block's forward and backward.  Matrices of parameters are [in][out].
 */
#include "block.h"

#include "ops.h"

/* out = base + x * weight + bias */
static void linear_forward(size_t rows, size_t in, size_t out, const real *x, const real *weight,
                           const real *bias, const real *base, real *ret_out)
{
        broadcast_bias(rows, out, base, bias, ret_out);
        gemm(rows, out, in, 1, (struct matrix){ x, in, false },
             (struct matrix){ weight, out, false }, 1, ret_out, out);
}

/* dx is overwritten; dweight and dbias are added to. */
static void linear_backward(size_t rows, size_t in, size_t out, const real *x, const real *weight,
                            const real *d, real *dweight, real *dbias, real *ret_dx)
{
        bias_backward(rows, out, d, dbias);
        gemm(in, out, rows, 1, (struct matrix){ x, in, true }, (struct matrix){ d, out, false }, 1,
             dweight, out);
        gemm(rows, in, out, 1, (struct matrix){ d, out, false },
             (struct matrix){ weight, out, true }, 0, ret_dx, in);
}

void block_forward(const struct block_shape *shape, const struct block_params *params,
                   const real *x, struct block_state *state, real *ret_out)
{
        size_t rows = block_rows(shape), width = shape->width;
        const real *const *p = params->at;
        layernorm_forward(rows, width, x, p[GPT_LN1_W], p[GPT_LN1_B], state->ln1, state->mean1,
                          state->rstd1);
        linear_forward(rows, width, 3 * width, state->ln1, p[GPT_QKV_W], p[GPT_QKV_B], NULL,
                       state->qkv);
        attention_forward(shape, state);
        linear_forward(rows, width, width, state->mixed, p[GPT_MIX_W], p[GPT_MIX_B], x,
                       state->middle);
        layernorm_forward(rows, width, state->middle, p[GPT_LN2_W], p[GPT_LN2_B], state->ln2,
                          state->mean2, state->rstd2);
        linear_forward(rows, width, 4 * width, state->ln2, p[GPT_UP_W], p[GPT_UP_B], NULL,
                       state->up);
        gelu_forward(rows * 4 * width, state->up, state->active);
        linear_forward(rows, 4 * width, width, state->active, p[GPT_DOWN_W], p[GPT_DOWN_B],
                       state->middle, ret_out);
}

void block_backward(const struct block_shape *shape, const struct block_params *params,
                    const real *x, const struct block_state *state, struct block_scratch *scratch,
                    struct block_grads *grads, real *d)
{
        size_t rows = block_rows(shape), width = shape->width;
        const real *const *p = params->at;
        real *const *g = grads->at;
        linear_backward(rows, 4 * width, width, state->active, p[GPT_DOWN_W], d, g[GPT_DOWN_W],
                        g[GPT_DOWN_B], scratch->wide);
        gelu_backward(rows * 4 * width, state->up, scratch->wide);
        linear_backward(rows, width, 4 * width, state->ln2, p[GPT_UP_W], scratch->wide, g[GPT_UP_W],
                        g[GPT_UP_B], scratch->narrow);
        layernorm_backward(rows, width, scratch->narrow, state->middle, p[GPT_LN2_W], state->mean2,
                           state->rstd2, d, g[GPT_LN2_W], g[GPT_LN2_B]);

        linear_backward(rows, width, width, state->mixed, p[GPT_MIX_W], d, g[GPT_MIX_W],
                        g[GPT_MIX_B], scratch->narrow);
        attention_backward(shape, state, scratch->narrow, scratch->scores, scratch->wide);
        linear_backward(rows, width, 3 * width, state->ln1, p[GPT_QKV_W], scratch->wide,
                        g[GPT_QKV_W], g[GPT_QKV_B], scratch->narrow);
        layernorm_backward(rows, width, scratch->narrow, x, p[GPT_LN1_W], state->mean1,
                           state->rstd1, d, g[GPT_LN1_W], g[GPT_LN1_B]);
}
