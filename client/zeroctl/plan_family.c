/*
 * Models from sizes: families of Hugging Face's config.json, each with the shapes of its tensors.
 *
 * The tensors of a layer are one group and those outside the layers the last group, as
 * zerod.torch.shard() makes them.  No family is guessed: a config that has a part not listed here
 * is refused.
 */
#include "plan.h"

#include <string.h>

/* The extents of tensors. */
enum size {
        NONE,
        HIDDEN,
        INNER,
        VOCAB,
        POSITIONS,
        TYPES,
        LAYERS,
        HEADS,
        KV_HEADS,
        HEAD,
        EXPERTS,
        SHARED_EXPERTS,
        EXPERT_INNER,
        DENSE_LAYERS, /* the first layers, which have no experts */
        QUERY_RANK,
        KEY_RANK,
        HEAD_PLAIN,
        HEAD_ROTARY,
        HEAD_VALUE,
        /* made of those above */
        HIDDEN3,
        QUERY,
        KEY,
        SHARED_INNER,
        KEY_RANK_ROTARY,
        KEY_VALUE,
        VALUE,
        SIZES,
};
_Static_assert((int)SIZES <= (int)PLAN_FAMILY_SIZES, "a model has room for all sizes");

enum { FAMILY_SHAPES = 24, FAMILY_KEYS = 14, FAMILY_DIMS = 3, GROUP_NAME = 32 };

struct plan_family {
        const char *name, *alias; /* model_type */
        struct {
                enum size size;
                const char *key;
                bool optional; /* or null: the size follows from others */
        } keys[FAMILY_KEYS];
        const char
                *absent[3]; /* parts that are not listed here: the config must not turn them on */
        bool tied;          /* the default of tie_word_embeddings, if `head` */
        bool head;          /* a matrix of its own for the output, unless tied */
        enum size outside[FAMILY_SHAPES][FAMILY_DIMS], layer[FAMILY_SHAPES][FAMILY_DIMS],
                dense[FAMILY_SHAPES][FAMILY_DIMS]; /* of the first DENSE_LAYERS */
};

#define ATTENTION_GATED                                      \
        { HIDDEN, QUERY }, { HIDDEN, KEY }, { HIDDEN, KEY }, \
        {                                                    \
                QUERY, HIDDEN                                \
        }
#define ATTENTION_LATENT                                                            \
        { HIDDEN }, { QUERY_RANK, HIDDEN }, { QUERY_RANK }, { QUERY, QUERY_RANK },  \
                { KEY_RANK_ROTARY, HIDDEN }, { KEY_RANK }, { KEY_VALUE, KEY_RANK }, \
        {                                                                           \
                HIDDEN, VALUE                                                       \
        }
#define MLP_GATED                             \
        { HIDDEN, INNER }, { HIDDEN, INNER }, \
        {                                     \
                INNER, HIDDEN                 \
        }
#define NORM           \
        { HIDDEN },    \
        {              \
                HIDDEN \
        } /* weight and bias */
#define LINEAR(in, out) \
        { in, out },    \
        {               \
                out     \
        }
#define KEYS_GATED                                                                          \
        { HIDDEN, "hidden_size" }, { INNER, "intermediate_size" }, { VOCAB, "vocab_size" }, \
                { LAYERS, "num_hidden_layers" }, { HEADS, "num_attention_heads" },          \
                { KV_HEADS, "num_key_value_heads", true },                                  \
        {                                                                                   \
                HEAD, "head_dim", true                                                      \
        }

