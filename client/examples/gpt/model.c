/*
 * The walk over the groups: forward 0 to n, backward n to 0.
 *
 * Invariants: a group's parameters are touched only between acquire and release; the last group is
 * acquired once for both directions, since its backward follows at once; the embeddings'
 * backward needs no parameters and acquires none.
 */
#include "model.h"

#include <errno.h>
#include <stdlib.h>

#include "block.h"
#include "ops.h"
#include "proto/cleanup.h"

struct gpt {
        const struct gpt_spec *spec;
        uint32_t sequences; /* the most that fit */
        struct block_shape shape;
        real *memory;
        struct block_state *states; /* by layer */
        real **streams;             /* [layers + 1]: the input of layer i; last, the output */
        real *lnf, *lnf_mean, *lnf_rstd;
        real *logits;
        real *d; /* gradient of the stream */
        struct block_scratch scratch;
};

struct arena {
        real *base; /* NULL: only count */
        size_t used;
};

static real *arena_take(struct arena *arena, size_t n)
{
        size_t at = arena->used;
        arena->used += (n + 15) / 16 * 16;
        return arena->base ? arena->base + at : NULL;
}

static void place_block(struct gpt *gpt, struct arena *arena, struct block_state *state)
{
        size_t width = gpt->spec->config.width, context = gpt->spec->config.context;
        size_t rows = gpt->sequences * context, heads = gpt->spec->config.heads;
        state->ln1 = arena_take(arena, rows * width);
        state->mean1 = arena_take(arena, rows);
        state->rstd1 = arena_take(arena, rows);
        state->qkv = arena_take(arena, rows * 3 * width);
        state->probability = arena_take(arena, rows * heads * context);
        state->mixed = arena_take(arena, rows * width);
        state->middle = arena_take(arena, rows * width);
        state->ln2 = arena_take(arena, rows * width);
        state->mean2 = arena_take(arena, rows);
        state->rstd2 = arena_take(arena, rows);
        state->up = arena_take(arena, rows * 4 * width);
        state->active = arena_take(arena, rows * 4 * width);
}

static void place(struct gpt *gpt, struct arena *arena)
{
        size_t width = gpt->spec->config.width, context = gpt->spec->config.context;
        size_t rows = gpt->sequences * context;
        for (uint32_t i = 0; i < gpt->spec->config.layers; i++) {
                gpt->streams[i] = arena_take(arena, rows * width);
                place_block(gpt, arena, &gpt->states[i]);
        }
        gpt->streams[gpt->spec->config.layers] = arena_take(arena, rows * width);
        gpt->lnf = arena_take(arena, rows * width);
        gpt->lnf_mean = arena_take(arena, rows);
        gpt->lnf_rstd = arena_take(arena, rows);
        gpt->logits = arena_take(arena, rows * GPT_VOCABULARY);
        gpt->d = arena_take(arena, rows * width);
        gpt->scratch.wide = arena_take(arena, rows * 4 * width);
        gpt->scratch.narrow = arena_take(arena, rows * width);
        gpt->scratch.scores = arena_take(arena, ATTENTION_ROWS * context);
}

DEFINE_CLEANUP(struct gpt *, gpt_free)

int gpt_new(const struct gpt_spec *spec, uint32_t sequences, struct gpt **ret_gpt)
{
        CLEANUP(cleanup_gpt_free) struct gpt *gpt = calloc(1, sizeof(*gpt));
        if (!gpt)
                return -ENOMEM;
        gpt->spec = spec;
        gpt->sequences = sequences;
        gpt->states = calloc(spec->config.layers, sizeof(*gpt->states));
        gpt->streams = calloc(spec->config.layers + 1, sizeof(*gpt->streams));
        if (!gpt->states || !gpt->streams)
                return -ENOMEM;
        struct arena arena = { 0 };
        place(gpt, &arena);
        gpt->memory = aligned_alloc(64, arena.used * sizeof(real));
        if (!gpt->memory)
                return -ENOMEM;
        arena = (struct arena){ .base = gpt->memory };
        place(gpt, &arena);
        *ret_gpt = STEAL(gpt);
        return 0;
}

