/*
 * Compares two layouts, and hashes a layout to 32 bytes.
 *
 * Rule: both cover every field that ranks must agree on, and numbers bit by bit, so that layouts
 * are equal exactly if their hashes are.
 */
#include "proto/layout.h"

#include <inttypes.h>
#include <sodium.h>
#include <stdarg.h>
#include <string.h>

#include "proto/dtype.h"
#include "proto/text.h"

/* ---- the first difference ---------------------------------------------- */

struct shape_text {
        char text[ZERO_DIM_MAX * 22 + 3];
};

static struct shape_text shape_text(const struct layout_tensor *t)
{
        struct shape_text s = { "[" };
        size_t n = 1;

        for (uint32_t i = 0; i < t->ndim; i++)
                n += (size_t)snprintf(s.text + n, sizeof(s.text) - n, "%s%" PRIu64, i ? ", " : "",
                                      t->shape[i]);
        snprintf(s.text + n, sizeof(s.text) - n, "]");
        return s;
}

struct ranks_text {
        char text[64];
};

/* A short list in full; the number and the ends of a long one. */
static struct ranks_text ranks_text(const struct layout_group *g)
{
        struct ranks_text s = { "all" };
        int n = 0;

        if (g->n_ranks > 4) {
                snprintf(s.text, sizeof(s.text), "%u of them from %u to %u", g->n_ranks,
                         g->ranks[0], g->ranks[g->n_ranks - 1]);
                return s;
        }
        for (uint32_t i = 0; i < g->n_ranks; i++)
                n += snprintf(s.text + n, sizeof(s.text) - (size_t)n, "%s%u", i ? ", " : "",
                              g->ranks[i]);
        return s;
}

static bool same_bits(double a, double b)
{
        return memcmp(&a, &b, sizeof(a)) == 0;
}

static bool same_ranks(const struct layout_group *a, const struct layout_group *b)
{
        return a->n_ranks == b->n_ranks &&
               (a->n_ranks == 0 || memcmp(a->ranks, b->ranks, a->n_ranks * sizeof(*a->ranks)) == 0);
}

static bool same_shape(const struct layout_tensor *a, const struct layout_tensor *b)
{
        return a->ndim == b->ndim && memcmp(a->shape, b->shape, a->ndim * sizeof(*a->shape)) == 0;
}

static bool same_rows(const struct layout_tensor *a, const struct layout_tensor *b)
{
        return a->n_rows == b->n_rows &&
               (a->n_rows == 0 || memcmp(a->rows, b->rows, a->n_rows * sizeof(*a->rows)) == 0);
}

static const char *own_optimizer(const struct layout_tensor *t)
{
        return t->optimizer ? t->optimizer : "of the group";
}

/* Writes what differs; true if anything does. */
static bool group_differs(const struct layout_group *a, const struct layout_group *b, char *text,
                          size_t size)
{
        if (a->dtype != b->dtype)
                snprintf(text, size, "dtype %s here, %s there", dtype_name(a->dtype),
                         dtype_name(b->dtype));
        else if (!same_bits(a->divisor, b->divisor))
                snprintf(text, size, "divisor %.17g here, %.17g there", a->divisor, b->divisor);
        else if (strcmp(a->optimizer, b->optimizer) != 0)
                snprintf(text, size, "optimizer %s here, %s there", a->optimizer, b->optimizer);
        else if (a->ema != b->ema)
                snprintf(text, size, "an average of the weights (ema) %s",
                         a->ema ? "here, none there" : "there, none here");
        else if (strcmp(a->state, b->state) != 0)
                snprintf(text, size, "moments in %s here, in %s there",
                         *a->state ? a->state : "fp32", *b->state ? b->state : "fp32");
        else if (strcmp(a->master, b->master) != 0)
                snprintf(text, size, "master weights in %s here, in %s there",
                         *a->master ? a->master : "fp32", *b->master ? b->master : "fp32");
        else if (a->eager != b->eager)
                snprintf(text, size, "%s here, %s there", a->eager ? "eager" : "not eager",
                         b->eager ? "eager" : "not eager");
        else
                return false;
        return true;
}

