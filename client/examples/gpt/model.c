/*
 * The walk over the groups: forward 0 to n, backward n to 0.
 *
 * Layer by layer (L2L, arXiv 2002.05645) all micro-batches of a step pass a group while it is
 * there.  Then the inputs of blocks are kept outside, and a block runs again when its backward
 * begins, so that the memory for activations does not grow with the blocks.
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
        uint32_t parts;     /* micro-batches that go layer by layer together; 0: one by one */
        struct block_shape shape;
        real *memory;
        struct block_state *states; /* by layer; layer by layer: one */
        real **streams; /* [layers + 1]: the input of layer i; last, the output.  Layer by layer:
                         * [parts + 1], of each micro-batch; the last one is free */
        real *lnf, *lnf_mean, *lnf_rstd;
        real *logits;
        real **ds; /* by micro-batch: gradient of the stream */
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

static uint32_t n_states(const struct gpt *gpt)
{
        return gpt->parts ? 1 : gpt->spec->config.layers;
}

static uint32_t n_streams(const struct gpt *gpt)
{
        return 1 + (gpt->parts ? gpt->parts : gpt->spec->config.layers);
}

static uint32_t n_ds(const struct gpt *gpt)
{
        return gpt->parts ? gpt->parts : 1;
}

static void place(struct gpt *gpt, struct arena *arena)
{
        size_t width = gpt->spec->config.width, context = gpt->spec->config.context;
        size_t rows = gpt->sequences * context;
        for (uint32_t i = 0; i < n_states(gpt); i++)
                place_block(gpt, arena, &gpt->states[i]);
        for (uint32_t i = 0; i < n_streams(gpt); i++)
                gpt->streams[i] = arena_take(arena, rows * width);
        for (uint32_t i = 0; i < n_ds(gpt); i++)
                gpt->ds[i] = arena_take(arena, rows * width);
        gpt->lnf = arena_take(arena, rows * width);
        gpt->lnf_mean = arena_take(arena, rows);
        gpt->lnf_rstd = arena_take(arena, rows);
        gpt->logits = arena_take(arena, rows * GPT_VOCABULARY);
        gpt->scratch.wide = arena_take(arena, rows * 4 * width);
        gpt->scratch.narrow = arena_take(arena, rows * width);
        gpt->scratch.scores = arena_take(arena, ATTENTION_ROWS * context);
}

DEFINE_CLEANUP(struct gpt *, gpt_free)

int gpt_new(const struct gpt_spec *spec, uint32_t sequences, uint32_t parts, struct gpt **ret_gpt)
{
        CLEANUP(cleanup_gpt_free) struct gpt *gpt = calloc(1, sizeof(*gpt));
        if (!gpt)
                return -ENOMEM;
        gpt->spec = spec;
        gpt->sequences = sequences;
        gpt->parts = parts;
        gpt->states = calloc(n_states(gpt), sizeof(*gpt->states));
        gpt->streams = calloc(n_streams(gpt), sizeof(*gpt->streams));
        gpt->ds = calloc(n_ds(gpt), sizeof(*gpt->ds));
        if (!gpt->states || !gpt->streams || !gpt->ds)
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
        free(gpt->ds);
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

/* The input of a layer; of the layer behind the last, the output. */
static const real *stream_of(const struct gpt *gpt, uint32_t index, uint32_t part)
{
        return gpt->streams[gpt->parts ? part : index];
}

static uint64_t key_of(const struct gpt *gpt, uint32_t index, uint32_t part)
{
        return (uint64_t)index * gpt->parts + part;
}

static size_t stream_elements(const struct gpt *gpt)
{
        return block_rows(&gpt->shape) * gpt->shape.width;
}

static int embed(struct gpt *gpt, struct seam *seam, const struct gpt_batch *batches, uint32_t n)
{
        const real *params;
        int r = seam->ops->acquire(seam, 0, 1, &params);
        if (r)
                return r;
        size_t width = gpt->shape.width, rows = block_rows(&gpt->shape);
        const real *wte = params + offset_of(gpt, 0, GPT_WTE);
        const real *wpe = params + offset_of(gpt, 0, GPT_WPE);
        for (uint32_t part = 0; part < n; part++)
                for (size_t i = 0; i < rows; i++)
                        broadcast_bias(1, width, wte + batches[part].inputs[i] * width,
                                       wpe + i % gpt->shape.context * width,
                                       gpt->streams[part] + i * width);
        return seam->ops->release(seam, 0);
}

static int embed_backward(struct gpt *gpt, struct seam *seam, const struct gpt_batch *batches,
                          uint32_t n, bool last)
{
        real *grads;
        int r = seam->ops->grad(seam, 0, &grads);
        if (r)
                return r;
        size_t width = gpt->shape.width, rows = block_rows(&gpt->shape);
        real *wte = grads + offset_of(gpt, 0, GPT_WTE), *wpe = grads + offset_of(gpt, 0, GPT_WPE);
        for (uint32_t part = 0; part < n; part++)
                for (size_t i = 0; i < rows; i++) {
                        const real *d = gpt->ds[part] + i * width;
                        bias_backward(1, width, d, wte + batches[part].inputs[i] * width);
                        bias_backward(1, width, d, wpe + i % gpt->shape.context * width);
                }
        return seam->ops->push(seam, 0, last);
}

/* keeps: a backward follows. */
static int layer(struct gpt *gpt, struct seam *seam, uint32_t index, uint32_t n, bool keeps)
{
        uint32_t group = index + 1;
        const real *params;
        int r = seam->ops->acquire(seam, group, group + 1, &params);
        if (r)
                return r;
        struct block_params p = block_params_of(gpt, group, params);
        for (uint32_t part = 0; part < n; part++) {
                const real *x = stream_of(gpt, index, part);
                real **out = &gpt->streams[gpt->parts ? gpt->parts : index + 1];
                if (gpt->parts && keeps)
                        r = seam->ops->keep(seam, key_of(gpt, index, part), x,
                                            stream_elements(gpt));
                if (r)
                        return r;
                block_forward(&gpt->shape, &p, x, &gpt->states[gpt->parts ? 0 : index], *out);
                if (gpt->parts) {
                        real *made = *out;
                        *out = gpt->streams[part];
                        gpt->streams[part] = made;
                }
        }
        return seam->ops->release(seam, group);
}

/* Layer by layer: runs the block again, for its state. */
static int layer_again(struct gpt *gpt, struct seam *seam, uint32_t index, uint32_t part,
                       const struct block_params *p, const real **ret_x)
{
        int r = seam->ops->kept(seam, key_of(gpt, index, part), ret_x);
        if (!r)
                block_forward(&gpt->shape, p, *ret_x, &gpt->states[0], gpt->streams[gpt->parts]);
        return r;
}

static int layer_backward(struct gpt *gpt, struct seam *seam, uint32_t index, uint32_t n, bool last)
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
        for (uint32_t part = 0; !r && part < n; part++) {
                const real *x = stream_of(gpt, index, part);
                if (gpt->parts)
                        r = layer_again(gpt, seam, index, part, &p, &x);
                if (r)
                        return r;
                block_backward(&gpt->shape, &p, x, &gpt->states[gpt->parts ? 0 : index],
                               &gpt->scratch, &g, gpt->ds[part]);
                if (gpt->parts)
                        r = seam->ops->let_go(seam, key_of(gpt, index, part));
        }
        if (!r)
                r = seam->ops->release(seam, group);
        return r ? r : seam->ops->push(seam, group, last);
}

