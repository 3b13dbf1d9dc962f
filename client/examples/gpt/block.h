/*
 * One transformer block, pre-LayerNorm: x += attention(ln_1(x)); x += mlp(ln_2(x)).
 *
 * Activations are matrices of `rows` = sequences x context rows.  What the backward needs is in
 * struct block_state.
 */
#pragma once

#include "real.h"
#include "spec.h"

struct block_shape {
        size_t sequences, context, heads, width;
};

static inline size_t block_rows(const struct block_shape *shape)
{
        return shape->sequences * shape->context;
}

struct block_state {
        real *ln1, *mean1, *rstd1;
        real *qkv;         /* [rows][3 width]: query, key, value of all heads side by side */
        real *probability; /* [sequences][heads][context][context]; above the diagonal undefined */
        real *mixed;       /* [rows][width], the heads' outputs */
        real *middle;      /* the stream after attention */
        real *ln2, *mean2, *rstd2;
        real *up, *active; /* [rows][4 width] before and after GELU */
};

/* Working memory that blocks share. */
struct block_scratch {
        real *wide;   /* [rows][4 width] */
        real *narrow; /* [rows][width] */
        real *scores; /* [ATTENTION_ROWS][context] */
};

/* Rows of the score matrix computed at once: whole blocks above the diagonal are skipped. */
enum { ATTENTION_ROWS = 64 };

/* A block's tensors, by enum gpt_block_tensor. */
struct block_params {
        const real *at[GPT_BLOCK_TENSORS];
};
struct block_grads {
        real *at[GPT_BLOCK_TENSORS];
};

void block_forward(const struct block_shape *shape, const struct block_params *params,
                   const real *x, struct block_state *state, real *ret_out);
/* d: gradient of the output in, of x out.  Adds to the gradients of the parameters. */
void block_backward(const struct block_shape *shape, const struct block_params *params,
                    const real *x, const struct block_state *state, struct block_scratch *scratch,
                    struct block_grads *grads, real *d);

/* Causal attention over state->qkv into state->mixed, keeping state->probability. */
void attention_forward(const struct block_shape *shape, struct block_state *state);
/* dmixed in, ret_dqkv out. */
void attention_backward(const struct block_shape *shape, const struct block_state *state,
                        const real *dmixed, real *scores, real *ret_dqkv);
