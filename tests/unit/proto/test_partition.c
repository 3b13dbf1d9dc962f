/* The partition: properties over random layouts and every owner count from 1 to 64. */
#include <criterion/criterion.h>

#include "layouts.h"
#include "proto/dtype.h"
#include "proto/partition.h"

enum { OWNERS = ZERO_NODE_MAX, LAYOUTS = 40 };

typedef void (*property)(const layout *l, const struct partition *p);

static void check(const layout *l, uint32_t n_owners, property holds)
{
        struct partition *p;

        cr_assert_eq(partition_new(l, n_owners, &p), 0);
        holds(l, p);
        partition_free(p);
}

static void for_all(property holds)
{
        static const uint64_t odd[] = { 0,     1,     127,   128, 129,   16384,
                                        16383, 32768, 65537, 0,   49999, ZERO_GROUP_ELEMENTS_MAX,
                                        3 };

        for (uint32_t owners = 1; owners <= OWNERS; owners++) {
                for (uint32_t dtype = ZERO_FP32; dtype <= ZERO_BF16; dtype++) {
                        layout *l = layouts_sized(odd, sizeof(odd) / sizeof(*odd), dtype);
                        check(l, owners, holds);
                        layout_free(l);
                }
                for (uint64_t seed = 0; seed < LAYOUTS; seed++) {
                        layout *l = layouts_random(seed);
                        check(l, owners, holds);
                        layout_free(l);
                }
        }
}

static uint64_t slice_bytes(const layout *l, const struct partition *p, uint32_t g, uint32_t i)
{
        return partition_range(p, g, partition_owner(p, g, i)).count *
               dtype_size(l->groups[g].dtype);
}

static void slices_cover_the_group(const layout *l, const struct partition *p)
{
        for (uint32_t g = 0; g < l->n_groups; g++) {
                uint64_t at = 0;
                for (uint32_t i = 0; i < p->slices[g]; i++) {
                        struct range r = partition_range(p, g, partition_owner(p, g, i));
                        cr_assert_eq(r.first, at, "group %u slice %u", g, i);
                        at += r.count;
                }
                cr_assert_eq(at, l->groups[g].elements, "group %u", g);
        }
}

Test(partition, slices_lie_one_behind_the_other_and_cover_each_group)
{
        for_all(slices_cover_the_group);
}

static void others_hold_nothing(const layout *l, const struct partition *p)
{
        for (uint32_t g = 0; g < l->n_groups; g++) {
                uint32_t holders = 0;
                for (uint32_t o = 0; o < p->n_owners; o++)
                        holders += partition_range(p, g, o).count > 0;
                cr_assert_eq(holders, p->slices[g], "group %u", g);
        }
}

Test(partition, only_the_owners_of_slices_hold_anything)
{
        for_all(others_hold_nothing);
}

static void slices_are_aligned(const layout *l, const struct partition *p)
{
        for (uint32_t g = 0; g < l->n_groups; g++)
                for (uint32_t o = 0; o < p->n_owners; o++) {
                        struct range r = partition_range(p, g, o);
                        cr_assert_eq(r.first % LAYOUT_ALIGN, 0);
                        cr_assert_eq(r.count % LAYOUT_ALIGN, 0);
                }
}

Test(partition, cuts_are_aligned)
{
        for_all(slices_are_aligned);
}

static void slices_are_not_too_small(const layout *l, const struct partition *p)
{
        for (uint32_t g = 0; g < l->n_groups; g++)
                for (uint32_t i = 0; p->slices[g] > 1 && i < p->slices[g]; i++)
                        cr_assert_geq(slice_bytes(l, p, g, i), PARTITION_SLICE_MIN,
                                      "group %u slice %u", g, i);
}

Test(partition, no_slice_is_smaller_than_the_minimum_where_a_group_is_cut)
{
        for_all(slices_are_not_too_small);
}

static void as_many_owners_as_possible(const layout *l, const struct partition *p)
{
        for (uint32_t g = 0; g < l->n_groups; g++) {
                uint64_t bytes = l->groups[g].elements * dtype_size(l->groups[g].dtype);
                uint64_t room = bytes / PARTITION_SLICE_MIN;
                if (bytes == 0)
                        cr_assert_eq(p->slices[g], 0);
                else if (room >= p->n_owners)
                        cr_assert_eq(p->slices[g], p->n_owners);
                else
                        cr_assert_eq(p->slices[g], room ? room : 1);
        }
}

Test(partition, a_group_has_as_many_owners_as_the_minimum_allows)
{
        for_all(as_many_owners_as_possible);
}

static void slices_are_even(const layout *l, const struct partition *p)
{
        for (uint32_t g = 0; g < l->n_groups; g++)
                for (uint32_t i = 1; i < p->slices[g]; i++) {
                        int64_t difference =
                                (int64_t)slice_bytes(l, p, g, i) - (int64_t)slice_bytes(l, p, g, 0);
                        int64_t unit = LAYOUT_ALIGN * (int64_t)dtype_size(l->groups[g].dtype);
                        cr_assert(difference >= -unit && difference <= unit);
                }
}

Test(partition, slices_of_a_group_differ_by_at_most_one_unit)
{
        for_all(slices_are_even);
}

static void slice_counts_are_balanced(const layout *l, const struct partition *p)
{
        uint32_t least = UINT32_MAX, most = 0;

        for (uint32_t o = 0; o < p->n_owners; o++) {
                uint32_t n = 0;
                for (uint32_t g = 0; g < l->n_groups; g++)
                        n += partition_range(p, g, o).count > 0;
                least = n < least ? n : least;
                most = n > most ? n : most;
        }
        cr_assert_leq(most - least, 1);
}

