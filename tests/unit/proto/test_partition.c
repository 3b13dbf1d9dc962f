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
        return dtype_bytes(l->groups[g].dtype,
                           partition_range(p, g, partition_owner(p, g, i)).count);
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
                uint64_t bytes = dtype_bytes(l->groups[g].dtype, l->groups[g].elements);
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
                        int64_t unit = LAYOUT_ALIGN * (int64_t)dtype_bytes(l->groups[g].dtype, 1);
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
                if (sizes[g])
                        cr_assert_eq(partition_owner(p, g, 0), start[g], "group %u", g);
        partition_free(p);
        layout_free(l);
}

/* ---- whole tensors ---- */

/* A random layout, with about half of its tensors whole. */
static layout *some_whole(uint64_t seed)
{
        struct rng rng = { seed };
        layout *l = layouts_random(seed);

        for (uint32_t t = 0; t < l->n_tensors; t++)
                if (rng_below(&rng, 2))
                        cr_assert_eq(layout_set_whole(l, t, NULL), 0);
        return l;
}

static void for_all_with_whole(property holds)
{
        for (uint32_t owners = 1; owners <= OWNERS; owners++)
                for (uint64_t seed = 0; seed < LAYOUTS; seed++) {
                        layout *l = some_whole(seed);
                        check(l, owners, holds);
                        layout_free(l);
                }
}

static void none_is_cut(const layout *l, const struct partition *p)
{
        for (uint32_t t = 0; t < l->n_tensors; t++) {
                const struct layout_tensor *tensor = &l->tensors[t];
                uint32_t holders = 0;

                for (uint32_t o = 0; o < p->n_owners; o++) {
                        struct range r = partition_range(p, tensor->group, o);

                        holders += r.first < tensor->offset + tensor->elements &&
                                   tensor->offset < r.first + r.count;
                }
                if (tensor->whole && tensor->elements)
                        cr_assert_eq(holders, 1, "tensor %u", t);
        }
}

Test(partition, one_owner_has_all_of_a_whole_tensor)
{
        for_all_with_whole(none_is_cut);
}

Test(partition, what_holds_of_slices_holds_with_whole_tensors_too)
{
        for_all_with_whole(slices_cover_the_group);
        for_all_with_whole(others_hold_nothing);
        for_all_with_whole(slices_are_aligned);
        for_all_with_whole(slices_are_not_too_small);
        for_all_with_whole(shares_add_up);
}

/* No owner has more than the mean and the largest slice: a share of a group, and a whole tensor.  A
 * trained element counts four times in what owners have. */
static void owners_are_near(const layout *l, const struct partition *p)
{
        uint64_t least = UINT64_MAX, most = 0, slice = 0, largest = 0, tensor = 0, heaviest = 0;

        for (uint32_t o = 0; o < p->n_owners; o++) {
                uint64_t sum = 0;

                for (uint32_t g = 0; g < l->n_groups; g++) {
                        struct range r = partition_range(p, g, o);
                        uint64_t n = r.count + 3 * partition_trainable(l, g, r);

                        sum += n;
                        heaviest = n > heaviest ? n : heaviest;
                }
                least = sum < least ? sum : least;
                most = sum > most ? sum : most;
        }
        for (uint32_t g = 0; g < l->n_groups; g++) {
                uint64_t share = l->groups[g].elements / p->n_owners;

                share = share > PARTITION_SLICE_MIN ? share : PARTITION_SLICE_MIN;
                largest = share > largest ? share : largest;
                for (uint32_t o = 0; o < p->n_owners; o++) {
                        uint64_t n = partition_range(p, g, o).count;

                        slice = n > slice ? n : slice;
                }
        }
        for (uint32_t t = 0; t < l->n_tensors; t++)
                if (l->tensors[t].whole && l->tensors[t].elements > tensor)
                        tensor = l->tensors[t].elements;
        cr_assert_leq(most - least, heaviest);
        cr_assert_leq(slice, largest + tensor + 2 * LAYOUT_ALIGN);
}

Test(partition, owners_differ_by_no_more_than_a_slice_of_a_group_with_whole_tensors)
{
        for_all_with_whole(owners_are_near);
}

