/*
 * chunk.h - the default size of a chunk: how many elements an update changes and commits at once.
 *
 * Rule: a chunk takes at most a quarter of the first-level data cache, unless that is less than
 * CHUNK_LEAST.  An optimizer with two moments touches CHUNK_ELEMENT_BYTES of that cache for each
 * element: master, moments and grad in their planes, and master and moments once more in the undo
 * slot.  The other three quarters are for lines that the CPU fetches ahead and for conflicts
 * between the cache's ways.  At 48 KiB the rule gives 384, which was the best size measured.  At
 * 32 KiB 384 was the best, too: with the 256 of the rule, what surrounds a chunk took a tenth of
 * the update.  Other sizes are computed.
 */
#pragma once

#include <stdint.h>

enum {
        CHUNK_STEP = 128, /* LAYOUT_ALIGN */
        CHUNK_LEAST = 384,
        CHUNK_MOST = 65536,
        CHUNK_ELEMENT_BYTES = 28,
        CHUNK_SHARE = 4, /* a chunk takes 1/4 of the cache */
};

/* Elements for a cache of `bytes` bytes, 0 if unknown; a multiple of CHUNK_STEP. */
uint32_t chunk_of_cache(uint64_t bytes);
/* Elements for the CPU that the process runs on. */
uint32_t chunk_default(void);