void gpt_free(struct gpt *gpt)
{
        if (!gpt)
                return;
        free(gpt->memory);
        free(gpt->streams);
        free(gpt->states);
        free(gpt);
}

const real *gpt_logits(const struct gpt *gpt)
{
        return gpt->logits;
}

static uint32_t final_group(const struct gpt *gpt)
{
        return gpt->spec->n_groups - 1;
}

static uint64_t offset_of(const struct gpt *gpt, uint32_t group, uint32_t index)
{
        return gpt_spec_offset(gpt->spec, group, index);
}

static struct block_params block_params_of(const struct gpt *gpt, uint32_t group,
                                           const real *params)
{
        struct block_params p;
        for (uint32_t i = 0; i < GPT_BLOCK_TENSORS; i++)
                p.at[i] = params + offset_of(gpt, group, i);
        return p;
}

static struct block_grads block_grads_of(const struct gpt *gpt, uint32_t group, real *grads)
{
        struct block_grads g;
        for (uint32_t i = 0; i < GPT_BLOCK_TENSORS; i++)
                g.at[i] = grads + offset_of(gpt, group, i);
        return g;
}

static int embed(struct gpt *gpt, struct seam *seam, const struct gpt_batch *batch)
{
        const real *params;
        int r = seam->ops->acquire(seam, 0, 1, &params);
        if (r)
                return r;
        size_t width = gpt->shape.width, rows = block_rows(&gpt->shape);
        const real *wte = params + offset_of(gpt, 0, GPT_WTE);
        const real *wpe = params + offset_of(gpt, 0, GPT_WPE);
        for (size_t i = 0; i < rows; i++)
                broadcast_bias(1, width, wte + batch->inputs[i] * width,
                               wpe + i % gpt->shape.context * width, gpt->streams[0] + i * width);
        return seam->ops->release(seam, 0);
}

static int embed_backward(struct gpt *gpt, struct seam *seam, const struct gpt_batch *batch,
                          bool last)
{
        real *grads;
        int r = seam->ops->grad(seam, 0, &grads);
        if (r)
                return r;
        size_t width = gpt->shape.width, rows = block_rows(&gpt->shape);
        real *wte = grads + offset_of(gpt, 0, GPT_WTE), *wpe = grads + offset_of(gpt, 0, GPT_WPE);
        for (size_t i = 0; i < rows; i++) {
                bias_backward(1, width, gpt->d + i * width, wte + batch->inputs[i] * width);
                bias_backward(1, width, gpt->d + i * width, wpe + i % gpt->shape.context * width);
        }
        return seam->ops->push(seam, 0, last);
}

static int layer(struct gpt *gpt, struct seam *seam, uint32_t index)
{
        uint32_t group = index + 1;
        const real *params;
        int r = seam->ops->acquire(seam, group, group + 1, &params);
        if (r)
                return r;
        struct block_params p = block_params_of(gpt, group, params);
        block_forward(&gpt->shape, &p, gpt->streams[index], &gpt->states[index],
                      gpt->streams[index + 1]);
        return seam->ops->release(seam, group);
}

static int layer_backward(struct gpt *gpt, struct seam *seam, uint32_t index, bool last)
{
        uint32_t group = index + 1;
        const real *params;
        real *grads;
        int r = seam->ops->acquire(seam, group, index ? group - 1 : GPT_NO_GROUP, &params);
        if (!r)
                r = seam->ops->grad(seam, group, &grads);
        if (r)
                return r;
        struct block_params p = block_params_of(gpt, group, params);
        struct block_grads g = block_grads_of(gpt, group, grads);
        block_backward(&gpt->shape, &p, gpt->streams[index], &gpt->states[index], &gpt->scratch, &g,
                       gpt->d);
        r = seam->ops->release(seam, group);
        return r ? r : seam->ops->push(seam, group, last);
}

