/*
 * What the model looks like: its tensors, in the groups in which they are fetched and pushed.
 *
 * Group 0 is the embeddings (wte, wpe), then follows a group for each block, last the final
 * LayerNorm with the output head.  The head is not tied to wte: if it were, the pass would need the
 * first group at both ends, and the group's gradient would come from two places.  With 256 symbols
 * a separate head costs 256 x width parameters, next to nothing.
 * Offsets are libzero's, so that one layout serves both backends.
 */
#pragma once

#include <stdint.h>

#include "client/include/zero.h"

enum { GPT_VOCABULARY = 256 };

struct gpt_config {
        uint32_t context;              /* bytes a sequence */
        uint32_t layers, heads, width; /* width: a multiple of heads */
};

/* Hyperparameter sets (zero_tensor.set). */
enum gpt_set { GPT_SET_DECAY, GPT_SET_NO_DECAY, GPT_SETS };

/* Tensors of each kind of group, in their order. */
enum gpt_embedding_tensor { GPT_WTE, GPT_WPE, GPT_EMBEDDING_TENSORS };
enum gpt_block_tensor {
        GPT_LN1_W,
        GPT_LN1_B,
        GPT_QKV_W,
        GPT_QKV_B,
        GPT_MIX_W,
        GPT_MIX_B,
        GPT_LN2_W,
        GPT_LN2_B,
        GPT_UP_W,
        GPT_UP_B,
        GPT_DOWN_W,
        GPT_DOWN_B,
        GPT_BLOCK_TENSORS
};
enum gpt_final_tensor { GPT_LNF_W, GPT_LNF_B, GPT_HEAD_W, GPT_FINAL_TENSORS };

struct gpt_spec {
        struct gpt_config config;
        uint32_t n_groups;
        uint32_t n_tensors;
        struct zero_layout *layout;
};

/* Groups are of dtype; put: the first values come by zero_put() instead of from the layout.
 * Returns a zero_status; on failure *ret_spec is untouched. */
int gpt_spec_init(const struct gpt_config *config, enum zero_dtype dtype, bool put, uint64_t seed,
                  struct gpt_spec *ret_spec);
void gpt_spec_deinit(struct gpt_spec *spec);

/* The offset of a tensor in its group; index: enum gpt_..._tensor. */
uint64_t gpt_spec_offset(const struct gpt_spec *spec, uint32_t group, uint32_t index);
/* Elements of the largest group. */
uint64_t gpt_spec_largest(const struct gpt_spec *spec);
enum gpt_set gpt_spec_set(const struct gpt_spec *spec, uint32_t tensor);
uint64_t gpt_spec_parameters(const struct gpt_spec *spec);

/* GPT-2's initial values of a tensor by the example's own generator: element i depends on seed,
 * tensor and i. */
void gpt_spec_values(const struct gpt_spec *spec, uint32_t tensor, uint64_t seed, float *ret);
