/* Equality and hash see every field, and agree with each other. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "layouts.h"

enum { TEXT = 512 };

/* Two groups; the second with ranks, a divisor and two tensors. */
static layout *sample(void)
{
        static const uint32_t ranks[] = { 0, 1, 5 };
        uint32_t index;
        layout *l;
        struct layout_tensor t = { .name = "wte",
                                   .group = 1,
                                   .ndim = 2,
                                   .shape = { 50257, 768 },
                                   .set = 1,
                                   .init = ZERO_INIT_NORMAL,
                                   .init_value = 0.02,
                                   .init_seed = 7 };

        cr_assert_eq(layout_new(&l), 0);
        cr_assert_eq(layout_add_group(l, "h.1", ZERO_FP32, NULL, 0, 0, &index, NULL), 0);
        cr_assert_eq(layout_add_group(l, "h.2", ZERO_BF16, ranks, 3, 2, &index, NULL), 0);
        cr_assert_eq(layout_add_tensor(l, &t, &index, NULL), 0);
        t.name = "scalar";
        t.ndim = 0;
        cr_assert_eq(layout_add_tensor(l, &t, &index, NULL), 0);
        return l;
}

static bool same_hash(const layout *a, const layout *b)
{
        uint8_t x[LAYOUT_HASH], y[LAYOUT_HASH];

        layout_hash(a, x);
        layout_hash(b, y);
        return memcmp(x, y, LAYOUT_HASH) == 0;
}

/* Compares with an untouched sample: they must differ, and the text say so. */
static void assert_differs(layout *changed, const char *expected)
{
        layout *original = sample();
        char text[TEXT] = "";

        cr_assert(!layout_equal(original, changed, text, sizeof(text)), "%s", expected);
        cr_assert_str_eq(text, expected);
        cr_assert(!layout_equal(changed, original, text, sizeof(text)), "%s", expected);
        cr_assert(!same_hash(original, changed), "%s", expected);
        layout_free(original);
        layout_free(changed);
}

Test(layout_compare, equal_layouts_are_equal)
{
        for (uint64_t seed = 0; seed < 100; seed++) {
                layout *a = layouts_random(seed), *b = layouts_random(seed);
                cr_assert(layout_equal(a, b, NULL, 0));
                cr_assert(same_hash(a, b));
                layout_free(a);
                layout_free(b);
        }
}

Test(layout_compare, random_layouts_differ)
{
        for (uint64_t seed = 0; seed < 100; seed++) {
                layout *a = layouts_random(seed), *b = layouts_random(seed + 1000);
                char text[TEXT] = "";
                cr_assert(!layout_equal(a, b, text, sizeof(text)));
                cr_assert(text[0]);
                cr_assert(!same_hash(a, b));
                layout_free(a);
                layout_free(b);
        }
}

Test(layout_compare, group_name)
{
        layout *l = sample();
        l->groups[1].name[2] = '3';
        assert_differs(l, "group 1: named 'h.2' here, 'h.3' there");
}

Test(layout_compare, group_dtype)
{
        layout *l = sample();
        l->groups[1].dtype = ZERO_FP16;
        assert_differs(l, "group 1 'h.2': dtype bf16 here, fp16 there");
}

Test(layout_compare, group_ranks)
{
        layout *l = sample();
        l->groups[1].ranks[2] = 6;
        assert_differs(l, "group 1 'h.2': ranks 0, 1, 5 here, 0, 1, 6 there");
}

Test(layout_compare, group_has_all_ranks)
{
        layout *l = sample();
        free(l->groups[1].ranks);
        l->groups[1].ranks = NULL;
        l->groups[1].n_ranks = 0;
        assert_differs(l, "group 1 'h.2': ranks 0, 1, 5 here, all there");
}

Test(layout_compare, group_divisor)
{
        layout *l = sample();
        l->groups[1].divisor = nextafter(2, 3);
        assert_differs(l, "group 1 'h.2': divisor 2 here, 2.0000000000000004 there");
}

Test(layout_compare, group_formats)
{
        layout *l = sample();

        cr_assert_eq(layout_set_state(l, 1, "8bit", NULL, NULL), 0);
        assert_differs(l, "group 1 'h.2': moments in fp32 here, in 8bit there");
        l = sample();
        cr_assert_eq(layout_set_state(l, 1, "fp32", "bf16+8", NULL), 0);
        assert_differs(l, "group 1 'h.2': master weights in fp32 here, in bf16+8 there");
}