static bool tensor_differs(const struct layout_tensor *a, const struct layout_tensor *b, char *text,
                           size_t size)
{
        if (!same_shape(a, b))
                snprintf(text, size, "shape %s here, %s there", shape_text(a).text,
                         shape_text(b).text);
        else if (a->frozen != b->frozen)
                snprintf(text, size, "%s here, %s there", a->frozen ? "frozen" : "trainable",
                         b->frozen ? "frozen" : "trainable");
        else if (a->whole != b->whole)
                snprintf(text, size, "%s here, %s there", a->whole ? "whole" : "not whole",
                         b->whole ? "whole" : "not whole");
        else if (strcmp(a->optimizer ? a->optimizer : "", b->optimizer ? b->optimizer : "") != 0)
                snprintf(text, size, "optimizer %s here, %s there", own_optimizer(a),
                         own_optimizer(b));
        else if (!same_rows(a, b))
                snprintf(text, size, "its matrices differ: %u here, %u there, or other rows",
                         a->n_rows, b->n_rows);
        else if (a->set != b->set)
                snprintf(text, size, "set %u here, %u there", a->set, b->set);
        else if (a->init != b->init)
                snprintf(text, size, "init %d here, %d there", (int)a->init, (int)b->init);
        else if (!same_bits(a->init_value, b->init_value))
                snprintf(text, size, "init_value %.17g here, %.17g there", a->init_value,
                         b->init_value);
        else if (a->init_seed != b->init_seed)
                snprintf(text, size, "init_seed %" PRIu64 " here, %" PRIu64 " there", a->init_seed,
                         b->init_seed);
        else
                return false;
        return true;
}

enum { DETAIL = 512 };

/* Compares the tensors of a group, which is number g here. */
static bool tensors_equal(const layout *here, const layout *there, uint32_t g,
                          const struct layout_group *b, char *text, size_t size)
{
        const struct layout_group *a = &here->groups[g];
        struct text_quote group = text_quote(a->name);
        uint32_t n = a->n_tensors < b->n_tensors ? a->n_tensors : b->n_tensors;
        char detail[DETAIL];

        for (uint32_t i = 0; i < n; i++) {
                const struct layout_tensor *x = &here->tensors[a->first_tensor + i];
                const struct layout_tensor *y = &there->tensors[b->first_tensor + i];

                if (strcmp(x->name, y->name) != 0) {
                        snprintf(text, size, "group %u %s, tensor %u: named %s here, %s there", g,
                                 group.text, i, text_quote(x->name).text, text_quote(y->name).text);
                        return false;
                }
                if (tensor_differs(x, y, detail, sizeof(detail))) {
                        snprintf(text, size, "group %u %s, tensor %s: %s", g, group.text,
                                 text_quote(x->name).text, detail);
                        return false;
                }
        }
        if (a->n_tensors != b->n_tensors)
                snprintf(text, size, "group %u %s: %u tensors here, %u there", g, group.text,
                         a->n_tensors, b->n_tensors);
        return a->n_tensors == b->n_tensors;
}

bool layout_group_equal(const layout *here, uint32_t g, const layout *there, uint32_t h, char *text,
                        size_t size)
{
        const struct layout_group *a = &here->groups[g], *b = &there->groups[h];
        char detail[DETAIL];

        if (strcmp(a->name, b->name) != 0) {
                snprintf(text, size, "group %u: named %s here, %s there", g,
                         text_quote(a->name).text, text_quote(b->name).text);
                return false;
        }
        if (group_differs(a, b, detail, sizeof(detail))) {
                snprintf(text, size, "group %u %s: %s", g, text_quote(a->name).text, detail);
                return false;
        }
        return tensors_equal(here, there, g, b, text, size);
}

/* Ranks as well as all else. */
static bool groups_equal(const layout *here, const layout *there, uint32_t g, char *text,
                         size_t size)
{
        const struct layout_group *a = &here->groups[g], *b = &there->groups[g];

        if (strcmp(a->name, b->name) == 0 && !same_ranks(a, b)) {
                snprintf(text, size, "group %u %s: ranks %s here, %s there", g,
                         text_quote(a->name).text, ranks_text(a).text, ranks_text(b).text);
                return false;
        }
        return layout_group_equal(here, g, there, g, text, size);
}

