/* Building layouts: the places of tensors, and refusals. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "layouts.h"

static layout *l;
static struct fault fault;
static uint32_t group, tensor;

/* A layout with one group, 'g'. */
static void make_layout(void)
{
        cr_assert_eq(layout_new(&l), 0);
        cr_assert_eq(layout_add_group(l, "g", ZERO_BF16, NULL, 0, 0, &group, NULL), 0);
}

static void drop_layout(void)
{
        layout_free(l);
}

TestSuite(layout, .init = make_layout, .fini = drop_layout);

static int add(const struct layout_tensor *t)
{
        return layout_add_tensor(l, t, &tensor, &fault);
}

static void add_sized(char *name, uint64_t elements)
{
        struct layout_tensor t = {
                .name = name, .group = l->n_groups - 1, .ndim = 1, .shape = { elements }
        };
        cr_assert_eq(add(&t), 0);
}

static void assert_tensor_refused(const struct layout_tensor *t, const char *reason)
{
        uint32_t n = l->n_tensors;
        uint64_t elements = l->elements;

        fault = (struct fault){ 0 };
        cr_assert_eq(add(t), ZERO_EINVAL, "%s", reason);
        cr_assert_eq(fault.status, ZERO_EINVAL);
        cr_assert(strstr(fault.text, reason), "'%s' says nothing of '%s'", fault.text, reason);
        cr_assert(strstr(fault.text, "'g'"), "'%s' does not name the group", fault.text);
        cr_assert_eq(l->n_tensors, n);
        cr_assert_eq(l->elements, elements);
}

static void assert_group_refused(const char *name, uint32_t dtype, const uint32_t *ranks,
                                 uint32_t n_ranks, double divisor, const char *reason)
{
        uint32_t n = l->n_groups;

        fault = (struct fault){ 0 };
        int r = layout_add_group(l, name, (enum zero_dtype)dtype, ranks, n_ranks, divisor, &group,
                                 &fault);
        cr_assert_eq(r, ZERO_EINVAL, "%s", reason);
        cr_assert(strstr(fault.text, reason), "'%s' says nothing of '%s'", fault.text, reason);
        cr_assert(strstr(fault.text, "group 1"), "'%s' does not name the group", fault.text);
        cr_assert_eq(l->n_groups, n);
}

Test(layout, tensors_lie_aligned_one_behind_the_other)
{
        static const uint64_t sizes[] = { 1, 128, 129, 0, 5 };
        static const uint64_t offsets[] = { 0, 128, 256, 512, 512 };
        char name[2] = "a";

        for (int i = 0; i < 5; i++, name[0]++)
                add_sized(name, sizes[i]);
        for (int i = 0; i < 5; i++)
                cr_assert_eq(l->tensors[i].offset, offsets[i], "tensor %d", i);
        cr_assert_eq(l->groups[0].elements, 640);
        cr_assert_eq(l->elements, 640);
}

Test(layout, random_layouts_have_aligned_tensors_that_do_not_overlap)
{
        for (uint64_t seed = 0; seed < 300; seed++) {
                layout *random = layouts_random(seed);
                uint64_t total = 0;
                for (uint32_t g = 0; g < random->n_groups; g++) {
                        const struct layout_group *group_ = &random->groups[g];
                        uint64_t end = 0;
                        for (uint32_t i = 0; i < group_->n_tensors; i++) {
                                struct layout_tensor *t =
                                        &random->tensors[group_->first_tensor + i];
                                cr_assert_eq(t->group, g);
                                cr_assert_eq(t->offset % LAYOUT_ALIGN, 0);
                                cr_assert_geq(t->offset, end);
                                end = t->offset + t->elements;
                        }
                        cr_assert_geq(group_->elements, end);
                        cr_assert_lt(group_->elements, end + LAYOUT_ALIGN);
                        total += group_->elements;
                }
                cr_assert_eq(total, random->elements);
                layout_free(random);
        }
}

Test(layout, a_scalar_has_one_element)
{
        struct layout_tensor t = { .name = "s" };

        cr_assert_eq(add(&t), 0);
        cr_assert_eq(l->tensors[tensor].elements, 1);
}

Test(layout, an_extent_of_zero_makes_any_shape_empty)
{
        struct layout_tensor t = { .name = "z",
                                   .ndim = 3,
                                   .shape = { ZERO_GROUP_ELEMENTS_MAX, ZERO_GROUP_ELEMENTS_MAX,
                                              0 } };

        cr_assert_eq(add(&t), 0);
        cr_assert_eq(l->tensors[tensor].elements, 0);
        cr_assert_eq(l->elements, 0);
}

