/* The sources of a fill: properties over random layouts and owner lists. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "../proto/layouts.h"
#include "daemon/job/rules/pieces.h"

enum { ROUNDS = 100, NODES = 12, PIECES = 50 };

/* Two placements of a layout. */
struct scene {
        struct rng rng;
        layout *l;
        struct placement placements[2];
        struct partition *partitions[2];
        struct shared_out from, to;
        bool readable[HOLDER_MAX];
        uint64_t most;
};

static void place(struct scene *s, int i, uint32_t n, bool mirror)
{
        uint32_t nodes[NODES];

        for (uint32_t j = 0; j < NODES; j++)
                nodes[j] = j;
        for (uint32_t j = 0; j < n; j++) { /* the first n of a shuffle */
                uint32_t k = j + rng_below(&s->rng, NODES - j), node = nodes[k];

                nodes[k] = nodes[j];
                nodes[j] = node;
        }
        placement_init(&s->placements[i], (uint64_t)i, nodes, n, mirror);
        cr_assert_eq(partition_new(s->l, n, &s->partitions[i]), 0);
}

static struct scene scene_new(uint64_t seed)
{
        struct scene s = { .rng = { seed }, .l = layouts_random(seed) };
        bool mirror = rng_below(&s.rng, 2);

        for (int i = 0; i < 2; i++)
                place(&s, i, 1 + rng_below(&s.rng, NODES), mirror);
        memset(s.readable, 1, sizeof s.readable);
        return s;
}

static void point(struct scene *s)
{
        s->from = (struct shared_out){ &s->placements[0], s->partitions[0] };
        s->to = (struct shared_out){ &s->placements[1], s->partitions[1] };
        s->most = (1 + s->l->elements / LAYOUT_ALIGN / PIECES) * LAYOUT_ALIGN;
}

static void scene_free(struct scene *s)
{
        partition_free(s->partitions[0]);
        partition_free(s->partitions[1]);
        layout_free(s->l);
}

typedef void (*property)(struct scene *s, uint32_t holder, const struct pieces *p);

static void for_all(property holds)
{
        for (uint64_t seed = 0; seed < ROUNDS; seed++) {
                struct scene s = scene_new(seed);

                point(&s);
                for (uint32_t h = 0; h < placement_holders(s.to.placement); h++) {
                        struct pieces *p = NULL;

                        cr_assert_eq(pieces_new(&s.from, s.readable, &s.to, h, s.most, &p), 0);
                        holds(&s, h, p);
                        pieces_free(p);
                }
                scene_free(&s);
        }
}

/* ---- cover ---- */

static struct range want(const struct scene *s, uint32_t group, uint32_t holder)
{
        return partition_range(s->to.partition, group, holder_owner(s->to.placement, holder));
}

static void each_element_comes_once(struct scene *s, uint32_t holder, const struct pieces *p)
{
        uint32_t next = 0;
        uint64_t elements = 0;

        for (uint32_t g = 0; g < s->l->n_groups; g++) {
                struct range r = want(s, g, holder);
                uint64_t at = r.first;

                for (; next < p->n && p->items[next].group == g; at += p->items[next++].count)
                        cr_assert_eq(p->items[next].first, at);
                cr_assert_eq(at, r.first + r.count);
                elements += r.count;
        }
        cr_assert_eq(next, p->n);
        cr_assert_eq(elements, p->elements);
}

Test(pieces, cover_the_holders_shards_once_and_in_order)
{
        for_all(each_element_comes_once);
}

static void sources_have_them(struct scene *s, uint32_t holder, const struct pieces *p)
{
        for (uint32_t i = 0; i < p->n; i++) {
                const struct piece *piece = &p->items[i];
                struct range has = partition_range(s->from.partition, piece->group,
                                                   holder_owner(s->from.placement, piece->source));

                cr_assert(piece->count > 0 && piece->count <= s->most &&
                          piece->count % LAYOUT_ALIGN == 0);
                cr_assert(piece->first >= has.first &&
                          piece->first + piece->count <= has.first + has.count);
        }
}

Test(pieces, are_bounded_and_lie_in_their_sources_shards)
{
        for_all(sources_have_them);
}

/* ---- traffic ---- */

static uint64_t overlap(struct range a, struct range b)
{
        uint64_t first = a.first > b.first ? a.first : b.first;
        uint64_t end =
                a.first + a.count < b.first + b.count ? a.first + a.count : b.first + b.count;

        return end > first ? end - first : 0;
}

/* The holder's elements of which its node has no copy.  A node has at most one copy of an owner's
 * shards. */
static uint64_t least(const struct scene *s, uint32_t holder)
{
        uint64_t n = 0;

        for (uint32_t g = 0; g < s->l->n_groups; g++) {
                struct range r = want(s, g, holder);

                n += r.count;
                for (uint32_t h = 0; h < placement_holders(s->from.placement); h++)
                        if (holder_node(s->from.placement, h) ==
                            holder_node(s->to.placement, holder))
                                n -= overlap(r,
                                             partition_range(s->from.partition, g,
                                                             holder_owner(s->from.placement, h)));
        }
        return n;
}

static void only_what_must_moves(struct scene *s, uint32_t holder, const struct pieces *p)
{
        uint64_t moved = 0;

        for (uint32_t i = 0; i < p->n; i++)
                if (holder_node(s->from.placement, p->items[i].source) !=
                    holder_node(s->to.placement, holder))
                        moved += p->items[i].count;
        cr_assert_eq(moved, least(s, holder));
        cr_assert_eq(moved, p->moved);
}

Test(pieces, move_only_what_the_node_did_not_have)
{
        for_all(only_what_must_moves);
}

/* ---- one owner more, or fewer ---- */

