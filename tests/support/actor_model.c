/* The actor's layout and numbers. */
#include "actor.h"

#include <stdlib.h>
#include <string.h>

#include "proto/dtype.h"

/* ---- layout -------------------------------------------------------------------- */

static enum zero_init init_of(const json_t *t)
{
        static const char *const names[] = { "zeros", "constant", "normal", "put" };
        const char *text = field_text(t, "init");

        for (uint32_t i = 0; text && i < 4; i++)
                if (strcmp(text, names[i]) == 0)
                        return (enum zero_init)i;
        return (enum zero_init)field_count(t, "init", ZERO_INIT_ZEROS);
}

static int cut_matrices(struct zero_layout *l, uint32_t tensor, const json_t *t)
{
        const json_t *list = json_object_get(t, "rows"), *item;
        uint64_t rows[512] = { 0 };
        size_t i;

        json_array_foreach(list, i, item) if (i < 512) rows[i] = (uint64_t)json_integer_value(item);
        return zero_layout_matrices(l, tensor, rows, (uint32_t)json_array_size(list));
}

static int add_tensor(struct zero_layout *l, uint32_t group, const json_t *t)
{
        const json_t *extents = json_object_get(t, "shape"), *extent;
        uint64_t shape[16] = { 0 };
        struct zero_tensor tensor = {
                .name = field_text(t, "name"),
                .ndim = (uint32_t)json_array_size(extents),
                .shape = shape,
                .frozen = json_is_true(json_object_get(t, "frozen")),
                .set = (uint32_t)field_count(t, "set", 0),
                .init = init_of(t),
                .init_value = field_number(t, "value", 0),
                .init_seed = field_count(t, "seed", 0),
        };
        uint32_t index;
        size_t i;

        json_array_foreach(extents, i, extent) if (i < 16) shape[i] =
                (uint64_t)json_integer_value(extent);
        int r = zero_layout_tensor(l, group, &tensor, &index);

        if (!r && json_is_true(json_object_get(t, "whole")))
                r = zero_layout_whole(l, index);
        if (!r && field_text(t, "optimizer"))
                r = zero_layout_tensor_optimizer(l, index, field_text(t, "optimizer"));
        return !r && json_object_get(t, "rows") ? cut_matrices(l, index, t) : r;
}

static int add_group(struct zero_layout *l, const json_t *g)
{
        const json_t *set = json_object_get(g, "ranks"), *tensors = json_object_get(g, "tensors");
        const json_t *item;
        uint32_t ranks[64] = { 0 }, group;
        size_t i;
        int r;

        json_array_foreach(set, i, item) if (i < 64) ranks[i] = (uint32_t)json_integer_value(item);
        r = zero_layout_group(l, field_text(g, "name"), field_dtype(g, "dtype"), set ? ranks : NULL,
                              (uint32_t)json_array_size(set), field_number(g, "divisor", 0),
                              &group);
        if (!r && field_text(g, "optimizer"))
                r = zero_layout_optimizer(l, group, field_text(g, "optimizer"));
        if (!r && json_is_true(json_object_get(g, "ema")))
                r = zero_layout_ema(l, group);
        if (!r && (field_text(g, "state") || field_text(g, "master")))
                r = zero_layout_state(l, group, field_text(g, "state"), field_text(g, "master"));
        if (!r && json_is_true(json_object_get(g, "eager")))
                r = zero_layout_eager(l, group);
        for (i = 0; !r && i < json_array_size(tensors); i++)
                r = add_tensor(l, group, json_array_get(tensors, i));
        return r;
}

int actor_layout(struct actor *actor, const json_t *command, const char **ret_text)
{
        json_t *groups = json_object_get(command, "groups");
        int r;

        zero_layout_free(actor->layout);
        json_decref(actor->groups);
        actor->groups = json_incref(groups);
        actor->layout = NULL;
        r = zero_layout_new(&actor->layout);
        for (size_t i = 0; !r && i < json_array_size(groups); i++)
                r = add_group(actor->layout, json_array_get(groups, i));
        if (r)
                *ret_text = actor->layout ? zero_layout_error(actor->layout) : "out of memory";
        return r;
}

bool actor_in_group(const struct actor *actor, uint32_t group)
{
        const json_t *set = json_object_get(json_array_get(actor->groups, group), "ranks"), *item;
        size_t i;

        json_array_foreach(set, i,
                           item) if ((uint64_t)json_integer_value(item) == actor->rank) return true;
        return set == NULL;
}

/* ---- numbers ------------------------------------------------------------------------ */

/* splitmix64's finaliser. */
static uint64_t mix(uint64_t x)
{
        x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
        x = (x ^ x >> 27) * 0x94d049bb133111eb;
        return x ^ x >> 31;
}

static uint64_t noise_key(const struct noise *n, uint32_t group)
{
        return mix(mix(mix(mix(mix(n->seed) + n->step) + n->rank) + n->micro_batch) + group);
}

static float noise_of(uint64_t key, uint64_t i, double scale)
{
        int64_t k = (int64_t)(mix(key + i) >> 40) - (1 << 23); /* 24 bits: exact in fp32 */

        return (float)((double)k / (1 << 23) * scale);
}

void gradient_fill(const struct actor *actor, const struct noise *noise, uint32_t group,
                   const void *view, float pull, void *grad)
{
        const struct zero_layout *l = actor_known_layout(actor);
        enum zero_dtype dtype = zero_layout_group_dtype(l, group);
        uint64_t key = noise_key(noise, group), n = zero_layout_group_elements(l, group);

        for (uint64_t i = 0; i < n; i++) {
                float x = noise_of(key, i, noise->scale);

                if (view)
                        x += pull * dtype_load(dtype, view, i);
                dtype_store(actor->grad_dtype, grad, i, x);
        }
}

/* By words, for all that a rank fetches goes through it. */
static uint64_t bytes_hash(uint64_t hash, const uint8_t *p, uint64_t bytes)
{
        for (uint64_t i = 0; i < bytes; i += sizeof hash) {
                uint64_t word = 0;

                memcpy(&word, p + i, bytes - i < sizeof word ? bytes - i : sizeof word);
                hash = mix(hash ^ word);
        }
        return hash;
}

uint64_t view_hash(const struct actor *actor, uint32_t group, const void *view)
{
        return values_hash(actor, group, zero_layout_group_dtype(actor_known_layout(actor), group),
                           view);
}

uint64_t values_hash(const struct actor *actor, uint32_t group, enum zero_dtype dtype,
                     const void *view)
{
        const struct zero_layout *l = actor_known_layout(actor);
        size_t size = zero_dtype_size(dtype);
        uint32_t first, n = zero_layout_group_tensors(l, group, &first);
        uint64_t hash = 0xcbf29ce484222325;

        for (uint32_t t = first; t < first + n; t++)
                hash = bytes_hash(hash, (const uint8_t *)view + zero_layout_offset(l, t) * size,
                                  zero_layout_tensor_elements(l, t) * size);
        return hash;
}
