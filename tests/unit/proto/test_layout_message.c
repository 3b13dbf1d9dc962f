/* Layouts through messages: a valid layout survives, and a malformed one is refused by name. */
#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "layouts.h"
#include "proto/text.h"
#include "tests/support/refusing.h"

static Zero__Layout *message;

/* A valid message of two groups, 'a' with tensors 't' and 'u', 'b' with 'v'. */
static void make_message(void)
{
        static const uint32_t ranks[] = { 0, 1 };
        static const char *const names[] = { "t", "u", "v" };
        uint32_t index;
        layout *l;

        cr_assert_eq(layout_new(&l), 0);
        for (uint32_t i = 0; i < 3; i++) {
                struct layout_tensor t = { .name = (char *)names[i], .ndim = 2, .shape = { 3, 4 } };
                if (i != 1)
                        layout_add_group(l, i ? "b" : "a", ZERO_BF16, ranks, 2, 0, &index, NULL);
                t.group = l->n_groups - 1;
                cr_assert_eq(layout_add_tensor(l, &t, &index, NULL), 0);
        }
        cr_assert_eq(layout_to_message(l, &message), 0);
        layout_free(l);
}

static void drop_message(void)
{
        zero__layout__free_unpacked(message, NULL);
}

TestSuite(layout_message, .init = make_message, .fini = drop_message);

static void assert_refused(const char *reason)
{
        struct fault fault = { 0 };
        layout *l = NULL;

        cr_assert_eq(layout_from_message(message, &l, &fault), ZERO_EINVAL, "%s", reason);
        cr_assert_null(l);
        cr_assert_eq(fault.status, ZERO_EINVAL);
        cr_assert(text_printable(fault.text));
        cr_assert(strstr(fault.text, reason), "'%s' says nothing of '%s'", fault.text, reason);
}

static void rename_to(char **name, const char *to)
{
        free(*name);
        *name = strdup(to);
}

static Zero__Group *second_group(void)
{
        return message->groups[1];
}

static Zero__Tensor *second_tensor(void)
{
        return message->groups[0]->tensors[1];
}

Test(layout_message, layouts_survive_the_way_through_packed_messages)
{
        for (uint64_t seed = 0; seed < 200; seed++) {
                layout *l = layouts_random(seed), *back;
                Zero__Layout *m;

                cr_assert_eq(layout_to_message(l, &m), 0);
                size_t n = zero__layout__get_packed_size(m);
                uint8_t *packed = malloc(n + 1);
                cr_assert_eq(zero__layout__pack(m, packed), n);
                zero__layout__free_unpacked(m, NULL);
                m = zero__layout__unpack(NULL, n, packed);
                cr_assert_not_null(m);
                cr_assert_eq(layout_from_message(m, &back, NULL), 0);
                cr_assert(layout_equal(l, back, NULL, 0), "seed %u", (unsigned)seed);
                cr_assert_eq(l->elements, back->elements);
                zero__layout__free_unpacked(m, NULL);
                free(packed);
                layout_free(l);
                layout_free(back);
        }
}

Test(layout_message, the_sample_is_accepted)
{
        layout *l;

        cr_assert_eq(layout_from_message(message, &l, NULL), 0);
        cr_assert_eq(l->n_groups, 2);
        cr_assert_eq(l->n_tensors, 3);
        layout_free(l);
}

Test(layout_message, an_absent_layout_is_refused)
{
        struct fault fault = { 0 };
        layout *l;

        cr_assert_eq(layout_from_message(NULL, &l, &fault), ZERO_EINVAL);
        cr_assert(fault.text[0]);
}

Test(layout_message, a_layout_without_groups_is_refused)
{
        Zero__Layout empty = ZERO__LAYOUT__INIT;
        struct fault fault = { 0 };
        layout *l;

        cr_assert_eq(layout_from_message(&empty, &l, &fault), ZERO_EINVAL);
        cr_assert_str_eq(fault.text, "the layout has no groups");
}

Test(layout_message, group_names)
{
        rename_to(&second_group()->name, "");
        assert_refused("group 1 has no name");
        rename_to(&second_group()->name, "b\x7f");
        assert_refused("group 1 has a name with control characters");
        rename_to(&second_group()->name, "a");
        assert_refused("two groups are named 'a'");
}

Test(layout_message, tensor_names)
{
        rename_to(&second_tensor()->name, "");
        assert_refused("tensor 1 of group 'a' has no name");
        rename_to(&second_tensor()->name, "\xed\xa0\x80");
        assert_refused("not UTF-8");
        rename_to(&second_tensor()->name, "v");
        assert_refused("two tensors are named 'v'");
}

Test(layout_message, dtype)
{
        second_group()->dtype = 0;
        assert_refused("group 1 'b' has an unknown dtype");
        second_group()->dtype = 0x80000001;
        assert_refused("group 1 'b' has an unknown dtype");
}

Test(layout_message, ranks)
{
        second_group()->ranks[1] = 0;
        assert_refused("group 1 'b' does not list its ranks in ascending order");
        second_group()->ranks[1] = ZERO_RANK_MAX;
        assert_refused("group 1 'b' lists a rank of 4096 or more");
}

Test(layout_message, divisor)
{
        second_group()->divisor = NAN;
        assert_refused("group 1 'b' has a divisor");
        second_group()->divisor = -0.5;
        assert_refused("group 1 'b' has a divisor");
}

Test(layout_message, dimensions)
{
        Zero__Tensor *t = second_tensor();

        t->shape = realloc(t->shape, 9 * sizeof(*t->shape));
        for (t->n_shape = 0; t->n_shape < 9; t->n_shape++)
                t->shape[t->n_shape] = 1;
        assert_refused("tensor 'u' of group 'a' has more than 8 dimensions");
}