/* The logits, and the mean loss. */
static double head(struct gpt *gpt, const struct gpt_batch *batch, const real *params)
{
        size_t width = gpt->shape.width, rows = block_rows(&gpt->shape);
        uint32_t group = final_group(gpt);
        layernorm_forward(rows, width, gpt->streams[gpt->spec->config.layers],
                          params + offset_of(gpt, group, GPT_LNF_W),
                          params + offset_of(gpt, group, GPT_LNF_B), gpt->lnf, gpt->lnf_mean,
                          gpt->lnf_rstd);
        gemm(rows, GPT_VOCABULARY, width, 1, (struct matrix){ gpt->lnf, width, false },
             (struct matrix){ params + offset_of(gpt, group, GPT_HEAD_W), GPT_VOCABULARY, false },
             0, gpt->logits, GPT_VOCABULARY);
        return cross_entropy(rows, GPT_VOCABULARY, gpt->logits, batch->targets) / (double)rows;
}

static void head_backward(struct gpt *gpt, const struct gpt_batch *batch, double scale,
                          const real *params, real *grads)
{
        size_t width = gpt->shape.width, rows = block_rows(&gpt->shape);
        uint32_t group = final_group(gpt);
        cross_entropy_backward(rows, GPT_VOCABULARY, batch->targets, (real)(scale / (double)rows),
                               gpt->logits);
        struct matrix d = { gpt->logits, GPT_VOCABULARY, false };
        gemm(width, GPT_VOCABULARY, rows, 1, (struct matrix){ gpt->lnf, width, true }, d, 1,
             grads + offset_of(gpt, group, GPT_HEAD_W), GPT_VOCABULARY);
        gemm(rows, width, GPT_VOCABULARY, 1, d,
             (struct matrix){ params + offset_of(gpt, group, GPT_HEAD_W), GPT_VOCABULARY, true }, 0,
             gpt->scratch.narrow, width);
        memset(gpt->d, 0, rows * width * sizeof(*gpt->d));
        layernorm_backward(rows, width, gpt->scratch.narrow, gpt->streams[gpt->spec->config.layers],
                           params + offset_of(gpt, group, GPT_LNF_W), gpt->lnf_mean, gpt->lnf_rstd,
                           gpt->d, grads + offset_of(gpt, group, GPT_LNF_W),
                           grads + offset_of(gpt, group, GPT_LNF_B));
}

/* Everything before the final group. */
static int forward(struct gpt *gpt, struct seam *seam, const struct gpt_batch *batch)
{
        const struct gpt_config *config = &gpt->spec->config;
        gpt->shape = (struct block_shape){ batch->sequences, config->context, config->heads,
                                           config->width };
        int r = embed(gpt, seam, batch);
        for (uint32_t i = 0; !r && i < config->layers; i++)
                r = layer(gpt, seam, i);
        return r;
}

static int backward(struct gpt *gpt, struct seam *seam, const struct gpt_batch *batch, bool last)
{
        int r = 0;
        for (uint32_t i = gpt->spec->config.layers; !r && i > 0; i--)
                r = layer_backward(gpt, seam, i - 1, last);
        return r ? r : embed_backward(gpt, seam, batch, last);
}

int gpt_evaluate(struct gpt *gpt, struct seam *seam, const struct gpt_batch *batch,
                 double *ret_loss)
{
        const real *params;
        int r = forward(gpt, seam, batch);
        if (!r)
                r = seam->ops->acquire(seam, final_group(gpt), GPT_NO_GROUP, &params);
        if (r)
                return r;
        double loss = head(gpt, batch, params);
        r = seam->ops->release(seam, final_group(gpt));
        if (!r)
                *ret_loss = loss;
        return r;
}

int gpt_train(struct gpt *gpt, struct seam *seam, const struct gpt_batch *batch, double scale,
              bool last, double *ret_loss)
{
        uint32_t group = final_group(gpt);
        const real *params;
        real *grads;
        int r = forward(gpt, seam, batch);
        if (!r)
                r = seam->ops->acquire(seam, group, group - 1, &params);
        if (!r)
                r = seam->ops->grad(seam, group, &grads);
        if (r)
                return r;
        double loss = head(gpt, batch, params);
        head_backward(gpt, batch, scale, params, grads);
        r = seam->ops->release(seam, group);
        if (!r)
                r = seam->ops->push(seam, group, last);
        if (!r)
                r = backward(gpt, seam, batch, last);
        if (!r)
                *ret_loss = loss;
        return r;
}