Test(partition, owners_hold_the_same_number_of_slices_give_or_take_one)
{
        for_all(slice_counts_are_balanced);
}

static void shares_add_up(const layout *l, const struct partition *p)
{
        uint64_t sum = 0;

        for (uint32_t o = 0; o < p->n_owners; o++)
                sum += partition_elements(p, o);
        cr_assert_eq(sum, l->elements);
}

Test(partition, shares_of_all_owners_add_up)
{
        for_all(shares_add_up);
}

static void check_balance(uint64_t elements, uint32_t n_groups, uint32_t n_owners)
{
        uint64_t sizes[64], least = UINT64_MAX, most = 0, largest = 0;
        struct partition *p;

        for (uint32_t g = 0; g < n_groups; g++)
                sizes[g] = elements;
        layout *l = layouts_sized(sizes, n_groups, ZERO_BF16);
        cr_assert_eq(partition_new(l, n_owners, &p), 0);
        for (uint32_t o = 0; o < n_owners; o++) {
                uint64_t n = partition_elements(p, o);
                least = n < least ? n : least;
                most = n > most ? n : most;
                uint64_t slice = partition_range(p, 0, o).count;
                largest = slice > largest ? slice : largest;
        }
        uint64_t cuts = (uint64_t)n_groups * LAYOUT_ALIGN;
        cr_assert_leq(most - least, largest + cuts, "%u groups of %zu over %u owners", n_groups,
                      (size_t)elements, n_owners);
        if (p->slices[0] == n_owners)
                cr_assert_leq(most - least, cuts);
        partition_free(p);
        layout_free(l);
}

Test(partition, loads_of_equal_groups_differ_by_less_than_a_slice_and_the_cuts)
{
        static const uint64_t sizes[] = { 1, 128, 32768, 65536, 100000, 500000, 7087872 };

        for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
                for (uint32_t groups = 1; groups <= 64; groups += 9)
                        for (uint32_t owners = 1; owners <= OWNERS; owners++)
                                check_balance(sizes[i], groups, owners);
}

Test(partition, the_first_owner_moves_on_by_the_slices)
{
        static const uint64_t sizes[] = { 1, 0, 65536, 1, 1, 1 };
        static const uint32_t start[] = { 0, 1, 1, 0, 1, 2 };
        layout *l = layouts_sized(sizes, 6, ZERO_BF16);
        struct partition *p;

        cr_assert_eq(partition_new(l, 3, &p), 0);
        for (uint32_t g = 0; g < 6; g++)
                cr_assert_eq(p->start[g], start[g], "group %u", g);
        partition_free(p);
        layout_free(l);
}

Test(partition, free_takes_null)
{
        partition_free(NULL);
}

/* ---- ranges ---- */

static void parts_cover(struct range whole, uint32_t parts)
{
        uint64_t at = whole.first, most = (whole.count / LAYOUT_ALIGN + parts - 1) / parts + 1;

        for (uint32_t i = 0; i < parts; i++) {
                struct range part = range_part(whole, i, parts);

                cr_assert_eq(part.first, at);
                cr_assert_leq(part.count, most * LAYOUT_ALIGN);
                cr_assert(i == 0 || (part.first - whole.first) % LAYOUT_ALIGN == 0);
                at += part.count;
        }
        cr_assert_eq(at, whole.first + whole.count);
}

Test(partition, parts_lie_one_behind_the_other_and_cover_a_range)
{
        static const uint64_t counts[] = { 0, 1, 127, 128, 129, 1280, 49999, 1 << 30 };

        for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
                for (uint32_t parts = 1; parts < 20; parts++)
                        parts_cover((struct range){ 12800 * i, counts[i] }, parts);
        for (uint32_t i = 0; i < 4; i++) /* parts that are equally large are no larger than that */
                cr_assert_eq(range_part((struct range){ 0, 4 << 20 }, i, 4).count, 1 << 20);
}

Test(partition, as_many_parts_as_must_be)
{
        static const uint64_t units[] = { 1, 2, 3, 7, 8, 9, 63, 64, 65, 1000, 1 << 20 };

        cr_assert_eq(range_parts(0, LAYOUT_ALIGN), 1);
        for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
                for (uint64_t most = 1; most < 70; most++) {
                        struct range whole = { 0, units[i] * LAYOUT_ALIGN };
                        uint32_t n = range_parts(whole.count, most * LAYOUT_ALIGN);

                        cr_assert_eq(n, (units[i] + most - 1) / most);
                        for (uint32_t k = 0; k < n; k++) {
                                uint64_t count = range_part(whole, k, n).count;

                                cr_assert(count > 0 && count <= most * LAYOUT_ALIGN);
                        }
                }
}

Test(partition, a_range_within_another)
{
        struct range outer = { 1000, 500 };

        cr_assert(range_within(outer, outer));
        cr_assert(range_within((struct range){ 1000, 1 }, outer));
        cr_assert(range_within((struct range){ 1499, 1 }, outer));
        cr_assert_not(range_within((struct range){ 1200, 0 }, outer));
        cr_assert_not(range_within((struct range){ 999, 2 }, outer));
        cr_assert_not(range_within((struct range){ 1499, 2 }, outer));
        cr_assert_not(range_within((struct range){ 1500, 1 }, outer));
        cr_assert_not(range_within((struct range){ 1001, UINT64_MAX }, outer));
        cr_assert_not(range_within((struct range){ UINT64_MAX, 2 }, outer));
        cr_assert_not(range_within((struct range){ 0, 1 }, (struct range){ 0, 0 }));
}