/* The number of elements, copies included, that move when the list changes. */
static double moved(const layout *l, const uint32_t *from, uint32_t n, const uint32_t *to,
                    uint32_t m, bool mirror)
{
        struct scene s = { .l = (layout *)l };
        uint64_t elements = 0, moves = 0;

        placement_init(&s.placements[0], 0, from, n, mirror);
        placement_init(&s.placements[1], 1, to, m, mirror);
        cr_assert_eq(partition_new(l, n, &s.partitions[0]), 0);
        cr_assert_eq(partition_new(l, m, &s.partitions[1]), 0);
        point(&s);
        memset(s.readable, 1, sizeof s.readable);
        for (uint32_t h = 0; h < placement_holders(s.to.placement); h++) {
                struct pieces *p = NULL;

                cr_assert_eq(pieces_new(&s.from, s.readable, &s.to, h, s.most, &p), 0);
                elements += p->elements;
                moves += p->moved;
                pieces_free(p);
        }
        partition_free(s.partitions[0]);
        partition_free(s.partitions[1]);
        return (double)moves / (double)elements;
}

static uint32_t list_with(const uint32_t *before, uint32_t n, uint32_t at, uint32_t *ret)
{
        memcpy(ret, before, at * sizeof *ret);
        ret[at] = n;
        memcpy(ret + at + 1, before + at, (n - at) * sizeof *ret);
        return n + 1;
}

Test(pieces, of_one_owner_more_are_fewest_where_it_is_put)
{
        static const uint64_t blocks[] = { 30 << 20, 8 << 20, 8 << 20, 8 << 20 };
        static const double least[] = { 0.5, 0.34, 0.34, 0.31, 0.31, 0.29, 0.29, 0.28 };
        uint32_t before[ZERO_NODE_MAX], with[ZERO_NODE_MAX];
        layout *l = layouts_sized(blocks, 4, ZERO_BF16);
        struct placement p;

        for (uint32_t i = 0; i < ZERO_NODE_MAX; i++)
                before[i] = i;
        for (uint32_t n = 1; n <= 8; n++)
                for (int mirror = 0; mirror < 2; mirror++) {
                        placement_init(&p, 0, before, n, mirror);
                        list_with(before, n, placement_best_place(&p), with);
                        double here = moved(l, before, n, with, n + 1, mirror);

                        cr_assert_leq(here, least[n - 1] + 1e-3, "%u owners: %g", n, here);
                        cr_assert_leq(moved(l, with, n + 1, before, n, mirror),
                                      least[n - 1] + 1e-3);
                        for (uint32_t at = 0; at <= n; at++) {
                                list_with(before, n, at, with);
                                cr_assert_leq(here, moved(l, before, n, with, n + 1, mirror) + 1e-3,
                                              "%u owners, at %u", n, at);
                        }
                }
        layout_free(l);
}

/* ---- a holder that lost its state ---- */

static uint64_t given_by(const struct scene *s, const struct pieces *p, uint32_t node)
{
        uint64_t n = 0;

        for (uint32_t i = 0; i < p->n; i++)
                if (holder_node(s->from.placement, p->items[i].source) == node)
                        n += p->items[i].count;
        return n;
}

Test(pieces, of_a_lost_holder_come_from_its_twin)
{
        for (uint64_t seed = 0; seed < ROUNDS; seed++) {
                struct scene s = { .rng = { seed }, .l = layouts_random(seed) };
                struct pieces *p = NULL;
                uint32_t n = 2 + rng_below(&s.rng, NODES - 1), lost = rng_below(&s.rng, 2 * n);
                uint32_t twin = (lost + n) % (2 * n);

                place(&s, 0, n, true);
                point(&s);
                s.to = s.from;
                memset(s.readable, 1, sizeof s.readable);
                s.readable[lost] = false;
                cr_assert_eq(pieces_new(&s.from, s.readable, &s.to, lost, s.most, &p), 0);
                each_element_comes_once(&s, lost, p);
                for (uint32_t i = 0; i < p->n; i++)
                        cr_assert_eq(p->items[i].source, twin);
                cr_assert_eq(p->moved, p->elements);
                pieces_free(p);
                s.readable[twin] = false;
                cr_assert_eq(pieces_new(&s.from, s.readable, &s.to, lost, s.most, &p),
                             partition_elements(s.from.partition, lost % n) ? -ENODATA : 0);
                if (!partition_elements(s.from.partition, lost % n))
                        pieces_free(p);
                scene_free(&s);
        }
}

/* ---- load ---- */

Test(pieces, come_from_both_copies_alike)
{
        static const uint64_t small[] = { 1 << 14 };
        struct scene s = { .l = layouts_sized(small, 1, ZERO_BF16) };
        struct pieces *p = NULL;

        /* owner 0 has the whole group, on nodes 0 and 1; node 2 takes it over */
        placement_init(&s.placements[0], 0, (uint32_t[]){ 0, 1 }, 2, true);
        placement_init(&s.placements[1], 1, (uint32_t[]){ 2 }, 1, true);
        cr_assert_eq(partition_new(s.l, 2, &s.partitions[0]), 0);
        cr_assert_eq(partition_new(s.l, 1, &s.partitions[1]), 0);
        point(&s);
        s.most = LAYOUT_ALIGN;
        memset(s.readable, 1, sizeof s.readable);
        cr_assert_eq(pieces_new(&s.from, s.readable, &s.to, 0, s.most, &p), 0);
        cr_assert_eq(given_by(&s, p, 0), given_by(&s, p, 1));
        cr_assert_eq(given_by(&s, p, 0) + given_by(&s, p, 1), 1 << 14);
        pieces_free(p);
        scene_free(&s);
}