static void add_tensors(layout *l, const char *group, const uint64_t *elements, uint32_t n,
                        uint32_t times, bool whole)
{
        uint32_t g, index;

        cr_assert_eq(layout_add_group(l, group, ZERO_BF16, NULL, 0, 0, &g, NULL), 0);
        for (uint32_t i = 0; i < n * times; i++) {
                char name[64];
                struct layout_tensor t = { .name = name,
                                           .group = g,
                                           .ndim = 1,
                                           .shape = { elements[i % n] },
                                           .whole = whole };

                snprintf(name, sizeof name, "%s.%u", group, i);
                cr_assert_eq(layout_add_tensor(l, &t, &index, NULL), 0);
        }
}

struct decoder {
        const char *name;
        uint64_t embedding, attention[5], expert[3];
        uint32_t experts, layers;
};

/* The largest share over the mean, if all matrices but the embeddings are whole, as for Muon. */
static double decoder_share(const struct decoder *d, uint32_t n_owners)
{
        uint64_t most = 0;
        struct partition *p;
        layout *l;

        cr_assert_eq(layout_new(&l), 0);
        add_tensors(l, "wte", &d->embedding, 1, 1, false);
        for (uint32_t i = 0; i < d->layers; i++) {
                char name[32];

                snprintf(name, sizeof name, "attention.%u", i);
                add_tensors(l, name, d->attention, 5, 1, true);
                snprintf(name, sizeof name, "experts.%u", i);
                add_tensors(l, name, d->expert, 3, d->experts, true);
        }
        add_tensors(l, "head", &d->embedding, 1, 1, false);
        cr_assert_eq(partition_new(l, n_owners, &p), 0);
        for (uint32_t o = 0; o < n_owners; o++)
                most = partition_elements(p, o) > most ? partition_elements(p, o) : most;
        double share = (double)most * n_owners / (double)l->elements;
        fprintf(stderr, "%s: %.3g parameters, %u owners, the largest share %.4f of the mean\n",
                d->name, (double)l->elements, n_owners, share);
        partition_free(p);
        layout_free(l);
        return share;
}

Test(partition, owners_of_whole_matrices_of_a_large_decoder_have_5_percent_more_at_most)
{
        static const struct decoder of_experts = { "mixture of experts",
                                                   163840 * UINT64_C(7168),
                                                   { 7168 * 1536, 1536 * 24576, 7168 * 576,
                                                     512 * 32768, 16384 * 7168 },
                                                   { 7168 * 2048, 7168 * 2048, 7168 * 2048 },
                                                   384,
                                                   61 };
        static const struct decoder dense = { "dense",
                                              128256 * UINT64_C(8192),
                                              { 8192 * 8192, 8192 * 1024, 8192 * 1024, 8192 * 8192,
                                                2 * 8192 },
                                              { 8192 * 28672, 8192 * 28672, 8192 * 28672 },
                                              1,
                                              80 };

        cr_assert_leq(decoder_share(&of_experts, 64), 1.05);
        cr_assert_leq(decoder_share(&of_experts, 8), 1.05);
        cr_assert_leq(decoder_share(&dense, 64), 1.05);
        cr_assert_leq(decoder_share(&dense, 8), 1.05);
        cr_assert_leq(decoder_share(&dense, 3), 1.05);
}

Test(partition, a_cut_in_the_middle_of_a_whole_tensor_moves_down)
{
        static const uint64_t elements = 1 << 20;
        struct partition *p;
        layout *l;

        cr_assert_eq(layout_new(&l), 0);
        add_tensors(l, "group", &elements, 1, 3, true);
        cr_assert_eq(partition_new(l, 2, &p), 0);
        cr_assert_eq(partition_range(p, 0, partition_owner(p, 0, 0)).count, elements);
        partition_free(p);
        layout_free(l);
}

