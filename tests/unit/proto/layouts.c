/* Layouts for tests. */
#include "layouts.h"

#include <criterion/criterion.h>

uint64_t rng_next(struct rng *rng)
{
        uint64_t x = rng->state += UINT64_C(0x9e3779b97f4a7c15);

        x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
        x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
        return x ^ x >> 31;
}

uint32_t rng_below(struct rng *rng, uint32_t n)
{
        return (uint32_t)(rng_next(rng) % n);
}

static void add_random_tensor(layout *l, struct rng *rng, uint32_t group)
{
        static const uint32_t extents[] = { 0, 1, 2, 5, 127, 129, 1000, 4097 };
        char name[32];
        uint32_t index;
        struct layout_tensor t = {
                .name = name,
                .group = group,
                .ndim = rng_below(rng, 4),
                .frozen = rng_below(rng, 4) == 0,
                .set = rng_below(rng, ZERO_SET_MAX),
                .init = (enum zero_init)rng_below(rng, ZERO_INIT_PUT + 1),
                .init_value = rng_below(rng, 100) / 64.0,
                .init_seed = rng_next(rng),
        };

        snprintf(name, sizeof(name), "tensor.%u", l->n_tensors);
        for (uint32_t i = 0; i < t.ndim; i++)
                t.shape[i] = extents[rng_below(rng, 8)];
        cr_assert_eq(layout_add_tensor(l, &t, &index, NULL), 0);
}

static void add_random_group(layout *l, struct rng *rng)
{
        char name[32];
        uint32_t ranks[8], n = rng_below(rng, 8), group;

        snprintf(name, sizeof(name), "group.%u", l->n_groups);
        for (uint32_t i = 0; i < n; i++)
                ranks[i] = i * 8 + rng_below(rng, 8);
        int r = layout_add_group(l, name, (enum zero_dtype)(1 + rng_below(rng, 3)),
                                 n ? ranks : NULL, n, rng_below(rng, 3), &group, NULL);
        cr_assert_eq(r, 0);
        for (uint32_t tensors = rng_below(rng, 6); tensors > 0; tensors--)
                add_random_tensor(l, rng, group);
}

layout *layouts_random(uint64_t seed)
{
        struct rng rng = { seed };
        layout *l;

        cr_assert_eq(layout_new(&l), 0);
        for (uint32_t groups = 1 + rng_below(&rng, 20); groups > 0; groups--)
                add_random_group(l, &rng);
        return l;
}

layout *layouts_sized(const uint64_t *elements, uint32_t n, enum zero_dtype dtype)
{
        char name[32];
        layout *l;

        cr_assert_eq(layout_new(&l), 0);
        for (uint32_t i = 0; i < n; i++) {
                struct layout_tensor t = { .name = name, .ndim = 1, .shape = { elements[i] } };
                uint32_t index;

                snprintf(name, sizeof(name), "%u", i);
                cr_assert_eq(layout_add_group(l, name, dtype, NULL, 0, 0, &t.group, NULL), 0);
                cr_assert_eq(layout_add_tensor(l, &t, &index, NULL), 0);
        }
        return l;
}