Test(layout, bytes_are_counted_in_words)
{
        struct layout_tensor t = {
                .name = "b", .ndim = 2, .shape = { 7, 73 }, .group = 1, .frozen = true
        };

        cr_assert_eq(layout_add_group(l, "bytes", ZERO_INT8, NULL, 0, 0, &group, NULL), 0);
        cr_assert_eq(add(&t), 0);
        cr_assert_eq(l->tensors[tensor].elements, 128);
        cr_assert_eq(l->tensors[tensor].shape[1], 73);
        t.name = "c";
        t.ndim = 0;
        cr_assert_eq(add(&t), 0);
        cr_assert_eq(l->tensors[tensor].offset, 128);
        cr_assert_eq(l->tensors[tensor].elements, 1);
        cr_assert_eq(layout_group_served(&l->groups[1]), 0);
}

Test(layout, bytes_are_neither_trained_nor_drawn_nor_eager)
{
        struct layout_tensor t = { .name = "b", .ndim = 1, .shape = { 5 } };

        l->groups[0].dtype = ZERO_FP8_E4M3;
        assert_tensor_refused(&t, "is not frozen");
        t.frozen = true;
        t.init = ZERO_INIT_NORMAL;
        assert_tensor_refused(&t, "begin as zeros or are put");
        t.init = ZERO_INIT_CONSTANT;
        assert_tensor_refused(&t, "begin as zeros or are put");
        t.init = ZERO_INIT_PUT;
        cr_assert_eq(add(&t), 0);
        cr_assert_eq(layout_set_eager(l, 0, false, &fault), 0);
        cr_assert_eq(layout_set_eager(l, 0, true, &fault), ZERO_EINVAL);
        cr_assert(strstr(fault.text, "'g'") && strstr(fault.text, "eager"), "%s", fault.text);
}

/* The layout takes any name for a format; jobs do not (daemon/compute/optimizer). */
Test(layout, pairs_of_formats_are_counted_and_bounded)
{
        struct layout_formats formats[LAYOUT_FORMATS_MAX];
        char name[16];

        cr_assert_eq(layout_formats(l, formats), 0, "fp32 is told");
        for (int i = 0; i < 60; i++) {
                snprintf(name, sizeof name, "g%d", i);
                cr_assert_eq(layout_add_group(l, name, ZERO_BF16, NULL, 0, 0, &group, NULL), 0);
                snprintf(name, sizeof name, "f%d", i % 20);
                cr_assert_eq(layout_set_state(l, group, i % 20 ? name : "8bit",
                                              i % 20 ? NULL : "bf16+8", NULL),
                             0);
        }
        cr_assert_eq(layout_formats(l, formats), LAYOUT_FORMATS_MAX);
        cr_assert_str_eq(formats[0].state, "8bit");
        cr_assert_str_eq(formats[0].master, "bf16+8");
        for (uint32_t i = 0; i < LAYOUT_FORMATS_MAX; i++)
                cr_assert_eq(formats[i].n_groups, 3);
        cr_assert_str_eq(formats[15].state, "f15");
        cr_assert_str_eq(formats[15].master, "fp32");
}

Test(layout, indices_count_through_the_layout)
{
        add_sized("a", 1);
        add_sized("b", 1);
        cr_assert_eq(tensor, 1);
        cr_assert_eq(layout_add_group(l, "h", ZERO_FP32, NULL, 0, 0, &group, NULL), 0);
        cr_assert_eq(group, 1);
        add_sized("c", 1);
        cr_assert_eq(tensor, 2);
        cr_assert_eq(l->groups[1].first_tensor, 2);
        cr_assert_eq(l->groups[1].n_tensors, 1);
}

Test(layout, strings_and_ranks_are_copied)
{
        char name[] = "mine";
        uint32_t ranks[] = { 1, 2 };

        cr_assert_eq(layout_add_group(l, name, ZERO_FP32, ranks, 2, 0, &group, NULL), 0);
        name[0] = 'M';
        ranks[0] = 0;
        cr_assert_str_eq(l->groups[1].name, "mine");
        cr_assert_eq(l->groups[1].ranks[0], 1);
}

Test(layout, the_longest_name_is_allowed)
{
        char name[ZERO_NAME_MAX + 2] = "";

        memset(name, 'n', ZERO_NAME_MAX);
        add_sized(name, 1);
        name[ZERO_NAME_MAX] = 'n';
        assert_tensor_refused(&(struct layout_tensor){ .name = name }, "255 bytes");
        assert_group_refused(name, ZERO_FP32, NULL, 0, 0, "255 bytes");
}