/* clang-format off */
static const struct plan_family families[] = {
        { .name = "gpt2",
          .keys = { { HIDDEN, "n_embd" }, { INNER, "n_inner", true }, { VOCAB, "vocab_size" },
                    { POSITIONS, "n_positions" }, { LAYERS, "n_layer" } },
          .absent = { "add_cross_attention" },
          .tied = true,
          .head = true,
          .outside = { { VOCAB, HIDDEN }, { POSITIONS, HIDDEN }, NORM },
          .layer = { NORM, LINEAR(HIDDEN, HIDDEN3), LINEAR(HIDDEN, HIDDEN), NORM,
                     LINEAR(HIDDEN, INNER), LINEAR(INNER, HIDDEN) } },
        { .name = "bert",
          .keys = { { HIDDEN, "hidden_size" }, { INNER, "intermediate_size" }, { VOCAB, "vocab_size" },
                    { POSITIONS, "max_position_embeddings" }, { TYPES, "type_vocab_size" },
                    { LAYERS, "num_hidden_layers" } },
          .absent = { "add_cross_attention", "is_decoder" },
          .outside = { { VOCAB, HIDDEN }, { POSITIONS, HIDDEN }, { TYPES, HIDDEN }, NORM,
                       LINEAR(HIDDEN, HIDDEN) /* pooler */ },
          .layer = { LINEAR(HIDDEN, HIDDEN), LINEAR(HIDDEN, HIDDEN), LINEAR(HIDDEN, HIDDEN),
                     LINEAR(HIDDEN, HIDDEN), NORM, LINEAR(HIDDEN, INNER), LINEAR(INNER, HIDDEN), NORM } },
        { .name = "llama",
          .keys = { KEYS_GATED },
          .absent = { "attention_bias", "mlp_bias" },
          .head = true,
          .outside = { { VOCAB, HIDDEN }, { HIDDEN } },
          .layer = { ATTENTION_GATED, MLP_GATED, { HIDDEN }, { HIDDEN } } },
        { .name = "mistral",
          .keys = { KEYS_GATED },
          .head = true,
          .outside = { { VOCAB, HIDDEN }, { HIDDEN } },
          .layer = { ATTENTION_GATED, MLP_GATED, { HIDDEN }, { HIDDEN } } },
        { .name = "qwen2",
          .keys = { KEYS_GATED },
          .head = true,
          .outside = { { VOCAB, HIDDEN }, { HIDDEN } },
          .layer = { ATTENTION_GATED, { QUERY }, { KEY }, { KEY }, MLP_GATED, { HIDDEN }, { HIDDEN } } },
        { .name = "deepseek_v3",
          .alias = "kimi_k2",
          .keys = { { HIDDEN, "hidden_size" }, { INNER, "intermediate_size" }, { VOCAB, "vocab_size" },
                    { LAYERS, "num_hidden_layers" }, { HEADS, "num_attention_heads" },
                    { EXPERTS, "n_routed_experts" }, { SHARED_EXPERTS, "n_shared_experts", true },
                    { EXPERT_INNER, "moe_intermediate_size" },
                    { DENSE_LAYERS, "first_k_dense_replace", true }, { QUERY_RANK, "q_lora_rank" },
                    { KEY_RANK, "kv_lora_rank" }, { HEAD_PLAIN, "qk_nope_head_dim" },
                    { HEAD_ROTARY, "qk_rope_head_dim" }, { HEAD_VALUE, "v_head_dim" } },
          .absent = { "attention_bias" },
          .head = true,
          .outside = { { VOCAB, HIDDEN }, { HIDDEN } },
          .layer = { ATTENTION_LATENT, { HIDDEN }, { EXPERTS, HIDDEN } /* router */,
                     { EXPERTS, EXPERT_INNER, HIDDEN }, { EXPERTS, EXPERT_INNER, HIDDEN },
                     { EXPERTS, HIDDEN, EXPERT_INNER }, { SHARED_INNER, HIDDEN },
                     { SHARED_INNER, HIDDEN }, { HIDDEN, SHARED_INNER } },
          .dense = { ATTENTION_LATENT, { HIDDEN }, MLP_GATED } },
};
/* clang-format on */
enum { FAMILIES = sizeof(families) / sizeof(families[0]) };
static const char family_names[] = "gpt2, bert, llama, mistral, qwen2, deepseek_v3 and kimi_k2";

int64_t plan_layers(const struct plan_model *m)
{
        return m->family ? m->sizes[LAYERS] : 0;
}

int64_t plan_hidden(const struct plan_model *m)
{
        return m->family ? m->sizes[HIDDEN] : 0;
}

/* ---- the layout ------------------------------------------------------------------ */

static int add_tensors(struct plan_model *m, const char *group,
                       const enum size shapes[][FAMILY_DIMS])
{
        uint32_t g = 0, t;
        int r = zero_layout_group(m->own, group, ZERO_BF16, NULL, 0, 0, &g);

        for (int i = 0; r == 0 && i < FAMILY_SHAPES && shapes[i][0]; i++) {
                uint64_t shape[FAMILY_DIMS];
                char name[2 * GROUP_NAME];
                struct zero_tensor tensor = { .name = name, .shape = shape };

                for (; tensor.ndim < FAMILY_DIMS && shapes[i][tensor.ndim]; tensor.ndim++)
                        shape[tensor.ndim] = (uint64_t)m->sizes[shapes[i][tensor.ndim]];
                snprintf(name, sizeof(name), "%s.%d", group, i);
                r = zero_layout_tensor(m->own, g, &tensor, &t);
        }
        return r;
}

/* Silent: zero_layout_error() says what is wrong. */
static int make_layout(struct plan_model *m)
{
        int failed = plan_model_init(m);
        uint32_t t;

        for (int64_t i = 0; !failed && i < m->sizes[LAYERS]; i++) {
                char name[GROUP_NAME];

                snprintf(name, sizeof(name), "layer%lld", (long long)i);
                failed = add_tensors(
                        m, name, i < m->sizes[DENSE_LAYERS] ? m->family->dense : m->family->layer);
        }
        m->layer_groups = (uint32_t)m->sizes[LAYERS];
        if (!failed)
                failed = add_tensors(m, "outside", m->family->outside);
        if (!failed && m->sizes[NONE]) /* a matrix for the output */
                failed = zero_layout_tensor(
                        m->own, zero_layout_groups(m->own) - 1,
                        &(struct zero_tensor){ .name = "head",
                                               .ndim = 2,
                                               .shape =
                                                       (uint64_t[]){ (uint64_t)m->sizes[VOCAB],
                                                                     (uint64_t)m->sizes[HIDDEN] } },
                        &t);
        return failed ? CTL_FAILED : CTL_OK;
}