struct base_text {
        char text[2 * 8 + 1];
};

/* The first bytes of the hash. */
static struct base_text base_text(const layout *l)
{
        struct base_text s = { "none" };

        for (int i = 0; l->has_base && i < 8; i++)
                sprintf(s.text + 2 * i, "%02x", l->base[i]);
        return s;
}

static bool bases_equal(const layout *here, const layout *there, char *text, size_t size)
{
        if (here->has_base == there->has_base &&
            memcmp(here->base, there->base, sizeof(here->base)) == 0)
                return true;
        snprintf(text, size, "base %s here, %s there: the files have other contents",
                 base_text(here).text, base_text(there).text);
        return false;
}

bool layout_equal(const layout *here, const layout *there, char *text, size_t size)
{
        uint32_t n = here->n_groups < there->n_groups ? here->n_groups : there->n_groups;
        bool equal = true;

        for (uint32_t g = 0; equal && g < n; g++)
                equal = groups_equal(here, there, g, text, size);
        if (equal && here->n_groups != there->n_groups) {
                snprintf(text, size, "%u groups here, %u there", here->n_groups, there->n_groups);
                equal = false;
        }
        equal = equal && bases_equal(here, there, text, size);
        if (!equal && size > 0)
                text_trim(text);
        return equal;
}

/* ---- hash --------------------------------------------------------------- */

/* Hashes numbers as 64 bits little-endian, and names after their length. */
static void add_number(crypto_generichash_state *state, uint64_t x)
{
        uint8_t bytes[8];

        for (int i = 0; i < 8; i++)
                bytes[i] = (uint8_t)(x >> 8 * i);
        crypto_generichash_update(state, bytes, sizeof(bytes));
}

static void add_double(crypto_generichash_state *state, double x)
{
        uint64_t bits;

        memcpy(&bits, &x, sizeof(bits));
        add_number(state, bits);
}

static void add_name(crypto_generichash_state *state, const char *name)
{
        size_t n = strlen(name);

        add_number(state, n);
        crypto_generichash_update(state, (const uint8_t *)name, n);
}

static void add_tensor(crypto_generichash_state *state, const struct layout_tensor *t)
{
        add_name(state, t->name);
        add_number(state, t->ndim);
        for (uint32_t i = 0; i < t->ndim; i++)
                add_number(state, t->shape[i]);
        bool own = t->optimizer || t->n_rows;

        add_number(state, t->frozen | (uint64_t)t->whole << 1 | (uint64_t)own << 2);
        if (own) {
                add_name(state, t->optimizer ? t->optimizer : "");
                add_number(state, t->n_rows);
                for (uint32_t i = 0; i < t->n_rows; i++)
                        add_number(state, t->rows[i]);
        }
        add_number(state, t->set);
        add_number(state, t->init);
        add_double(state, t->init_value);
        add_number(state, t->init_seed);
}

static void add_group(crypto_generichash_state *state, const layout *l,
                      const struct layout_group *g)
{
        add_name(state, g->name);
        add_number(state, g->dtype);
        add_name(state, layout_optimizer(g).text);
        add_number(state, g->eager);
        add_number(state, g->n_ranks);
        for (uint32_t i = 0; i < g->n_ranks; i++)
                add_number(state, g->ranks[i]);
        add_double(state, g->divisor);
        add_number(state, g->n_tensors);
        for (uint32_t i = 0; i < g->n_tensors; i++)
                add_tensor(state, &l->tensors[g->first_tensor + i]);
}

void layout_hash(const layout *l, uint8_t ret_hash[static LAYOUT_HASH])
{
        crypto_generichash_state state;

        crypto_generichash_init(&state, NULL, 0, LAYOUT_HASH);
        add_number(&state, l->n_groups);
        for (uint32_t g = 0; g < l->n_groups; g++)
                add_group(&state, l, &l->groups[g]);
        if (l->has_base)
                crypto_generichash_update(&state, l->base, sizeof(l->base));
        crypto_generichash_final(&state, ret_hash, LAYOUT_HASH);
}
