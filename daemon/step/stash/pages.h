/*
 * pages.h - blocks out of one region, in units of whole pages (M_D of ZeRO-R, SC20, section 6.3).
 * Pure.
 *
 * A block is one extent where a gap is large enough for it, and otherwise lies in several gaps.  So
 * a block fails only if fewer units are free than it needs, whatever was taken and given back
 * before.  Where a block cannot be put together of several extents (`contiguous`), it also fails if
 * no gap is large enough; then others slide together (slide.c).
 */
#pragma once

#include <stdbool.h>

#include "proto/extents.h"

/* More than half of them cannot be gaps; a process may have 65,530 mappings (vm.max_map_count). */
enum { PAGES_UNITS = 32768, PAGES_SMALLEST = 4096 };

struct pages {
        uint64_t first, unit; /* bytes: where the region begins, and of a unit */
        bool contiguous;      /* a block is one extent */
        uint32_t n, used, most,
                at;  /* units; most: at once, ever; at: where the next search begins */
        bool *taken; /* [n] */
};

struct block {
        struct extent *extents; /* NULL: none */
        uint32_t n;
};

/* Bytes of a unit of a region that has so many. */
uint64_t pages_unit(uint64_t bytes);
/* -ENOMEM.  The region is bytes, rounded up to whole units. */
int pages_init(struct pages *p, uint64_t bytes);
/* n units of that many bytes, of which a block takes one or several beside each other; -ENOMEM. */
int pages_init_slots(struct pages *p, uint64_t first, uint64_t unit, uint32_t n);
void pages_deinit(struct pages *p);
uint64_t pages_round(const struct pages *p, uint64_t bytes);
/* bytes > 0.  -ENOSPC: fewer units are free, or not beside each other; -ENOMEM. */
int pages_take(struct pages *p, uint64_t bytes, struct block *ret);
/* To memory that is free, or the extent's own. */
void pages_move(struct pages *p, struct extent *e, uint64_t offset);
/* Empties the block, which may be empty. */
void pages_give(struct pages *p, struct block *b);