Test(layout, names_are_there_and_printable)
{
        assert_tensor_refused(&(struct layout_tensor){ .name = NULL }, "no name");
        assert_tensor_refused(&(struct layout_tensor){ .name = "" }, "no name");
        assert_tensor_refused(&(struct layout_tensor){ .name = "a\nb" }, "control characters");
        assert_tensor_refused(&(struct layout_tensor){ .name = "\xff" }, "UTF-8");
        assert_group_refused(NULL, ZERO_FP32, NULL, 0, 0, "no name");
        assert_group_refused("", ZERO_FP32, NULL, 0, 0, "no name");
        assert_group_refused("\x1b[2J", ZERO_FP32, NULL, 0, 0, "control characters");
}

Test(layout, dtype_must_be_known)
{
        assert_group_refused("x", 0, NULL, 0, 0, "dtype");
        assert_group_refused("x", 9, NULL, 0, 0, "dtype");
        assert_group_refused("x", UINT32_MAX, NULL, 0, 0, "dtype");
}

Test(layout, divisor_is_finite_and_not_negative)
{
        assert_group_refused("x", ZERO_FP32, NULL, 0, -1, "divisor");
        assert_group_refused("x", ZERO_FP32, NULL, 0, INFINITY, "divisor");
        assert_group_refused("x", ZERO_FP32, NULL, 0, NAN, "divisor");
        assert_group_refused("x", ZERO_FP32, NULL, 0, 9e-31, "divisor");
        assert_group_refused("x", ZERO_FP32, NULL, 0, -0.5, "divisor");
}

Test(layout, ranks_ascend_within_the_limit)
{
        static const uint32_t twice[] = { 0, 3, 3 }, down[] = { 2, 1 },
                              far[] = { 0, ZERO_RANK_MAX };
        uint32_t *many = calloc(ZERO_RANK_MAX + 1, sizeof(*many));

        assert_group_refused("x", ZERO_FP32, twice, 3, 0, "ascending");
        assert_group_refused("x", ZERO_FP32, down, 2, 0, "ascending");
        assert_group_refused("x", ZERO_FP32, far, 2, 0, "4096 or more");
        assert_group_refused("x", ZERO_FP32, far, 0, 0, "empty list");
        assert_group_refused("x", ZERO_FP32, NULL, 1, 0, "no list");
        assert_group_refused("x", ZERO_FP32, many, ZERO_RANK_MAX + 1, 0, "more than 4096");
        free(many);
}

Test(layout, shapes_are_bounded)
{
        struct layout_tensor t = { .name = "t", .ndim = ZERO_DIM_MAX + 1 };

        assert_tensor_refused(&t, "dimensions");
        t.ndim = UINT32_MAX;
        assert_tensor_refused(&t, "dimensions");
        t.ndim = 2;
        t.shape[0] = 0;
        t.shape[1] = ZERO_GROUP_ELEMENTS_MAX + 1;
        assert_tensor_refused(&t, "extent");
        t.shape[0] = 2;
        t.shape[1] = ZERO_GROUP_ELEMENTS_MAX;
        assert_tensor_refused(&t, "elements");
        t.ndim = ZERO_DIM_MAX;
        for (int i = 0; i < ZERO_DIM_MAX; i++)
                t.shape[i] = (uint64_t)1 << 32; /* the product is 0 in 64 bits */
        assert_tensor_refused(&t, "elements");
}

Test(layout, a_group_is_bounded_in_all)
{
        add_sized("half", ZERO_GROUP_ELEMENTS_MAX / 2);
        add_sized("other", ZERO_GROUP_ELEMENTS_MAX / 2);
        assert_tensor_refused(&(struct layout_tensor){ .name = "one" }, "its group");
        cr_assert_eq(l->groups[0].elements, ZERO_GROUP_ELEMENTS_MAX);
}

Test(layout, sets_and_initial_values_are_bounded)
{
        struct layout_tensor t = { .name = "t", .set = ZERO_SET_MAX };

        assert_tensor_refused(&t, "set");
        t.set = 0;
        t.init = (enum zero_init)4;
        assert_tensor_refused(&t, "initialisation");
        t.init = ZERO_INIT_CONSTANT;
        t.init_value = NAN;
        assert_tensor_refused(&t, "initial value");
        t.init_value = -INFINITY;
        assert_tensor_refused(&t, "initial value");
        t.init_value = 1e39;
        assert_tensor_refused(&t, "initial value");
        t.init = ZERO_INIT_NORMAL;
        t.init_value = -1;
        assert_tensor_refused(&t, "deviation");
        t.init = ZERO_INIT_CONSTANT;
        cr_assert_eq(add(&t), 0);
}

