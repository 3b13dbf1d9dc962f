/*
 * Pieces and updates in any order: each byte of the stream has its value from before the first
 * update.
 *
 * A byte of the state counts its updates.  A piece takes a while, and keeps updates out of its
 * group meanwhile.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/cluster/checkpoint/save_order.h"

enum { GROUPS = 6, EXTENTS = 5, PIECES = 3, UPDATES = 3, MISSING = 255 };

struct model {
        struct snapshot_map map;
        struct snapshot_extent extents[GROUPS * EXTENTS];
        uint64_t ends[GROUPS];
        struct save_order order;
        struct save_piece pieces[PIECES];
        uint32_t pins[GROUPS], updates[GROUPS]; /* updates: of what is not frozen */
        bool pending[GROUPS], changing[GROUPS], running;
        uint64_t from[GROUPS];
        uint32_t begun;
        uint8_t *stream;
};

static uint32_t below(uint32_t n)
{
        return (uint32_t)rand() % n;
}

static void model_init(struct model *m)
{
        *m = (struct model){ .map = { .extents = m->extents, .group_end = m->ends } };
        m->map.n_groups = GROUPS;
        for (uint32_t g = 0; g < GROUPS; g++) {
                for (uint32_t i = below(EXTENTS); i > 0; i--) {
                        m->extents[m->map.n++] =
                                (struct snapshot_extent){ .offset = m->map.bytes,
                                                          .bytes = 1 + below(40),
                                                          .group = g,
                                                          .frozen = below(3) == 0 };
                        m->map.bytes += m->extents[m->map.n - 1].bytes;
                }
                m->ends[g] = m->map.bytes;
        }
        m->stream = malloc(m->map.bytes + 1);
        memset(m->stream, MISSING, m->map.bytes + 1);
        cr_assert_eq(save_order_init(&m->order, &m->map), 0);
}

static void model_deinit(struct model *m)
{
        save_order_deinit(&m->order);
        free(m->stream);
}

/* Copies the state's bytes of a group to the stream. */
static void keep(struct model *m, uint32_t group, uint64_t first, uint64_t end, bool frozen)
{
        for (uint32_t i = 0; i < m->map.n; i++) {
                const struct snapshot_extent *e = &m->extents[i];

                for (uint64_t at = e->offset; at < e->offset + e->bytes; at++)
                        if (e->group == group && at >= first && at < end && (frozen || !e->frozen))
                                m->stream[at] = e->frozen ? 0 : (uint8_t)m->updates[group];
        }
}

static void piece(struct model *m, struct save_piece *p)
{
        if (p->bytes) {
                keep(m, p->group, p->offset, p->offset + p->bytes, true);
                p->bytes = 0;
                m->pins[p->group]--;
                save_order_copied(&m->order);
        } else if (!m->running && save_order_cut(&m->order, 1 + below(30), p)) {
                cr_assert(p->bytes > 0 && p->offset + p->bytes <= m->map.bytes);
                m->pins[p->group]++;
        }
}

static void change(struct model *m, uint32_t g)
{
        if (m->pending[g] && m->pins[g] == 0) {
                m->pending[g] = false;
                m->changing[g] = true;
                m->from[g] = save_order_begin(&m->order, g);
        } else if (m->changing[g]) {
                m->changing[g] = false;
                if (m->from[g] != UINT64_MAX) {
                        keep(m, g, m->from[g], m->map.bytes, false);
                        save_order_saved(&m->order);
                }
                m->updates[g]++;
        }
}

static void update(struct model *m)
{
        bool over = true;

        if (!m->running && m->begun < UPDATES && below(10) == 0) {
                m->running = true;
                m->begun++;
                memset(m->pending, true, sizeof m->pending);
        }
        change(m, below(GROUPS));
        for (uint32_t g = 0; g < GROUPS; g++)
                over = over && !m->pending[g] && !m->changing[g];
        m->running = m->running && !over;
}

static bool whole(const struct model *m)
{
        for (uint64_t at = 0; at < m->map.bytes; at++)
                if (m->stream[at] == MISSING)
                        return false;
        return true;
}

Test(save_order, the_stream_is_of_one_version_whatever_comes_first)
{
        uint32_t updates = 0;

        for (unsigned seed = 0; seed < 2000; seed++) {
                struct model m;

                srand(seed);
                model_init(&m);
                for (int i = 0; i < 10000 && !save_order_over(&m.order); i++) {
                        if (below(2))
                                update(&m);
                        else
                                piece(&m, &m.pieces[below(PIECES)]);
                }
                cr_assert(save_order_over(&m.order), "seed %u: it does not end", seed);
                cr_assert(whole(&m), "seed %u: it is not whole", seed);
                for (uint64_t at = 0; at < m.map.bytes; at++)
                        cr_assert_eq(m.stream[at], 0, "seed %u: byte %lu is of version %u", seed,
                                     (unsigned long)at, m.stream[at]);
                updates += m.begun;
                model_deinit(&m);
        }
        cr_assert_gt(updates, 2000);
}

Test(save_order, it_is_not_over_before_all_is_there)
{
        for (unsigned seed = 0; seed < 2000; seed++) {
                struct model m;

                srand(seed);
                model_init(&m);
                for (int i = 0; i < 10000 && !whole(&m); i++) {
                        cr_assert(!save_order_over(&m.order), "seed %u", seed);
                        update(&m);
                        piece(&m, &m.pieces[below(PIECES)]);
                }
                cr_assert(whole(&m), "seed %u: it does not end", seed);
                model_deinit(&m);
        }
}

Test(save_order, a_state_without_anything_is_over_at_once)
{
        uint64_t ends[2] = { 0, 0 };
        struct snapshot_map map = { .group_end = ends, .n_groups = 2 };
        struct save_order order;
        struct save_piece cut;

        cr_assert_eq(save_order_init(&order, &map), 0);
        cr_assert(save_order_over(&order) && !save_order_cut(&order, 1, &cut));
        cr_assert_eq(save_order_begin(&order, 1), UINT64_MAX);
        save_order_deinit(&order);
}
