/*
 * Nodes' reports of states of earlier placements: in any order of reports, losses and returns, each
 * node's last report counts.  Also which nodes a job must hear before it goes on.
 */
#include <criterion/criterion.h>
#include <string.h>

#include "daemon/job/rules/moving.h"
#include "steps.h"

enum { NODES = 3, LISTS = 4 };

/* A node's states: [list], or none of that list. */
struct told {
        bool here, has[LISTS];
};

/* Node n is owner n of each list before the one in force. */
static void tell(struct old_placement *old_placements, uint32_t node, const struct told *t)
{
        const struct standing standing = { .version = 7, .done = true };

        old_placements_retell(old_placements, node);
        for (uint32_t e = 0; e < LISTS; e++) {
                const struct state_place of = { e, NODES, node, 0 };
                struct fault fault;

                if (t->has[e])
                        cr_assert_eq(old_placements_hear(old_placements, node, &of, &standing, 0,
                                                         &fault),
                                     0);
        }
}

/* The newest placement that is complete; -1 if a node that is away may have a newer one. */
static int expected(const struct told *told, bool *ret_some)
{
        int choice = -1;

        *ret_some = false;
        for (int e = LISTS - 1; e >= 0; e--) {
                uint32_t here = 0, has = 0;

                for (uint32_t n = 0; n < NODES; n++) {
                        has += told[n].has[e];
                        here += told[n].has[e] && told[n].here;
                }
                *ret_some |= has > 0;
                if (choice < 0 && here == NODES)
                        choice = e;
        }
        for (int e = choice + 1; choice >= 0 && e < LISTS; e++)
                for (uint32_t n = 0, here = 0, has = 0; n < NODES; n++) {
                        has += told[n].has[e];
                        here += told[n].has[e] && told[n].here;
                        if (n == NODES - 1 && has && !here)
                                choice = -1;
                }
        return choice;
}

static void check(struct old_placement *old_placements, const struct told *told)
{
        static const struct standing *none[HOLDER_MAX];
        uint32_t nodes[NODES] = { 0, 1, 2 };
        struct old_placement *old_placement = NULL;
        struct placement p;
        enum opening_choice choice;
        node_set here = NODE_SET_NONE;
        bool some;
        int epoch = expected(told, &some);

        placement_init(&p, LISTS, nodes, NODES, false);
        for (uint32_t e = 0; e < LISTS; e++)
                p.before[e] = node_set_first_n(NODES);
        for (uint32_t n = 0; n < NODES; n++)
                if (told[n].here)
                        node_set_add(&here, n);
        choice = opening_choose(none, &p, old_placements, here, &old_placement);
        if (epoch >= 0) {
                cr_assert_eq(choice, OPENING_MOVES);
                cr_assert_eq(old_placement->placement.epoch, (uint64_t)epoch);
        } else {
                cr_assert_eq(choice, some ? OPENING_WAITS : OPENING_MAKES);
        }
}

Test(old_placements, what_a_node_told_last_is_what_is_known_of_it)
{
        struct rng rng = { 11 };

        for (uint32_t run = 0; run < 300; run++) {
                struct old_placement old_placements[OLD_PLACEMENT_MAX];
                struct told told[NODES] = { 0 };

                memset(old_placements, 0, sizeof old_placements);
                for (uint32_t i = 0; i < 40; i++) {
                        uint32_t node = rng_below(&rng, NODES);
                        struct told *t = &told[node];

                        if (t->here && rng_below(&rng, 3) == 0) {
                                t->here = false;
                                old_placements_forget_node(old_placements, node);
                        } else {
                                t->here = true;
                                for (uint32_t e = 0; e < LISTS; e++)
                                        t->has[e] = rng_below(&rng, 3) > 0;
                                tell(old_placements, node, t);
                        }
                        check(old_placements, told);
                }
                old_placements_free(old_placements);
        }
}

/* Successive lists of one to three nodes. */
static struct placement lists(uint64_t n, uint64_t dead)
{
        static const uint32_t owners[][2] = { { 0, 1 }, { 2, 0 }, { 1, 0 }, { 3, 4 } };
        struct placement p, last;

        placement_init(&p, 0, owners[0], 2, false);
        for (uint64_t e = 1; e < n; e++) {
                last = p;
                placement_init(&p, 0, owners[e % 4], e % 4 == 1 || e % 4 == 2 ? 1 : 2, false);
                placement_follow(&p, &last, node_set_from_word(e + 1 == n ? dead : 0));
                cr_assert_eq(p.epoch, e);
        }
        return p;
}

static uint64_t untold(const struct placement *p, uint64_t since, uint64_t here)
{
        return node_set_to_word(lists_untold(p, since, node_set_from_word(here)));
}

Test(old_placements, one_node_of_each_list_between_has_to_tell)
{
        const struct placement p = lists(4, 0); /* 01, 2, 1, and in force 34 */

        cr_assert_eq(untold(&p, 3, 030), 0, "there is no list between");
        cr_assert_eq(untold(&p, 2, 030), 1 << 1);
        cr_assert_eq(untold(&p, 1, 030), 1 << 1 | 1 << 2);
        cr_assert_eq(untold(&p, 1, 030 | 1 << 2), 1 << 1);
        cr_assert_eq(untold(&p, 0, 030 | 1 << 1), 1 << 2, "of two nodes one is enough");
        cr_assert_eq(untold(&p, 0, 030 | 1 << 2), 1 << 0 | 1 << 1);
        cr_assert_eq(untold(&p, 0, 030 | 1 << 1 | 1 << 2), 0);
}

Test(old_placements, every_node_of_lists_long_past_has_to_tell)
{
        const struct placement some = lists(PLACEMENT_BEFORE + 1, 0);
        const struct placement many = lists(PLACEMENT_BEFORE + 4, 0);

        cr_assert_eq(untold(&some, 0, 026), 0, "all of them are known");
        cr_assert_not(node_set_any(some.older));
        cr_assert_eq(node_set_to_word(many.older), 1 << 0 | 1 << 1 | 1 << 2);
        cr_assert_eq(untold(&many, 0, 026), 1 << 0);
        cr_assert_eq(untold(&many, 3, 026), 0);
        cr_assert_eq(untold(&many, 2, 026), 1 << 0);
}

Test(old_placements, a_dead_node_that_owns_again_is_not_dead)
{
        struct placement last = lists(4, 1 << 1 | 1 << 2), p;
        const uint32_t owner = 2;

        cr_assert_eq(node_set_to_word(last.dead), 1 << 1 | 1 << 2);
        placement_init(&p, 0, &owner, 1, false);
        placement_follow(&p, &last, NODE_SET_NONE);
        cr_assert_eq(node_set_to_word(p.dead), 1 << 1);
}