/* The sizes that follow from others.  `untied`: there is a matrix for the output. */
static void follow(struct plan_model *m, bool untied)
{
        int64_t *s = m->sizes;

        s[NONE] = untied;
        s[INNER] = s[INNER] ? s[INNER] : 4 * s[HIDDEN];
        s[KV_HEADS] = s[KV_HEADS] ? s[KV_HEADS] : s[HEADS];
        s[HEAD] = s[HEAD] ? s[HEAD] : s[HEAD_PLAIN] + s[HEAD_ROTARY];
        s[HEAD] = s[HEAD] || !s[HEADS] ? s[HEAD] : s[HIDDEN] / s[HEADS];
        s[HIDDEN3] = 3 * s[HIDDEN];
        s[QUERY] = s[HEADS] * s[HEAD];
        s[KEY] = s[KV_HEADS] * s[HEAD];
        s[SHARED_INNER] = s[SHARED_EXPERTS] * s[EXPERT_INNER];
        s[KEY_RANK_ROTARY] = s[KEY_RANK] + s[HEAD_ROTARY];
        s[KEY_VALUE] = s[HEADS] * (s[HEAD_PLAIN] + s[HEAD_VALUE]);
        s[VALUE] = s[HEADS] * s[HEAD_VALUE];
}

int plan_model_sizes(int64_t layers, int64_t hidden, int64_t vocab, int64_t seq,
                     struct plan_model *ret)
{
        *ret = (struct plan_model){ .family = &families[0],
                                    .sizes = { [LAYERS] = layers,
                                               [HIDDEN] = hidden,
                                               [VOCAB] = vocab,
                                               [POSITIONS] = seq } };
        follow(ret, false);
        return make_layout(ret) == CTL_OK ? CTL_OK : plan_model_flaw(ret);
}

int plan_model_layers(const struct plan_model *m, int64_t layers, struct plan_model *ret)
{
        *ret = (struct plan_model){ .family = m->family };
        memcpy(ret->sizes, m->sizes, sizeof(ret->sizes));
        ret->sizes[LAYERS] = layers;
        if (make_layout(ret) != CTL_OK)
                return CTL_FAILED;
        return m->muon ? plan_model_muon(ret) : CTL_OK;
}

/* ---- config.json ----------------------------------------------------------------- */

static int take_sizes(const json_t *config, const char *path, struct plan_model *m)
{
        for (int i = 0; i < FAMILY_KEYS && m->family->keys[i].key; i++) {
                const char *key = m->family->keys[i].key;
                const json_t *value = json_object_get(config, key);
                json_int_t n = json_integer_value(value);

                if ((!value || json_is_null(value)) && m->family->keys[i].optional)
                        continue;
                if (!value) {
                        ctl_error(
                                "%s: a config of %s needs \"%s\"; give --layers, --hidden, --vocab "
                                "and --seq instead",
                                path, m->family->name, key);
                        return CTL_FAILED;
                }
                if (!json_is_integer(value) || n < !m->family->keys[i].optional || n > COUNT_MAX) {
                        ctl_error("%s: \"%s\" must be a whole number of %d to %d", path, key,
                                  !m->family->keys[i].optional, COUNT_MAX);
                        return CTL_FAILED;
                }
                m->sizes[m->family->keys[i].size] = n;
        }
        if (m->sizes[HEADS] && !m->sizes[HEAD] && !m->sizes[HEAD_PLAIN] &&
            m->sizes[HIDDEN] % m->sizes[HEADS]) {
                ctl_error("%s: \"hidden_size\" must be a multiple of \"num_attention_heads\", or "
                          "\"head_dim\" be given",
                          path);
                return CTL_FAILED;
        }
        return CTL_OK;
}

static const struct plan_family *find_family(const char *name)
{
        for (size_t i = 0; i < FAMILIES; i++)
                if (strcmp(families[i].name, name) == 0 ||
                    (families[i].alias && strcmp(families[i].alias, name) == 0))
                        return &families[i];
        return NULL;
}

int plan_model_config(const json_t *config, const char *path, struct plan_model *ret)
{
        const char *type = field_text(config, "model_type");
        const json_t *tie = json_object_get(config, "tie_word_embeddings");
        int r;

        *ret = (struct plan_model){ .family = find_family(type) };
        if (!ret->family) {
                ctl_error("%s: model_type '%.60s' is not known; %s are. Give the model's "
                          "safetensors file, or --layers, --hidden, --vocab and --seq",
                          path, type, family_names);
                return CTL_FAILED;
        }
        for (int i = 0; i < 3 && ret->family->absent[i]; i++) {
                if (!field_true(config, ret->family->absent[i]))
                        continue;
                ctl_error("%s: %s with \"%s\" is not known; give the model's safetensors file",
                          path, type, ret->family->absent[i]);
                return CTL_FAILED;
        }
        r = take_sizes(config, path, ret);
        if (r != CTL_OK)
                return r;
        follow(ret, ret->family->head && !(tie ? json_is_true(tie) : ret->family->tied));
        return make_layout(ret) == CTL_OK ? CTL_OK : plan_model_flaw(ret);
}