Test(layout_compare, number_of_groups)
{
        layout *l = sample();
        uint32_t index;
        layout_add_group(l, "tail", ZERO_FP32, NULL, 0, 0, &index, NULL);
        assert_differs(l, "2 groups here, 3 there");
}

Test(layout_compare, number_of_tensors)
{
        layout *l = sample();
        struct layout_tensor t = { .name = "tail", .group = 1 };
        uint32_t index;
        layout_add_tensor(l, &t, &index, NULL);
        assert_differs(l, "group 1 'h.2': 2 tensors here, 3 there");
}

Test(layout_compare, tensor_name)
{
        layout *l = sample();
        l->tensors[0].name[2] = 'f';
        assert_differs(l, "group 1 'h.2', tensor 0: named 'wte' here, 'wtf' there");
}

Test(layout_compare, tensor_shape)
{
        layout *l = sample();
        l->tensors[0].shape[0] = 50304;
        assert_differs(l, "group 1 'h.2', tensor 'wte': shape [50257, 768] here, "
                          "[50304, 768] there");
}

Test(layout_compare, tensor_dimensions)
{
        layout *l = sample();
        l->tensors[1].ndim = 1;
        l->tensors[1].shape[0] = 1;
        assert_differs(l, "group 1 'h.2', tensor 'scalar': shape [] here, [1] there");
}

Test(layout_compare, tensor_frozen)
{
        layout *l = sample();
        l->tensors[0].frozen = true;
        assert_differs(l, "group 1 'h.2', tensor 'wte': trainable here, frozen there");
}

Test(layout_compare, tensor_whole)
{
        layout *l = sample();
        l->tensors[0].whole = true;
        assert_differs(l, "group 1 'h.2', tensor 'wte': not whole here, whole there");
}

Test(layout_compare, tensor_set)
{
        layout *l = sample();
        l->tensors[0].set = 0;
        assert_differs(l, "group 1 'h.2', tensor 'wte': set 1 here, 0 there");
}

Test(layout_compare, tensor_init)
{
        layout *l = sample();
        l->tensors[0].init = ZERO_INIT_CONSTANT;
        assert_differs(l, "group 1 'h.2', tensor 'wte': init 2 here, 1 there");
}

Test(layout_compare, tensor_init_value)
{
        layout *l = sample();
        l->tensors[1].init_value = 0.5;
        assert_differs(l, "group 1 'h.2', tensor 'scalar': init_value 0.02 here, 0.5 there");
}

Test(layout_compare, tensor_init_seed)
{
        layout *l = sample();
        l->tensors[0].init_seed = UINT64_MAX;
        assert_differs(l, "group 1 'h.2', tensor 'wte': init_seed 7 here, "
                          "18446744073709551615 there");
}

Test(layout_compare, a_tensor_in_another_group_makes_a_difference)
{
        layout *l;
        struct layout_tensor t = { .name = "t" };
        uint32_t index;
        uint8_t hashes[2][LAYOUT_HASH];

        for (uint32_t g = 0; g < 2; g++) {
                t.group = g;
                cr_assert_eq(layout_new(&l), 0);
                layout_add_group(l, "a", ZERO_FP32, NULL, 0, 0, &index, NULL);
                if (g == 0)
                        cr_assert_eq(layout_add_tensor(l, &t, &index, NULL), 0);
                layout_add_group(l, "b", ZERO_FP32, NULL, 0, 0, &index, NULL);
                if (g == 1)
                        cr_assert_eq(layout_add_tensor(l, &t, &index, NULL), 0);
                layout_hash(l, hashes[g]);
                layout_free(l);
        }
        cr_assert_neq(memcmp(hashes[0], hashes[1], LAYOUT_HASH), 0);
}

Test(layout_compare, a_small_buffer_is_not_overrun)
{
        layout *a = sample(), *b = sample();
        char text[8] = "1234567";

        b->tensors[0].set = 0;
        cr_assert(!layout_equal(a, b, text, 4));
        cr_assert_str_eq(text, "gro");
        cr_assert_eq(text[4], '5');
        layout_free(a);
        layout_free(b);
}

Test(layout_compare, a_copy_is_equal_and_apart)
{
        layout *a = sample(), *b;

        cr_assert_eq(layout_copy(a, &b), 0);
        cr_assert(layout_equal(a, b, NULL, 0));
        cr_assert_neq(a->groups[1].name, b->groups[1].name);
        cr_assert_neq(a->groups[1].ranks, b->groups[1].ranks);
        layout_free(a);
        cr_assert_eq(b->tensors[0].elements, 50257 * 768);
        layout_free(b);
}
