/*
 * extents.h - a block of a segment that may lie there in several pieces.  Daemon and client give
 * the block one address.
 */
#pragma once

#include <stdint.h>

/* Of a stash, and so of an entry.  Sums of entries and their parts stay far below 2^64. */
#define STASH_BYTES_MAX (UINT64_C(1) << 50)

struct extent {
        uint64_t offset,
                bytes; /* in the segment; whole pages, except in what extents_cut() makes */
};

/*
 * The extents of a block's bytes from `first` on.  ret has room for n extents; returns how many
 * there are.
 */
uint32_t extents_cut(const struct extent *extents, uint32_t n, uint64_t first, uint64_t bytes,
                     struct extent *ret);
/*
 * One address for all extents, in their order.  base: where the segment fd is mapped; one extent
 * has its address there.  Several ones are mapped anew, until extents_unmap().  -errno.
 */
int extents_map(int fd, void *base, const struct extent *extents, uint32_t n, int protection,
                void **ret);
void extents_unmap(void *address, const struct extent *extents, uint32_t n);
