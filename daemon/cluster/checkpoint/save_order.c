/* Pieces and saving updates; see save_order.h for the rule. */
#include "daemon/cluster/checkpoint/save_order.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "proto/cleanup.h"

int save_order_init(struct save_order *o, const struct snapshot_map *map)
{
        *o = (struct save_order){ .map = map };
        o->begun = calloc(map->n_groups + 1, sizeof *o->begun);
        return o->begun ? 0 : -ENOMEM;
}

void save_order_deinit(struct save_order *o)
{
        free(STEAL(o->begun));
}

/* The extent to copy next; skips what updates save. */
static const struct snapshot_extent *extent_next(struct save_order *o)
{
        for (; o->extent < o->map->n; o->extent++) {
                const struct snapshot_extent *e = &o->map->extents[o->extent];
                uint64_t end = e->offset + e->bytes;

                if (o->next < end && (e->frozen || !o->begun[e->group]))
                        return e;
                o->next = end;
        }
        return NULL;
}

bool save_order_cut(struct save_order *o, uint64_t most, struct save_piece *ret)
{
        const struct snapshot_extent *e = extent_next(o);
        uint64_t left;

        if (!e)
                return false;
        left = e->offset + e->bytes - o->next;
        *ret = (struct save_piece){ o->next, left < most ? left : most, e->group };
        o->next += ret->bytes;
        o->copying++;
        return true;
}

void save_order_copied(struct save_order *o)
{
        assert(o->copying > 0);
        o->copying--;
}

uint64_t save_order_begin(struct save_order *o, uint32_t group)
{
        if (o->begun[group] || o->next >= o->map->group_end[group])
                return UINT64_MAX;
        o->begun[group] = true;
        o->saving++;
        return o->next;
}

void save_order_saved(struct save_order *o)
{
        assert(o->saving > 0);
        o->saving--;
}

bool save_order_over(struct save_order *o)
{
        return o->copying == 0 && o->saving == 0 && !extent_next(o);
}