/* The logits, and the mean loss. */
static double head(struct gpt *gpt, uint32_t part, const struct gpt_batch *batch,
                   const real *params)
{
        size_t width = gpt->shape.width, rows = block_rows(&gpt->shape);
        uint32_t group = final_group(gpt);
        layernorm_forward(rows, width, stream_of(gpt, gpt->spec->config.layers, part),
                          params + offset_of(gpt, group, GPT_LNF_W),
                          params + offset_of(gpt, group, GPT_LNF_B), gpt->lnf, gpt->lnf_mean,
                          gpt->lnf_rstd);
        gemm(rows, GPT_VOCABULARY, width, 1, (struct matrix){ gpt->lnf, width, false },
             (struct matrix){ params + offset_of(gpt, group, GPT_HEAD_W), GPT_VOCABULARY, false },
             0, gpt->logits, GPT_VOCABULARY);
        return cross_entropy(rows, GPT_VOCABULARY, gpt->logits, batch->targets) / (double)rows;
}

static void head_backward(struct gpt *gpt, uint32_t part, const struct gpt_batch *batch,
                          double scale, const real *params, real *grads)
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
        memset(gpt->ds[part], 0, rows * width * sizeof(real));
        layernorm_backward(rows, width, gpt->scratch.narrow,
                           stream_of(gpt, gpt->spec->config.layers, part),
                           params + offset_of(gpt, group, GPT_LNF_W), gpt->lnf_mean, gpt->lnf_rstd,
                           gpt->ds[part], grads + offset_of(gpt, group, GPT_LNF_W),
                           grads + offset_of(gpt, group, GPT_LNF_B));
}

/* Everything before the final group. */
static int forward(struct gpt *gpt, struct seam *seam, const struct gpt_batch *batches, uint32_t n,
                   bool keeps)
{
        const struct gpt_config *config = &gpt->spec->config;
        gpt->shape = (struct block_shape){ batches[0].sequences, config->context, config->heads,
                                           config->width };
        int r = embed(gpt, seam, batches, n);
        for (uint32_t i = 0; !r && i < config->layers; i++)
                r = layer(gpt, seam, i, n, keeps);
        return r;
}

static int backward(struct gpt *gpt, struct seam *seam, const struct gpt_batch *batches, uint32_t n,
                    bool last)
{
        int r = 0;
        for (uint32_t i = gpt->spec->config.layers; !r && i > 0; i--)
                r = layer_backward(gpt, seam, i - 1, n, last);
        return r ? r : embed_backward(gpt, seam, batches, n, last);
}

int gpt_evaluate(struct gpt *gpt, struct seam *seam, const struct gpt_batch *batch,
                 double *ret_loss)
{
        const real *params;
        int r = forward(gpt, seam, batch, 1, false);
        if (!r)
                r = seam->ops->acquire(seam, final_group(gpt), GPT_NO_GROUP, &params);
        if (r)
                return r;
        double loss = head(gpt, 0, batch, params);
        r = seam->ops->release(seam, final_group(gpt));
        if (!r)
                *ret_loss = loss;
        return r;
}

int gpt_train(struct gpt *gpt, struct seam *seam, const struct gpt_batch *batches, double scale,
              bool last, double *ret_loss)
{
        uint32_t group = final_group(gpt), n = n_ds(gpt);
        double loss = 0;
        const real *params;
        real *grads;
        int r = forward(gpt, seam, batches, n, true);
        if (!r)
                r = seam->ops->acquire(seam, group, group - 1, &params);
        if (!r)
                r = seam->ops->grad(seam, group, &grads);
        if (r)
                return r;
        for (uint32_t part = 0; part < n; part++) {
                loss += head(gpt, part, &batches[part], params);
                head_backward(gpt, part, &batches[part], scale, params, grads);
        }
        r = seam->ops->release(seam, group);
        if (!r)
                r = seam->ops->push(seam, group, last);
        if (!r)
                r = backward(gpt, seam, batches, n, last);
        if (!r)
                *ret_loss = loss;
        return r;
}
