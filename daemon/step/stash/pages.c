/* See pages.h. */
#include "daemon/step/stash/pages.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

uint64_t pages_unit(uint64_t bytes)
{
        uint64_t unit = PAGES_SMALLEST;

        while (bytes / unit >= PAGES_UNITS)
                unit *= 2;
        return unit;
}

int pages_init(struct pages *p, uint64_t bytes)
{
        *p = (struct pages){ .unit = pages_unit(bytes) };
        p->n = (uint32_t)((bytes + p->unit - 1) / p->unit);
        p->taken = calloc(p->n ? p->n : 1, sizeof *p->taken);
        return p->taken ? 0 : -ENOMEM;
}

int pages_init_slots(struct pages *p, uint64_t first, uint64_t unit, uint32_t n)
{
        *p = (struct pages){ .first = first, .unit = unit, .n = n, .contiguous = true };
        p->taken = calloc(n, sizeof *p->taken);
        return p->taken ? 0 : -ENOMEM;
}

void pages_deinit(struct pages *p)
{
        free(p->taken);
        p->taken = NULL;
}

uint64_t pages_round(const struct pages *p, uint64_t bytes)
{
        return (bytes + p->unit - 1) / p->unit * p->unit;
}

/* Finds the next gap: *at is its first unit.  False: there is none, and *at is `end`. */
static bool pages_gap(const struct pages *p, uint32_t *at, uint32_t end, uint32_t *ret_n)
{
        uint32_t i = *at;

        while (i < end && p->taken[i])
                i++;
        for (*at = i; i < end && !p->taken[i];)
                i++;
        *ret_n = i - *at;
        return *ret_n > 0;
}

/* The first unit of a gap that is large enough, from `from` on; n: there is none. */
static uint32_t pages_find(const struct pages *p, uint32_t from, uint32_t wanted)
{
        uint32_t n = 0;

        for (uint32_t at = from; pages_gap(p, &at, p->n, &n); at += n)
                if (n >= wanted)
                        return at;
        return p->n;
}

static void pages_mark(struct pages *p, const struct extent *e, bool taken)
{
        memset(p->taken + (e->offset - p->first) / p->unit, taken, e->bytes / p->unit);
}

/* Collects gaps in address order until they have enough units, and returns their number.  The
 * region must have enough.  ret NULL: only counts. */
static uint32_t pages_gather(struct pages *p, uint32_t wanted, struct extent *ret)
{
        uint32_t used = 0, n = 0;

        for (uint32_t at = 0; wanted && pages_gap(p, &at, p->n, &n); at += n, used++) {
                n = n < wanted ? n : wanted;
                wanted -= n;
                if (ret)
                        ret[used] = (struct extent){ p->first + at * p->unit, n * p->unit };
        }
        return used;
}

int pages_take(struct pages *p, uint64_t bytes, struct block *ret)
{
        uint64_t wanted = bytes / p->unit + (bytes % p->unit != 0);
        uint32_t at;

        assert(bytes > 0);
        if (wanted > p->n - p->used)
                return -ENOSPC;
        at = pages_find(p, p->at, (uint32_t)wanted);
        if (at == p->n)
                at = pages_find(p, 0, (uint32_t)wanted);
        if (at == p->n && p->contiguous)
                return -ENOSPC;
        ret->n = at < p->n ? 1 : pages_gather(p, (uint32_t)wanted, NULL);
        ret->extents = calloc(ret->n, sizeof *ret->extents);
        if (!ret->extents)
                return -ENOMEM;
        if (at < p->n)
                ret->extents[0] = (struct extent){ p->first + at * p->unit, wanted * p->unit };
        else
                pages_gather(p, (uint32_t)wanted, ret->extents);
        for (uint32_t i = 0; i < ret->n; i++)
                pages_mark(p, &ret->extents[i], true);
        p->at = (uint32_t)((ret->extents[ret->n - 1].offset + ret->extents[ret->n - 1].bytes -
                            p->first) /
                           p->unit);
        p->used += (uint32_t)wanted;
        p->most = p->used > p->most ? p->used : p->most;
        return 0;
}

void pages_move(struct pages *p, struct extent *e, uint64_t offset)
{
        pages_mark(p, e, false);
        e->offset = offset;
        pages_mark(p, e, true);
}

void pages_give(struct pages *p, struct block *b)
{
        for (uint32_t i = 0; i < b->n; i++) {
                const struct extent *e = &b->extents[i];
                uint32_t at = (uint32_t)((e->offset - p->first) / p->unit);

                assert(p->used >= e->bytes / p->unit && p->taken[at]);
                pages_mark(p, e, false);
                p->used -= (uint32_t)(e->bytes / p->unit);
                if (at < p->at)
                        p->at = at;
        }
        free(b->extents);
        *b = (struct block){ 0 };
}
