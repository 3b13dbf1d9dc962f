/* Slabs: never shared, never taken while held; of those that suit, the least recently used first.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "daemon/step/gather/window.h"
#include "proto/dtype.h"

enum { GROUPS = 9, SLABS = 4, SMALL = 400 };

static uint32_t below(uint64_t *seed, uint32_t n)
{
        *seed = *seed * 6364136223846793005u + 1442695040888963407u;
        return (uint32_t)((*seed >> 33) % n);
}

static struct window make(uint32_t wanted)
{
        struct slots *slots;
        struct window w;
        layout *l;

        cr_assert_eq(layout_new(&l), 0);
        for (uint32_t g = 0; g < GROUPS; g++) {
                char name[8];
                struct layout_tensor t = {
                        .name = name, .group = g, .ndim = 1, .shape = { 100 + g }
                };
                uint32_t index;

                snprintf(name, sizeof name, "t%u", g);
                cr_assert_eq(layout_add_group(l, name, ZERO_FP32, NULL, 0, 0, &index, NULL), 0);
                cr_assert_eq(layout_add_tensor(l, &t, &index, NULL), 0);
        }
        cr_assert_eq(slots_new(l, wanted, 0, NULL, &slots), 0);
        cr_assert_eq(window_init(&w, GROUPS, slots), 0);
        layout_free(l);
        return w;
}

/* Takes a slab that must be there. */
static uint32_t take(struct window *w, uint32_t group, uint32_t expected_evicted)
{
        uint32_t evicted = SLAB_NONE, slab = window_take(w, group, SMALL, &evicted);

        cr_assert_neq(slab, SLAB_NONE);
        cr_assert_eq(evicted, expected_evicted);
        return slab;
}

Test(window, free_slabs_go_before_any_that_holds_something)
{
        struct window w = make(SLABS);

        for (uint32_t g = 0; g < SLABS; g++)
                take(&w, g, SLAB_NONE);
        cr_assert_eq(window_available(&w), SLABS);
        take(&w, 6, 0);
        window_deinit(&w);
}

Test(window, the_least_recently_leased_goes_first)
{
        struct window w = make(SLABS);
        uint32_t slabs[SLABS];

        for (uint32_t g = 0; g < SLABS; g++)
                slabs[g] = take(&w, g, SLAB_NONE);
        window_lease(&w, slabs[0]);
        cr_assert(window_release(&w, slabs[0]));
        take(&w, 4, 1);
        take(&w, 5, 2);
        take(&w, 6, 3);
        take(&w, 7, 0);
        window_deinit(&w);
}

Test(window, nothing_is_taken_while_all_are_held)
{
        struct window w = make(2);
        uint32_t a = take(&w, 0, SLAB_NONE), b = take(&w, 1, SLAB_NONE), evicted = 77;

        window_lease(&w, a);
        w.slabs[b].pinned = true;
        cr_assert_eq(window_take(&w, 2, SMALL, &evicted), SLAB_NONE);
        cr_assert_eq(evicted, 77);
        w.slabs[b].pinned = false;
        take(&w, 2, 1);
        window_deinit(&w);
}

Test(window, only_the_last_release_frees)
{
        struct window w = make(1);
        uint32_t slab = take(&w, 0, SLAB_NONE), evicted;

        window_lease(&w, slab);
        window_lease(&w, slab);
        cr_assert(!window_release(&w, slab));
        cr_assert_eq(window_take(&w, 1, SMALL, &evicted), SLAB_NONE);
        cr_assert(window_release(&w, slab));
        take(&w, 1, 0);
        window_deinit(&w);
}

Test(window, whole_gives_every_group_its_own_slab)
{
        struct window w = make(GROUPS);

        cr_assert(w.slots->whole);
        for (uint32_t g = 0; g < GROUPS; g++)
                cr_assert_eq(take(&w, GROUPS - 1 - g, SLAB_NONE), GROUPS - 1 - g);
        for (uint32_t g = 1; g < GROUPS; g++)
                cr_assert_gt(window_offset(&w, g), window_offset(&w, g - 1));
        window_deinit(&w);
}

/* ---- groups of several sizes ---- */

static uint64_t touched(const struct window *w)
{
        uint64_t sum = 0;

        for (uint32_t i = 0; i < w->slots->n; i++)
                sum += w->slabs[i].touched;
        return sum;
}

/* Uses a group as a pass does: held until the next one is. */
static uint32_t use(struct window *w, uint32_t before, uint32_t group, uint64_t bytes)
{
        uint32_t slab = w->slab_of[group], evicted;

        if (slab == SLAB_NONE)
                slab = window_take(w, group, bytes, &evicted);
        cr_assert_neq(slab, SLAB_NONE);
        window_lease(w, slab);
        if (before != SLAB_NONE)
                window_release(w, before);
        return slab;
}

