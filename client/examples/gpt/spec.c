/*
 * The model's tensors: names as in GPT-2, matrices [in][out], initial values of GPT-2.
 */
#include "spec.h"

#include <math.h>
#include <stdio.h>

#include "random.h"

enum extent { NONE, WIDTH, WIDTH_3, WIDTH_4, BYTES, CONTEXT };
/* RESIDUAL: output that is added to the residual stream, scaled down by the number of additions. */
enum values { ZEROS, ONES, NORMAL, RESIDUAL };

struct entry {
        const char *name;
        enum extent extents[2];
        enum values values;
};

static const struct entry embedding[GPT_EMBEDDING_TENSORS] = {
        [GPT_WTE] = { "wte.weight", { BYTES, WIDTH }, NORMAL },
        [GPT_WPE] = { "wpe.weight", { CONTEXT, WIDTH }, NORMAL },
};

static const struct entry block[GPT_BLOCK_TENSORS] = {
        [GPT_LN1_W] = { "ln_1.weight", { WIDTH }, ONES },
        [GPT_LN1_B] = { "ln_1.bias", { WIDTH }, ZEROS },
        [GPT_QKV_W] = { "attn.c_attn.weight", { WIDTH, WIDTH_3 }, NORMAL },
        [GPT_QKV_B] = { "attn.c_attn.bias", { WIDTH_3 }, ZEROS },
        [GPT_MIX_W] = { "attn.c_proj.weight", { WIDTH, WIDTH }, RESIDUAL },
        [GPT_MIX_B] = { "attn.c_proj.bias", { WIDTH }, ZEROS },
        [GPT_LN2_W] = { "ln_2.weight", { WIDTH }, ONES },
        [GPT_LN2_B] = { "ln_2.bias", { WIDTH }, ZEROS },
        [GPT_UP_W] = { "mlp.c_fc.weight", { WIDTH, WIDTH_4 }, NORMAL },
        [GPT_UP_B] = { "mlp.c_fc.bias", { WIDTH_4 }, ZEROS },
        [GPT_DOWN_W] = { "mlp.c_proj.weight", { WIDTH_4, WIDTH }, RESIDUAL },
        [GPT_DOWN_B] = { "mlp.c_proj.bias", { WIDTH }, ZEROS },
};

static const struct entry final[GPT_FINAL_TENSORS] = {
        [GPT_LNF_W] = { "ln_f.weight", { WIDTH }, ONES },
        [GPT_LNF_B] = { "ln_f.bias", { WIDTH }, ZEROS },
        [GPT_HEAD_W] = { "head.weight", { WIDTH, BYTES }, NORMAL },
};

static uint64_t extent_of(const struct gpt_config *config, enum extent extent)
{
        switch (extent) {
        case WIDTH:
                return config->width;
        case WIDTH_3:
                return 3 * (uint64_t)config->width;
        case WIDTH_4:
                return 4 * (uint64_t)config->width;
        case BYTES:
                return GPT_VOCABULARY;
        case CONTEXT:
                return config->context;
        case NONE:
                break;
        }
        return 0;
}

static double deviation(const struct gpt_config *config, enum values values)
{
        return values == RESIDUAL ? 0.02 / sqrt(2.0 * config->layers) : 0.02;
}

static const struct entry *group_entries(const struct gpt_spec *spec, uint32_t group)
{
        if (group == 0)
                return embedding;
        return group < spec->n_groups - 1 ? block : final;
}

static uint32_t group_count(const struct gpt_spec *spec, uint32_t group)
{
        if (group == 0)
                return GPT_EMBEDDING_TENSORS;
        return group < spec->n_groups - 1 ? GPT_BLOCK_TENSORS : GPT_FINAL_TENSORS;
}

static const struct entry *tensor_entry(const struct gpt_spec *spec, uint32_t tensor)
{
        uint32_t group = zero_layout_tensor_group(spec->layout, tensor), first;
        zero_layout_group_tensors(spec->layout, group, &first);
        return &group_entries(spec, group)[tensor - first];
}

/* Matrices decay; biases and LayerNorm weights do not. */
static enum gpt_set entry_set(const struct entry *entry)
{
        return entry->extents[1] == NONE ? GPT_SET_NO_DECAY : GPT_SET_DECAY;
}

enum gpt_set gpt_spec_set(const struct gpt_spec *spec, uint32_t tensor)
{
        return entry_set(tensor_entry(spec, tensor));
}

