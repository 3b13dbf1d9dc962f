/* Slabs of a gather window.  Pure. */
#include "daemon/step/gather/window.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

int window_init(struct window *w, uint32_t n_groups, struct slots *slots)
{
        *w = (struct window){ .n_groups = n_groups };
        w->slabs = calloc(slots->n ? slots->n : 1, sizeof *w->slabs);
        w->slab_of = malloc(n_groups * sizeof *w->slab_of);
        if (!w->slabs || !w->slab_of) {
                window_deinit(w);
                return -ENOMEM;
        }
        for (uint32_t i = 0; i < slots->n; i++)
                w->slabs[i].group = SLAB_NONE;
        for (uint32_t g = 0; g < n_groups; g++)
                w->slab_of[g] = SLAB_NONE;
        w->slots = slots;
        return 0;
}

void window_deinit(struct window *w)
{
        slots_free(w->slots);
        free(w->slabs);
        free(w->slab_of);
        *w = (struct window){ 0 };
}

static bool slab_available(const struct slab *s)
{
        return s->leases == 0 && !s->pinned && s->readers == 0;
}

/*
 * How badly a slab suits a group, in bytes; 0: well.  A slab that has to grow is better than one of
 * more than twice the group's size, which a large group will want.
 */
static uint64_t misfit(const struct window *w, const struct slab *s, uint64_t bytes)
{
        uint64_t unit = 1 << 20, needed = (bytes + unit - 1) / unit;
        uint64_t has = (s->touched + unit - 1) / unit;

        if (has == 0 || (has >= needed && has / 2 <= needed))
                return 0;
        return has < needed ? bytes - s->touched : w->slots->slot_bytes + s->touched;
}

/* The best available slab, of equal ones the least recently used.  A free slab has `used` 0. */
static uint32_t window_choose(const struct window *w, uint64_t bytes)
{
        uint64_t least = UINT64_MAX;
        uint32_t best = SLAB_NONE;

        for (uint32_t i = 0; i < w->slots->n; i++) {
                const struct slab *s = &w->slabs[i];
                uint64_t badly = misfit(w, s, bytes);

                if (!slab_available(s) || badly > least)
                        continue;
                if (badly < least || s->used < w->slabs[best].used)
                        best = i;
                least = badly;
        }
        return best;
}

uint32_t window_take(struct window *w, uint32_t group, uint64_t bytes, uint32_t *ret_evicted)
{
        struct slab *s;
        uint32_t i;

        assert(group < w->n_groups && w->slab_of[group] == SLAB_NONE);
        i = w->slots->whole ? group : window_choose(w, bytes);
        if (i == SLAB_NONE || !slab_available(&w->slabs[i]))
                return SLAB_NONE;
        s = &w->slabs[i];
        *ret_evicted = s->group;
        if (s->group != SLAB_NONE)
                w->slab_of[s->group] = SLAB_NONE;
        *s = (struct slab){ .group = group,
                            .used = ++w->clock,
                            .touched = s->touched > bytes ? s->touched : bytes };
        w->slab_of[group] = i;
        return i;
}

void window_lease(struct window *w, uint32_t slab)
{
        assert(slab < w->slots->n && w->slabs[slab].group != SLAB_NONE);
        w->slabs[slab].leases++;
        w->slabs[slab].used = ++w->clock;
}

bool window_release(struct window *w, uint32_t slab)
{
        assert(slab < w->slots->n && w->slabs[slab].leases > 0);
        return --w->slabs[slab].leases == 0;
}

uint64_t window_offset(const struct window *w, uint32_t slab)
{
        return slots_offset(w->slots, slab);
}

uint32_t window_available(const struct window *w)
{
        uint32_t n = 0;

        for (uint32_t i = 0; i < w->slots->n; i++)
                n += slab_available(&w->slabs[i]);
        return n;
}
