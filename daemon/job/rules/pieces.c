/* Chooses which holder sends which elements; see pieces.h for the rule. */
#include "daemon/job/rules/pieces.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "proto/cleanup.h"

struct cutting {
        const struct shared_out *from;
        const bool *readable;
        uint32_t node, turn; /* node: of the holder; turn: the copy that is tried first */
        uint64_t most;
        uint64_t load[NODE_SET_MAX]; /* [node]: elements that it sends */
        struct pieces *pieces;
        uint32_t capacity;
};

DEFINE_CLEANUP(struct pieces *, pieces_free)

void pieces_free(struct pieces *p)
{
        if (!p)
                return;
        free(p->items);
        free(p);
}

static uint64_t min_u64(uint64_t a, uint64_t b)
{
        return a < b ? a : b;
}

static uint64_t max_u64(uint64_t a, uint64_t b)
{
        return a > b ? a : b;
}

/* The source of the next elements of an old owner; HOLDER_MAX if nobody has them. */
static uint32_t choose(const struct cutting *c, uint32_t owner)
{
        const struct placement *p = c->from->placement;
        uint32_t best = HOLDER_MAX;

        for (uint32_t i = 0; i < p->copies; i++) {
                uint32_t holder = holder_of(p, owner, (c->turn + i) % p->copies);

                if (!c->readable[holder])
                        continue;
                if (holder_node(p, holder) == c->node)
                        return holder;
                if (best == HOLDER_MAX ||
                    c->load[holder_node(p, holder)] < c->load[holder_node(p, best)])
                        best = holder;
        }
        return best;
}

static int pieces_grow(struct cutting *c)
{
        if (c->pieces->n < c->capacity)
                return 0;
        uint32_t capacity = c->capacity ? 2 * c->capacity : 64;
        struct piece *items = reallocarray(c->pieces->items, capacity, sizeof(*items));
        if (!items)
                return -ENOMEM;
        c->pieces->items = items;
        c->capacity = capacity;
        return 0;
}

static int add(struct cutting *c, const struct piece *piece)
{
        uint32_t node = holder_node(c->from->placement, piece->source);
        int r = pieces_grow(c);

        if (r)
                return r;
        c->pieces->items[c->pieces->n++] = *piece;
        c->pieces->elements += piece->count;
        if (node == c->node)
                return 0;
        c->load[node] += piece->count;
        c->pieces->moved += piece->count;
        return 0;
}

/* Elements [first, end) of a group, which one old owner has. */
static int cut_owner(struct cutting *c, uint32_t group, uint32_t owner, uint64_t first,
                     uint64_t end)
{
        while (first < end) {
                struct piece piece = { .group = group,
                                       .source = choose(c, owner),
                                       .first = first,
                                       .count = min_u64(end - first, c->most) };
                int r = piece.source == HOLDER_MAX ? -ENODATA : add(c, &piece);

                if (r)
                        return r;
                first += piece.count;
        }
        return 0;
}

static int cut_range(struct cutting *c, uint32_t group, struct range want)
{
        const struct partition *p = c->from->partition;

        for (uint32_t i = 0; want.count && i < p->slices[group]; i++) {
                uint32_t owner = partition_owner(p, group, i);
                struct range has = partition_range(p, group, owner);
                int r = cut_owner(c, group, owner, max_u64(want.first, has.first),
                                  min_u64(want.first + want.count, has.first + has.count));

                if (r)
                        return r;
        }
        return 0;
}

int pieces_new(const struct shared_out *from, const bool *readable, const struct shared_out *to,
               uint32_t holder, uint64_t most, struct pieces **ret)
{
        assert(most > 0 && most % LAYOUT_ALIGN == 0 && holder < placement_holders(to->placement));
        assert(from->partition->n_groups == to->partition->n_groups);
        CLEANUP(cleanup_pieces_free) struct pieces *pieces = calloc(1, sizeof(*pieces));
        struct cutting c = { .from = from,
                             .readable = readable,
                             .node = holder_node(to->placement, holder),
                             .turn = holder,
                             .most = most,
                             .pieces = pieces };

        for (uint32_t g = 0; pieces && g < to->partition->n_groups; g++) {
                int r = cut_range(
                        &c, g,
                        partition_range(to->partition, g, holder_owner(to->placement, holder)));

                if (r)
                        return r;
        }
        if (!pieces)
                return -ENOMEM;
        *ret = STEAL(pieces);
        return 0;
}