static void tensor_init(const struct gpt_config *config, const struct entry *entry, bool put,
                        struct zero_tensor *ret_tensor)
{
        ret_tensor->set = entry_set(entry);
        if (put) {
                ret_tensor->init = ZERO_INIT_PUT;
        } else if (entry->values == ONES) {
                ret_tensor->init = ZERO_INIT_CONSTANT;
                ret_tensor->init_value = 1;
        } else if (entry->values != ZEROS) {
                ret_tensor->init = ZERO_INIT_NORMAL;
                ret_tensor->init_value = deviation(config, entry->values);
        }
}

static void tensor_name(const struct gpt_spec *spec, uint32_t group, const struct entry *entry,
                        char *ret, size_t size)
{
        if (group_entries(spec, group) == block)
                snprintf(ret, size, "h.%u.%s", group - 1, entry->name);
        else
                snprintf(ret, size, "%s", entry->name);
}

static int add_tensor(struct gpt_spec *spec, uint32_t group, const struct entry *entry, bool put,
                      uint64_t seed)
{
        char name[64];
        tensor_name(spec, group, entry, name, sizeof(name));
        uint64_t shape[2] = { extent_of(&spec->config, entry->extents[0]),
                              extent_of(&spec->config, entry->extents[1]) };
        struct zero_tensor tensor = { .name = name,
                                      .ndim = entry->extents[1] == NONE ? 1 : 2,
                                      .shape = shape,
                                      .init_seed = random_key(seed, spec->n_tensors) };
        tensor_init(&spec->config, entry, put, &tensor);
        uint32_t index;
        spec->n_tensors++;
        return zero_layout_tensor(spec->layout, group, &tensor, &index);
}

static int add_group(struct gpt_spec *spec, uint32_t group, enum zero_dtype dtype, bool put,
                     uint64_t seed)
{
        const struct entry *entries = group_entries(spec, group);
        char name[32];
        snprintf(name, sizeof(name), "h.%u", group - 1);
        const char *label = entries == embedding ? "embedding" : entries == final ? "final" : name;
        uint32_t index;
        int r = zero_layout_group(spec->layout, label, dtype, NULL, 0, 0, &index);
        for (uint32_t i = 0; !r && i < group_count(spec, group); i++)
                r = add_tensor(spec, group, &entries[i], put, seed);
        return r;
}

int gpt_spec_init(const struct gpt_config *config, enum zero_dtype dtype, bool put, uint64_t seed,
                  struct gpt_spec *ret_spec)
{
        struct gpt_spec spec = { .config = *config, .n_groups = config->layers + 2 };
        int r = zero_layout_new(&spec.layout);
        for (uint32_t group = 0; !r && group < spec.n_groups; group++)
                r = add_group(&spec, group, dtype, put, seed);
        if (r) {
                gpt_spec_deinit(&spec);
                return r;
        }
        *ret_spec = spec;
        return 0;
}

void gpt_spec_deinit(struct gpt_spec *spec)
{
        zero_layout_free(spec->layout);
        spec->layout = NULL;
}

uint64_t gpt_spec_offset(const struct gpt_spec *spec, uint32_t group, uint32_t index)
{
        uint32_t first;
        zero_layout_group_tensors(spec->layout, group, &first);
        return zero_layout_offset(spec->layout, first + index);
}

uint64_t gpt_spec_largest(const struct gpt_spec *spec)
{
        uint64_t largest = 0;
        for (uint32_t group = 0; group < spec->n_groups; group++) {
                uint64_t n = zero_layout_group_elements(spec->layout, group);
                largest = n > largest ? n : largest;
        }
        return largest;
}

uint64_t gpt_spec_parameters(const struct gpt_spec *spec)
{
        uint64_t sum = 0;
        for (uint32_t tensor = 0; tensor < spec->n_tensors; tensor++)
                sum += zero_layout_tensor_elements(spec->layout, tensor);
        return sum;
}

void gpt_spec_values(const struct gpt_spec *spec, uint32_t tensor, uint64_t seed, float *ret)
{
        const struct entry *entry = tensor_entry(spec, tensor);
        uint64_t key = random_key(seed, tensor);
        uint64_t n = zero_layout_tensor_elements(spec->layout, tensor);
        double sigma = deviation(&spec->config, entry->values);
        for (uint64_t i = 0; i < n; i++) {
                if (entry->values == ZEROS || entry->values == ONES)
                        ret[i] = entry->values == ONES;
                else
                        ret[i] = (float)(sigma * random_normal(key, i));
        }
}
