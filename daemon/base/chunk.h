/*
 * chunk.h - how many elements an update changes and commits at once where nobody says.
 *
 * Rule: a chunk takes at most a quarter of the first-level data cache.  An optimizer with two
 * moments touches CHUNK_ELEMENT_BYTES of that cache for each element: master, moments and grad in
 * their planes, and the first three once more in the undo slot.  Three quarters are left to the
 * lines that the CPU fetches ahead and to what the caches' ways cannot hold.  At 48 KiB the rule
 * gives 384, which was measured to be the best; other sizes are computed, not measured.
 */
#pragma once

#include <stdint.h>

enum {
        CHUNK_STEP = 128, /* LAYOUT_ALIGN */
        CHUNK_MOST = 65536,
        CHUNK_ELEMENT_BYTES = 28,
        CHUNK_SHARE = 4, /* of the cache, one in so many */
        CHUNK_CACHE_UNKNOWN =
                32768, /* bytes, for a CPU that reports no size: no common one has less */
};

/* Elements for a cache of so many bytes; 0: unknown.  A multiple of CHUNK_STEP. */
uint32_t chunk_of_cache(uint64_t bytes);
/* Elements for the CPU that the process runs on. */
uint32_t chunk_default(void);
