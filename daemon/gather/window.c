/* Slabs of a gather window.  Pure. */
#include "daemon/gather/window.h"

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

/* The least recently used available slab.  A free slab has `used` 0, so it goes first. */
static uint32_t window_choose(const struct window *w)
{
        uint32_t best = SLAB_NONE;

        for (uint32_t i = 0; i < w->slots->n; i++) {
                const struct slab *s = &w->slabs[i];

                if (!slab_available(s))
                        continue;
                if (best == SLAB_NONE || s->used < w->slabs[best].used)
                        best = i;
        }
        return best;
}

uint32_t window_take(struct window *w, uint32_t group, uint32_t *ret_evicted)
{
        uint32_t i;

        assert(group < w->n_groups && w->slab_of[group] == SLAB_NONE);
        i = w->slots->whole ? group : window_choose(w);
        if (i == SLAB_NONE || !slab_available(&w->slabs[i]))
                return SLAB_NONE;
        *ret_evicted = w->slabs[i].group;
        if (w->slabs[i].group != SLAB_NONE)
                w->slab_of[w->slabs[i].group] = SLAB_NONE;
        w->slabs[i] = (struct slab){ .group = group, .used = ++w->clock };
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

void window_free_slab(struct window *w, uint32_t slab)
{
        struct slab *s = &w->slabs[slab];

        assert(s->leases == 0 && s->readers == 0);
        if (s->group != SLAB_NONE)
                w->slab_of[s->group] = SLAB_NONE;
        *s = (struct slab){ .group = SLAB_NONE };
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