Test(window, one_slab_alone_grows_to_the_largest_group)
{
        const uint64_t small = 48 << 20, large = 119 << 20;
        struct window w = make(SLABS);
        uint32_t held = SLAB_NONE;

        w.slots->slot_bytes = large;
        for (int pass = 0; pass < 8; pass++)
                for (uint32_t g = 0; g < GROUPS; g++) {
                        uint32_t i = pass % 2 ? GROUPS - 1 - g : g;
                        uint64_t bytes = i == 0 || i == GROUPS - 2 ? large : small;

                        held = use(&w, held, i, bytes);
                }
        cr_assert_eq(touched(&w), large + (SLABS - 1) * small);
        window_deinit(&w);
}

Test(window, a_small_group_takes_the_large_slab_if_no_other_is_there)
{
        struct window w = make(2);
        uint32_t evicted, large = window_take(&w, 0, 64 << 20, &evicted);
        uint32_t small = window_take(&w, 1, 4 << 20, &evicted);

        window_lease(&w, small);
        cr_assert_eq(window_take(&w, 2, 4 << 20, &evicted), large);
        window_deinit(&w);
}

/* ---- random use against a model ---- */

struct model {
        struct window w;
        uint32_t slab[GROUPS]; /* SLAB_NONE: none */
        uint32_t leases[GROUPS];
        bool pinned[GROUPS];
        uint64_t used[GROUPS], clock;
};

static bool held(const struct model *m, uint32_t g)
{
        return m->leases[g] || m->pinned[g];
}

static uint32_t in_use(const struct model *m)
{
        uint32_t n = 0;

        for (uint32_t g = 0; g < GROUPS; g++)
                n += m->slab[g] != SLAB_NONE;
        return n;
}

static void model_take(struct model *m, uint32_t group)
{
        uint32_t oldest = SLAB_NONE, evicted = SLAB_NONE, slab;

        for (uint32_t g = 0; g < GROUPS; g++)
                if (m->slab[g] != SLAB_NONE && !held(m, g) &&
                    (oldest == SLAB_NONE || m->used[g] < m->used[oldest]))
                        oldest = g;
        if (in_use(m) < m->w.slots->n)
                oldest = SLAB_NONE;
        slab = window_take(&m->w, group, SMALL, &evicted);
        if (in_use(m) == m->w.slots->n && oldest == SLAB_NONE) {
                cr_assert_eq(slab, SLAB_NONE);
                return;
        }
        cr_assert_neq(slab, SLAB_NONE);
        cr_assert_eq(evicted, oldest);
        if (oldest != SLAB_NONE) {
                cr_assert_eq(slab, m->slab[oldest]);
                m->slab[oldest] = SLAB_NONE;
        }
        m->slab[group] = slab;
        m->used[group] = ++m->clock;
}

static void model_step(struct model *m, uint64_t *seed)
{
        uint32_t g = below(seed, GROUPS), what = below(seed, 5);

        if (m->slab[g] == SLAB_NONE) {
                model_take(m, g);
                return;
        }
        if (what < 2) {
                window_lease(&m->w, m->slab[g]);
                m->leases[g]++;
                m->used[g] = ++m->clock;
        } else if (what < 4 && m->leases[g]) {
                cr_assert_eq(window_release(&m->w, m->slab[g]), --m->leases[g] == 0);
        } else {
                m->pinned[g] = !m->pinned[g];
                m->w.slabs[m->slab[g]].pinned = m->pinned[g];
        }
}

static void model_check(const struct model *m)
{
        bool taken[GROUPS] = { false };
        uint32_t available = m->w.slots->n;

        for (uint32_t g = 0; g < GROUPS; g++) {
                cr_assert_eq(m->w.slab_of[g], m->slab[g]);
                if (m->slab[g] == SLAB_NONE)
                        continue;
                cr_assert(!taken[m->slab[g]], "two groups in one slab");
                taken[m->slab[g]] = true;
                cr_assert_eq(m->w.slabs[m->slab[g]].group, g);
                cr_assert_eq(m->w.slabs[m->slab[g]].leases, m->leases[g]);
                available -= held(m, g);
        }
        cr_assert_eq(window_available(&m->w), available);
}

Test(window, random_use_keeps_the_rules)
{
        for (uint32_t slabs = 1; slabs < GROUPS; slabs++) {
                struct model m = { .w = make(slabs) };
                uint64_t seed = slabs;

                for (uint32_t g = 0; g < GROUPS; g++)
                        m.slab[g] = SLAB_NONE;
                for (int i = 0; i < 20000; i++) {
                        model_step(&m, &seed);
                        model_check(&m);
                }
                window_deinit(&m.w);
        }
}
