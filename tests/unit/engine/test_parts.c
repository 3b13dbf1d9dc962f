/* Parts of a sum cover their group, each on one GPU, none over another. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/step/reduce/parts.h"
#include "proto/dtype.h"

enum { GROUPS = 5, OWNERS_MAX = 9 };

static layout *make_layout(void)
{
        static const uint64_t elements[GROUPS] = { 3, 20000, 65536, 100000, 777777 };
        layout *l;

        cr_assert_eq(layout_new(&l), 0);
        for (uint32_t g = 0; g < GROUPS; g++) {
                char name[8];
                struct layout_tensor t = {
                        .name = name, .group = g, .ndim = 1, .shape = { elements[g] }
                };
                uint32_t index;

                snprintf(name, sizeof name, "t%u", g);
                cr_assert_eq(layout_add_group(l, name, ZERO_FP32, NULL, 0, 0, &index, NULL), 0);
                cr_assert_eq(layout_add_tensor(l, &t, &index, NULL), 0);
        }
        return l;
}

/* Every element has an address of its own, in order, in the piece of its part's place. */
static void check_places(const struct parts_rule *rule, const layout *l, uint32_t group)
{
        uint32_t n = rule->partition->slices[group];
        struct part parts[OWNERS_MAX];
        uint64_t next = 0;

        parts_plan(rule, group, parts);
        for (uint32_t i = 0; i < n; i++) {
                const struct part *p = &parts[i];
                uint64_t end = p->at + p->range.count * rule->size;

                cr_assert_eq(p->range.first, next);
                next += p->range.count;
                cr_assert_eq(p->at % PART_ALIGN, 0);
                cr_assert(end <= parts_bytes(parts, n, p->place, rule->size));
                cr_assert(parts_places(parts, n) >> p->place & 1);
                for (uint32_t k = 0; k < i; k++)
                        cr_assert(parts[k].place != p->place ||
                                  parts[k].at + parts[k].range.count * rule->size <= p->at);
                cr_assert_eq(parts_find(parts, n, p->range.first), p);
                cr_assert_eq(parts_find(parts, n, next - 1), p);
        }
        cr_assert_eq(next, l->groups[group].elements);
}

Test(parts, each_element_has_one_place)
{
        layout *l = make_layout();

        for (uint32_t owners = 1; owners <= OWNERS_MAX; owners++) {
                uint32_t places[OWNERS_MAX];
                struct partition *p;

                cr_assert_eq(partition_new(l, owners, &p), 0);
                for (uint32_t turn = 0; turn < 30; turn++) {
                        struct parts_rule rule = { p, places, 2 + turn * 0x8000000000000062u,
                                                   turn % 2 ? 2 : 4 };

                        for (uint32_t o = 0; o < owners; o++)
                                places[o] = (o * 7 + turn * 3) % 5;
                        for (uint32_t g = 0; g < GROUPS; g++)
                                check_places(&rule, l, g);
                }
                partition_free(p);
        }
        layout_free(l);
}

Test(parts, are_in_their_owners_place_or_dealt_to_those_of_the_gradients)
{
        layout *l = make_layout();
        const uint32_t places[] = { 0, 5, 0, 63, 0, 0 };
        struct parts_rule rule = { NULL, places, UINT64_C(1) << 2 | UINT64_C(1) << 40, 4 };
        uint32_t dealt[64] = { 0 };
        struct partition *p;
        struct part parts[6];

        cr_assert_eq(partition_new(l, 6, &p), 0);
        rule.partition = p;
        cr_assert_eq(p->slices[4], 6);
        parts_plan(&rule, 4, parts);
        for (uint32_t i = 0; i < 6; i++) {
                uint32_t place = places[partition_owner(p, 4, i)];

                if (!place_is_host(place))
                        cr_assert_eq(parts[i].place, place);
                else
                        dealt[parts[i].place]++;
        }
        cr_assert(dealt[2] == 2 && dealt[40] == 2);
        partition_free(p);
        layout_free(l);
}

static void common(struct range a, struct range b, uint64_t first, uint64_t count)
{
        struct range r = range_common(a, b), same = range_common(b, a);

        cr_assert_eq(r.count, count);
        cr_assert_eq(same.count, count);
        cr_assert(count == 0 || (r.first == first && same.first == first));
}

Test(parts, ranges_have_in_common_what_is_in_both)
{
        common((struct range){ 0, 10 }, (struct range){ 10, 5 }, 0, 0);
        common((struct range){ 0, 10 }, (struct range){ 20, 5 }, 0, 0);
        common((struct range){ 0, 10 }, (struct range){ 9, 5 }, 9, 1);
        common((struct range){ 3, 10 }, (struct range){ 0, 50 }, 3, 10);
        common((struct range){ 3, 0 }, (struct range){ 0, 50 }, 0, 0);
}
