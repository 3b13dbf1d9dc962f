/* What ranks bring becomes one layout, whatever their number and order. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "layouts.h"

enum { TEXT = 512 };

/* Adds a group with one tensor of its name. */
static void add(layout *l, const char *name, uint64_t elements)
{
        struct layout_tensor t = { .name = (char *)name, .ndim = 1, .shape = { elements } };
        uint32_t index;

        cr_assert_eq(layout_add_group(l, name, ZERO_FP32, NULL, 0, 2, &t.group, NULL), 0);
        cr_assert_eq(layout_add_tensor(l, &t, &index, NULL), 0);
}

/* names: one character a group. */
static layout *part_of(const char *names)
{
        layout *l;

        cr_assert_eq(layout_new(&l), 0);
        for (; *names; names++) {
                char name[] = { *names, '\0' };

                add(l, name, (uint64_t)*names);
        }
        return l;
}

static void names_of(const layout *l, char *ret)
{
        for (uint32_t g = 0; g < l->n_groups; g++)
                ret[g] = l->groups[g].name[0];
        ret[l->n_groups] = '\0';
}

static void free_parts(struct layout_part *parts, uint32_t n)
{
        for (uint32_t r = 0; r < n; r++)
                layout_free((layout *)parts[r].layout);
}

Test(layout_compose, order_is_by_stage_then_rank_then_part)
{
        struct layout_part parts[] = { { part_of("xyT"), 2 },
                                       { part_of("Tab"), 0 },
                                       { part_of("Tcb"), 0 },
                                       { part_of("d"), 1 } };
        static const uint32_t tied[] = { 0, 1, 2 }, both[] = { 1, 2 };
        char names[20];
        layout *whole;

        cr_assert_eq(layout_compose(parts, 4, &whole, NULL), 0);
        names_of(whole, names);
        cr_assert_str_eq(names, "Tabcdxy");
        cr_assert_eq(whole->groups[0].n_ranks, 3);
        cr_assert_arr_eq(whole->groups[0].ranks, tied, sizeof(tied));
        cr_assert_arr_eq(whole->groups[2].ranks, both, sizeof(both));
        cr_assert_eq(whole->groups[0].divisor, 2);
        layout_free(whole);
        free_parts(parts, 4);
}

Test(layout_compose, a_group_of_all_ranks_lists_none)
{
        struct layout_part parts[] = { { part_of("ab"), 0 }, { part_of("ba"), 0 } };
        layout *whole, *plain = part_of("ab");
        char text[TEXT];

        cr_assert_eq(layout_compose(parts, 2, &whole, NULL), 0);
        cr_assert(layout_equal(whole, plain, text, sizeof(text)), "%s", text);
        layout_free(whole);
        layout_free(plain);
        free_parts(parts, 2);
}

/* Each rank's part is in the whole, and nothing else is. */
Test(layout_compose, every_group_has_exactly_the_ranks_that_bring_it)
{
        struct rng rng = { 7 };

        for (int round = 0; round < 200; round++) {
                uint32_t n = 1 + rng_below(&rng, 12), brought = 0, listed = 0;
                struct layout_part parts[12];
                char text[TEXT];
                layout *whole;

                for (uint32_t r = 0; r < n; r++) {
                        char names[27] = "";

                        for (char c = 'a'; c <= 'z'; c++)
                                if (rng_below(&rng, 3) == 0 || c == 'q')
                                        strncat(names, &c, 1);
                        parts[r] = (struct layout_part){ part_of(names), rng_below(&rng, 4) };
                        brought += (uint32_t)strlen(names);
                }
                cr_assert_eq(layout_compose(parts, n, &whole, NULL), 0);
                cr_assert_eq(layout_check(whole, NULL), 0);
                for (uint32_t g = 0; g < whole->n_groups; g++)
                        listed += whole->groups[g].ranks ? whole->groups[g].n_ranks : n;
                cr_assert_eq(listed, brought);
                for (uint32_t r = 0; r < n; r++)
                        cr_assert(layout_has_part(whole, parts[r].layout, r, text, sizeof(text)),
                                  "%s", text);
                layout_free(whole);
                free_parts(parts, n);
        }
}

static void assert_refused(struct layout_part *parts, uint32_t n, int status, const char *text)
{
        struct fault fault = { 0 };
        layout *whole;

        cr_assert_eq(layout_compose(parts, n, &whole, &fault), status);
        cr_assert_str_eq(fault.text, text);
        free_parts(parts, n);
}

Test(layout_compose, what_does_not_fit_is_refused_by_name)
{
        struct layout_part other[] = { { part_of("ab"), 0 }, { part_of("a"), 1 } };
        struct layout_part twice[] = { { part_of("ab"), 0 }, { part_of("c"), 1 } };
        struct layout_part listing[] = { { part_of("a"), 0 }, { part_of("b"), 1 } };
        struct layout_tensor t = { .name = "b", .ndim = 0 };
        uint32_t index, rank = 1;

        ((layout *)other[1].layout)->groups[0].divisor = 1;
        assert_refused(other, 2, ZERO_ELAYOUT,
                       "ranks 0 and 1 bring group 'a' differently: group 0 'a': divisor 2 here, 1 "
                       "there");
        cr_assert_eq(layout_add_tensor((layout *)twice[1].layout, &t, &index, NULL), 0);
        assert_refused(twice, 2, ZERO_ELAYOUT,
                       "two tensors are named 'b': a tensor of several stages is in one group, "
                       "which all its ranks bring alike");
        cr_assert_eq(layout_add_group((layout *)listing[1].layout, "c", ZERO_FP32, &rank, 1, 0,
                                      &index, NULL),
                     0);
        assert_refused(
                listing, 2, ZERO_EINVAL,
                "group 'c' of rank 1 lists ranks: leave the list out, the group has the ranks "
                "that bring it");
}

Test(layout_compose, another_part_is_not_the_ranks)
{
        struct layout_part parts[] = { { part_of("Tab"), 0 }, { part_of("cT"), 1 } };
        layout *others[] = { part_of("Ta"), part_of("Tabc"), part_of("Tac"), part_of("Tab") };
        static const char *const said[] = { "2 groups here, 3 of rank 0 there",
                                            "group 'c' is not one of rank 0 there",
                                            "group 'c' is not one of rank 0 there",
                                            "group 1 'a': divisor 3 here, 2 there" };
        char text[TEXT];
        layout *whole;

        others[3]->groups[1].divisor = 3;
        cr_assert_eq(layout_compose(parts, 2, &whole, NULL), 0);
        for (int i = 0; i < 4; i++) {
                cr_assert(!layout_has_part(whole, others[i], 0, text, sizeof(text)));
                cr_assert_str_eq(text, said[i]);
                layout_free(others[i]);
        }
        layout_free(whole);
        free_parts(parts, 2);
}
