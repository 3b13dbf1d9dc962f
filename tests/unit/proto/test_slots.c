/* Slots are disjoint, aligned, large enough, and no larger than needed. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>

#include "layouts.h"
#include "proto/dtype.h"
#include "proto/slots.h"

static uint64_t group_bytes(const layout *l, uint32_t g, uint32_t dtype)
{
        return dtype_bytes(dtype ? dtype : l->groups[g].dtype, l->groups[g].elements);
}

static uint64_t slot_end(const struct slots *s, uint32_t i)
{
        return i + 1 < s->n ? slots_offset(s, i + 1) : s->bytes;
}

static bool any_of(struct rng *rng)
{
        return rng_below(rng, 3) == 0;
}

/* Every group fits its slot without touching the next one. */
static void check_fits(const layout *l, const struct slots *s, uint32_t dtype, const bool *skip)
{
        for (uint32_t g = 0; g < l->n_groups; g++) {
                if (skip[g])
                        continue;
                for (uint32_t i = s->whole ? g : 0; i < (s->whole ? g + 1 : s->n); i++)
                        cr_assert_leq(slots_offset(s, i) + group_bytes(l, g, dtype), slot_end(s, i),
                                      "group %u slot %u", g, i);
        }
        for (uint32_t i = 0; i < s->n; i++)
                cr_assert_eq(slots_offset(s, i) % SLOTS_ALIGN, 0);
        cr_assert_eq(s->bytes % SLOTS_ALIGN, 0);
}

Test(slots, every_group_fits_its_slot)
{
        struct rng rng = { 1 };

        for (uint64_t seed = 0; seed < 200; seed++) {
                layout *l = layouts_random(seed);
                bool *skip = calloc(l->n_groups, sizeof(*skip));
                for (uint32_t g = 0; g < l->n_groups; g++)
                        skip[g] = any_of(&rng);
                for (uint32_t wanted = 1; wanted <= l->n_groups + 1; wanted++) {
                        uint32_t dtype = rng_below(&rng, 4);
                        struct slots *s;
                        cr_assert_eq(slots_new(l, wanted, dtype, skip, &s), 0);
                        check_fits(l, s, dtype, skip);
                        slots_free(s);
                }
                free(skip);
                layout_free(l);
        }
}

static const uint64_t sizes[] = { 1024, 2048, 0, 2049 };

Test(slots, whole_gives_each_group_its_own_size)
{
        layout *l = layouts_sized(sizes, 4, ZERO_BF16);
        struct slots *s;

        cr_assert_eq(slots_new(l, UINT32_MAX, 0, NULL, &s), 0);
        cr_assert(s->whole);
        cr_assert_eq(s->n, 4);
        cr_assert_eq(slots_offset(s, 1), 4096);
        cr_assert_eq(slots_offset(s, 2), 8192);
        cr_assert_eq(slots_offset(s, 3), 8192);
        cr_assert_eq(s->bytes, 16384);
        slots_free(s);
        layout_free(l);
}

Test(slots, a_form_gives_each_group_its_size_in_its_dtype_there)
{
        layout *l = layouts_sized(sizes, 4, ZERO_BF16);
        const uint8_t form[] = { ZERO_FP32, 0, ZERO_BF16, ZERO_BF16 };
        struct slots *s;

        cr_assert_eq(slots_new_form(l, form, &s), 0);
        cr_assert(s->whole);
        cr_assert_eq(slots_offset(s, 1), 4096);
        cr_assert_eq(slots_offset(s, 3), 4096);
        cr_assert_eq(s->bytes, 12288);
        slots_free(s);
        layout_free(l);
}

Test(slots, fewer_than_the_groups_gives_equal_slots_of_the_largest)
{
        layout *l = layouts_sized(sizes, 4, ZERO_BF16);
        struct slots *s;

        cr_assert_eq(slots_new(l, 3, 0, NULL, &s), 0);
        cr_assert(!s->whole);
        cr_assert_eq(s->n, 3);
        cr_assert_eq(s->slot_bytes, 8192);
        cr_assert_eq(slots_offset(s, 2), 16384);
        cr_assert_eq(s->bytes, 24576);
        slots_free(s);
        layout_free(l);
}

Test(slots, groups_of_the_common_size_or_less_have_half_of_all_bytes)
{
        static const uint64_t few_large[] = { 2048, 65536, 2048, 2048, 2048, 8192, 65536 };
        static const uint64_t most_small[] = { 2048, 8192, 8192, 8192, 8192, 30720 };
        const uint64_t *cases[] = { few_large, most_small, sizes };
        const uint32_t counts[] = { 7, 6, 4 };
        const uint64_t common[] = { 131072, 16384, 4096 };

        for (int i = 0; i < 3; i++) {
                layout *l = layouts_sized(cases[i], counts[i], ZERO_BF16);
                struct slots *s;

                cr_assert_eq(slots_new(l, 2, 0, NULL, &s), 0);
                cr_assert_eq(s->common, common[i], "case %d: %llu", i,
                             (unsigned long long)s->common);
                slots_free(s);
                layout_free(l);
        }
}

/* Equal slots of 8192 bytes; all groups have 20480 without the last one, 28672 with it. */
Test(slots, bounded_is_whole_where_equal_slots_would_take_as_much)
{
        static const uint64_t some[] = { 1024, 2048, 2048, 2049, 2049 };
        static const bool skip[] = { false, false, false, false, true };
        layout *l = layouts_sized(some, 5, ZERO_BF16);
        struct slots *s;

        cr_assert_eq(slots_new_bounded(l, 3, 0, skip, &s), 0);
        cr_assert(s->whole);
        cr_assert_eq(s->n, 5);
        cr_assert_eq(s->bytes, 20480);
        slots_free(s);
        cr_assert_eq(slots_new_bounded(l, 3, 0, NULL, &s), 0);
        cr_assert(!s->whole);
        cr_assert_eq(s->bytes, 24576);
        slots_free(s);
        cr_assert_eq(slots_new_bounded(l, 0, 0, NULL, &s), -EINVAL);
        layout_free(l);
}

Test(slots, a_dtype_of_its_own_changes_the_sizes)
{
        layout *l = layouts_sized(sizes, 4, ZERO_BF16);
        struct slots *s;

        cr_assert_eq(slots_new(l, 1, ZERO_FP32, NULL, &s), 0);
        cr_assert_eq(s->slot_bytes, 12288);
        slots_free(s);
        layout_free(l);
}

Test(slots, skipped_groups_take_no_room)
{
        static const bool skip[] = { false, true, false, true };
        layout *l = layouts_sized(sizes, 4, ZERO_BF16);
        struct slots *s;

        cr_assert_eq(slots_new(l, 4, 0, skip, &s), 0);
        cr_assert_eq(s->bytes, 4096);
        slots_free(s);
        cr_assert_eq(slots_new(l, 2, 0, skip, &s), 0);
        cr_assert_eq(s->slot_bytes, 4096);
        slots_free(s);
        layout_free(l);
}

Test(slots, senseless_requests_are_refused)
{
        layout *l = layouts_sized(sizes, 4, ZERO_BF16);
        struct slots *s;

        cr_assert_eq(slots_new(l, 0, 0, NULL, &s), -EINVAL);
        cr_assert_eq(slots_new(l, 1, 9, NULL, &s), -EINVAL);
        layout_free(l);
}

Test(slots, free_takes_null)
{
        slots_free(NULL);
}