Test(layout, only_the_last_group_takes_tensors)
{
        struct layout_tensor t = { .name = "t", .group = 2 };

        cr_assert_eq(add(&t), ZERO_ENOGROUP);
        cr_assert_eq(layout_add_group(l, "h", ZERO_FP32, NULL, 0, 0, &group, NULL), 0);
        t.group = 0;
        cr_assert_eq(add(&t), ZERO_EINVAL);
        cr_assert(strstr(fault.text, "group 0"));
}

Test(layout, groups_are_bounded_in_number)
{
        char name[16];

        for (uint32_t i = 1; i < ZERO_GROUP_MAX; i++) {
                snprintf(name, sizeof(name), "%u", i);
                cr_assert_eq(layout_add_group(l, name, ZERO_FP32, NULL, 0, 0, &group, NULL), 0);
        }
        cr_assert_eq(layout_check(l, &fault), 0);
        cr_assert_eq(layout_add_group(l, "one more", ZERO_FP32, NULL, 0, 0, &group, &fault),
                     ZERO_EINVAL);
        cr_assert(strstr(fault.text, "65536"));
}

Test(layout, tensors_are_bounded_in_number)
{
        char name[16];

        for (uint32_t i = 0; i < ZERO_TENSOR_MAX; i++) {
                snprintf(name, sizeof(name), "%u", i);
                add_sized(name, 0);
        }
        cr_assert_eq(layout_check(l, &fault), 0);
        assert_tensor_refused(&(struct layout_tensor){ .name = "one more" }, "262144");
}

Test(layout, check_wants_a_group)
{
        layout *empty;

        cr_assert_eq(layout_new(&empty), 0);
        cr_assert_eq(layout_check(empty, &fault), ZERO_EINVAL);
        cr_assert_eq(layout_check(l, &fault), 0);
        layout_free(empty);
}

Test(layout, check_finds_two_tensors_of_one_name)
{
        add_sized("a", 1);
        add_sized("b", 1);
        cr_assert_eq(layout_add_group(l, "h", ZERO_FP32, NULL, 0, 0, &group, NULL), 0);
        add_sized("a", 1);
        cr_assert_eq(layout_check(l, &fault), ZERO_EINVAL);
        cr_assert_str_eq(fault.text, "two tensors are named 'a'");
}

Test(layout, check_finds_two_groups_of_one_name)
{
        cr_assert_eq(layout_add_group(l, "h", ZERO_FP32, NULL, 0, 0, &group, NULL), 0);
        cr_assert_eq(layout_add_group(l, "g", ZERO_FP32, NULL, 0, 0, &group, NULL), 0);
        cr_assert_eq(layout_check(l, &fault), ZERO_EINVAL);
        cr_assert_str_eq(fault.text, "two groups are named 'g'");
}

Test(layout, a_group_has_the_ranks_it_lists)
{
        static const uint32_t ranks[] = { 1, 2, 7, 30 };

        cr_assert_eq(layout_add_group(l, "h", ZERO_FP32, ranks, 4, 0, &group, NULL), 0);
        for (uint32_t rank = 0; rank < 40; rank++) {
                bool listed = rank == 1 || rank == 2 || rank == 7 || rank == 30;
                cr_assert(layout_group_has_rank(&l->groups[0], rank));
                cr_assert_eq(layout_group_has_rank(&l->groups[1], rank), listed, "rank %u", rank);
        }
}

Test(layout, the_divisor_is_the_number_of_ranks_unless_given)
{
        static const uint32_t ranks[] = { 0, 1, 2 };

        layout_add_group(l, "h", ZERO_FP32, ranks, 3, 0, &group, NULL);
        layout_add_group(l, "i", ZERO_FP32, ranks, 3, 2.5, &group, NULL);
        cr_assert(layout_group_divisor(&l->groups[0], 8) == 8);
        cr_assert(layout_group_divisor(&l->groups[1], 8) == 3);
        cr_assert(layout_group_divisor(&l->groups[2], 8) == 2.5);
}

Test(layout, a_group_is_trainable_if_any_tensor_is)
{
        struct layout_tensor t = { .name = "frozen", .frozen = true };

        cr_assert(!layout_group_trainable(l, 0));
        cr_assert_eq(add(&t), 0);
        cr_assert(!layout_group_trainable(l, 0));
        add_sized("free", 1);
        cr_assert(layout_group_trainable(l, 0));
}

Test(layout, free_takes_null)
{
        layout_free(NULL);
}