/* Of two owners, dealt large slices in turn, the same one would get all that are left over. */
Test(partition, owners_exchange_slices_where_groups_of_two_kinds_take_turns)
{
        static const uint64_t one[] = { 10 << 17 }, two[] = { 10 << 17, 9 << 17 };
        struct partition *p;
        layout *l;

        cr_assert_eq(layout_new(&l), 0);
        for (uint32_t i = 0; i < 40; i++) {
                char name[16];

                snprintf(name, sizeof name, "%u", i);
                add_tensors(l, name, i % 2 ? two : one, 1 + i % 2, 1, true);
        }
        cr_assert_eq(partition_new(l, 2, &p), 0);
        owners_are_near(l, p);
        partition_free(p);
        layout_free(l);
}

/* Groups in turn: by elements alone, half of the owners would have all that is trained. */
Test(partition, owners_share_what_is_trained_where_frozen_groups_take_turns)
{
        static const uint64_t matrix = 1 << 24;
        struct partition *p;
        layout *l;

        cr_assert_eq(layout_new(&l), 0);
        for (uint32_t i = 0; i < 64; i++) {
                char name[16];

                snprintf(name, sizeof name, "%u", i);
                add_tensors(l, name, &matrix, 1, 2, true);
        }
        for (uint32_t t = 0; t < l->n_tensors; t++)
                l->tensors[t].frozen = t / 2 % 2 == 0;
        cr_assert_eq(partition_new(l, 8, &p), 0);
        owners_are_near(l, p);
        for (uint32_t o = 0; o < 8; o++) {
                uint64_t trained = 0;

                for (uint32_t g = 0; g < l->n_groups; g++)
                        trained += partition_trainable(l, g, partition_range(p, g, o));
                cr_assert_eq(trained, 8 * matrix, "owner %u has %lu", o, (unsigned long)trained);
        }
        partition_free(p);
        layout_free(l);
}

static uint64_t fingerprint(layout *(*make)(uint64_t seed))
{
        uint64_t sum = 0;

        for (uint64_t seed = 0; seed < LAYOUTS; seed++) {
                layout *l = make(seed);

                for (uint32_t owners = 1; owners <= OWNERS; owners++) {
                        struct partition *p;

                        cr_assert_eq(partition_new(l, owners, &p), 0);
                        for (uint32_t g = 0; g < l->n_groups; g++)
                                for (uint32_t o = 0; o < owners; o++) {
                                        struct range r = partition_range(p, g, o);

                                        sum = (sum ^ r.first) * UINT64_C(0x100000001b3);
                                        sum = (sum ^ r.count) * UINT64_C(0x100000001b3);
                                }
                        partition_free(p);
                }
                layout_free(l);
        }
        return sum;
}

/* Results of the release before: its states and messages are cut so. */
Test(partition, layouts_without_matrices_are_cut_as_ever)
{
        uint64_t cut = fingerprint(layouts_random), whole = fingerprint(some_whole);

        cr_assert_eq(cut, UINT64_C(0xcfe1925b6ab18e00), "%#lx", (unsigned long)cut);
        cr_assert_eq(whole, UINT64_C(0xae210cfbbb44e300), "%#lx", (unsigned long)whole);
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

static void slices_come_in_parts(const layout *l, const struct partition *p)
{
        const uint64_t most = 1 << 20;

        for (uint32_t g = 0; g < l->n_groups; g++)
                for (uint32_t i = 0; i < p->slices[g]; i++) {
                        struct range r = partition_range(p, g, partition_owner(p, g, i));
                        uint64_t of = most / layout_group_bytes(&l->groups[g], 1);
                        uint32_t needed = range_parts(r.count, of);
                        uint32_t n = partition_slice_parts(p, l, g, r, most);

                        cr_assert_leq(range_part(r, 0, n).count, of);
                        cr_assert(n == needed ||
                                  (n * p->slices[g] <= GROUP_PARTS && r.count >= of / 4 * n));
                        cr_assert((n + 1) * p->slices[g] > GROUP_PARTS ||
                                  r.count < of / 4 * (n + 1));
                        cr_assert_leq(n, partition_most_parts(p, l, g, most));
                }
}

Test(partition, large_slices_of_few_owners_come_in_parts_of_a_quarter_at_least)
{
        for_all(slices_come_in_parts);
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