Test(layout_message, extents)
{
        second_tensor()->shape[0] = UINT64_MAX;
        assert_refused("tensor 'u' of group 'a' has an extent");
        second_tensor()->shape[0] = (uint64_t)1 << 39;
        assert_refused("tensor 'u' of group 'a' has more than 2^40 elements");
        second_tensor()->shape[0] = (uint64_t)1 << 38;
        assert_refused("tensor 'u' of group 'a' brings its group to more than");
}

Test(layout_message, set)
{
        second_tensor()->set = UINT32_MAX;
        assert_refused("tensor 'u' of group 'a' has a hyperparameter set");
}

Test(layout_message, init)
{
        second_tensor()->init = UINT32_MAX;
        assert_refused("tensor 'u' of group 'a' has an unknown kind");
        second_tensor()->init = 32;
        assert_refused("tensor 'u' of group 'a' has an unknown kind");
        second_tensor()->init = ZERO_INIT_CONSTANT;
        second_tensor()->init_value = INFINITY;
        assert_refused("tensor 'u' of group 'a' has an initial value");
}

/* The release before knows kinds up to ZERO_INIT_PUT, and refuses all others by the tensor's name.
 */
Test(layout_message, the_release_before_refuses_whole_tensors)
{
        layout *l, *copy;

        for (uint32_t init = 0; init <= ZERO_INIT_PUT; init++) {
                second_tensor()->init = 16 + init;
                cr_assert_gt(second_tensor()->init, ZERO_INIT_PUT);
                cr_assert_eq(layout_from_message(message, &l, NULL), 0);
                cr_assert(l->tensors[1].whole && !l->tensors[0].whole && !l->tensors[2].whole);
                cr_assert_eq(l->tensors[1].init, init);
                cr_assert_eq(layout_copy(l, &copy), 0);
                cr_assert(copy->tensors[1].whole);
                drop_message();
                cr_assert_eq(layout_to_message(l, &message), 0);
                cr_assert_eq(second_tensor()->init, 16 + init);
                layout_free(l);
                layout_free(copy);
        }
}

/* Formats lie behind the optimizer's name, as far as they are not fp32. */
Test(layout_message, formats_follow_the_optimizer)
{
        static const struct {
                const char *text, *optimizer, *state, *master;
                bool ema;
        } cases[] = {
                { "adamw", "adamw", "", "", false },
                { "adamw-ema", "adamw", "", "", true },
                { "adamw+8bit", "adamw", "8bit", "", false },
                { "adamw-ema+bf16", "adamw", "bf16", "", true },
                { "sgd+fp32+bf16+8", "sgd", "", "bf16+8", false },
                { "lion-ema+8bit+bf16+16", "lion", "8bit", "bf16+16", true },
                { "+8bit", "", "8bit", "", false },
        };

        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
                layout *l, *copy;

                rename_to(&message->groups[0]->optimizer, cases[i].text);
                cr_assert_eq(layout_from_message(message, &l, NULL), 0, "%s", cases[i].text);
                cr_assert_eq(layout_copy(l, &copy), 0);
                const struct layout_group *g = &copy->groups[0];

                cr_assert_str_eq(g->optimizer, cases[i].optimizer);
                cr_assert_str_eq(g->state, cases[i].state);
                cr_assert_str_eq(g->master, cases[i].master);
                cr_assert_eq(g->ema, cases[i].ema);
                cr_assert_str_eq(layout_optimizer(g).text, cases[i].text);
                cr_assert_str_empty(copy->groups[1].state);
                layout_free(l);
                layout_free(copy);
        }
        rename_to(&message->groups[0]->optimizer, "adamw+fp32");
        layout *l;

        cr_assert_eq(layout_from_message(message, &l, NULL), 0);
        cr_assert_str_eq(layout_optimizer(&l->groups[0]).text, "adamw");
        layout_free(l);
        rename_to(&message->groups[0]->optimizer, "adamw+0123456789abcdef");
        assert_refused("over 15 bytes");
        rename_to(&message->groups[0]->optimizer, "adamw+8bit+0123456789abcdef");
        assert_refused("over 15 bytes");
}

/* To a layout, a copy of that, and back to a message. */
static int there_and_back(const Zero__Layout *m)
{
        layout *l = NULL, *copy = NULL;
        Zero__Layout *back = NULL;
        int r = layout_from_message(m, &l, NULL);

        if (r == 0)
                r = layout_copy(l, &copy);
        if (r == 0)
                r = layout_to_message(copy, &back);
        layout_free(l);
        layout_free(copy);
        if (back)
                zero__layout__free_unpacked(back, NULL);
        return r;
}

Test(layout_message, any_allocation_may_fail)
{
        static struct sites sites;
        static const uint8_t base[LAYOUT_HASH] = { 1 };
        layout *l = layouts_random(1);
        Zero__Layout *m;

        layout_set_base(l, base);
        cr_assert_eq(layout_to_message(l, &m), 0);
        allocations_count();
        cr_assert_eq(there_and_back(m), 0);
        allocations_counted(&sites);
        cr_assert_gt(sites.n, 4);
        for (unsigned i = 0; i < sites.n; i++)
                for (unsigned nth = 1; nth <= sites.site[i].n; nth++) {
                        allocations_refuse(sites.site[i].at, nth);
                        cr_assert_eq(there_and_back(m), -ENOMEM);
                        allocations_refuse(NULL, 0);
                }
        zero__layout__free_unpacked(m, NULL);
        layout_free(l);
}
