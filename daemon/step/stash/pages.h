/*
 * pages.h - blocks out of one region, in units of whole pages (M_D of ZeRO-R, SC20, section 6.3).
 * Pure.
 *
 * A block is one extent if a gap is large enough.  Otherwise it consists of several gaps, so it
 * fails only if too few units are free.  With `contiguous` a block must be one extent, and fails
 * also if no gap is large enough.  Then entries are moved together (slide.c).
 */
#pragma once

#include <stdbool.h>

#include "proto/extents.h"

/* At most half of the units can be gaps, and each gap may become a mapping.  A process may have
 * 65,530 mappings (vm.max_map_count). */
enum { PAGES_UNITS = 32768, PAGES_SMALLEST = 4096 };

struct pages {
        uint64_t first, unit; /* bytes: the region's offset; the size of a unit */
        bool contiguous;      /* a block is one extent */
        uint32_t n, used;     /* units */
        uint32_t most;        /* the most units that were ever in use at the same time */
        uint32_t at;          /* unit where the next search begins */
        bool *taken;          /* [unit] */
};

struct block {
        struct extent *extents; /* NULL: none */
        uint32_t n;
};

/* The unit's size in a region of so many bytes. */
uint64_t pages_unit(uint64_t bytes);
/* The region has `bytes` bytes, rounded up to whole units.  0 or -ENOMEM. */
int pages_init(struct pages *p, uint64_t bytes);
/* The region has n units of that size, from `first` on, and blocks are one extent.  0 or -ENOMEM.
 */
int pages_init_slots(struct pages *p, uint64_t first, uint64_t unit, uint32_t n);
void pages_deinit(struct pages *p);
uint64_t pages_round(const struct pages *p, uint64_t bytes);
/* bytes > 0.  -ENOSPC: too few units are free, or with `contiguous` no gap is large enough;
 * -ENOMEM. */
int pages_take(struct pages *p, uint64_t bytes, struct block *ret);
/* Moves an extent to units that are free or its own. */
void pages_move(struct pages *p, struct extent *e, uint64_t offset);
/* Gives the block's units back and empties it.  The block may be empty. */
void pages_give(struct pages *p, struct block *b);
