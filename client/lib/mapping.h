/*
 * A window of the daemon's memory, and its successors.
 *
 * Rule: addresses that were given out stay mapped until mapping_deinit(), whatever happens to
 * the daemon.  The next window takes the address of the last one if it fits there.  The rest of the
 * last one then reads as zeros and holds none of the daemon's memory.
 *
 * On a GPU a window cannot take the address of another, and a mapped window occupies the GPU's
 * memory.  There a window stays mapped until its successor is replaced too.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct remains;

struct mapping {
        uint8_t *base;     /* NULL: nothing was mapped yet */
        uint64_t bytes;    /* of the window; 0: there is none */
        uint64_t reserved; /* whole pages at base, at least bytes if anything is mapped */
        int protection;
        bool kept; /* only the descriptor is kept, and nothing is mapped: for private views */
        int fd;
        struct remains *remains;     /* of windows at other addresses */
        void (*unmap)(void *memory); /* of a window on a GPU, else NULL */
        void *before;                /* the window before, on a GPU */
};

/*
 * Maps a window, or keeps a copy of its descriptor if protection is PROT_NONE (private views).  fd
 * stays the caller's.  lazy: pages take memory as they are touched, not at once.  -errno.
 */
int mapping_open(int fd, uint64_t bytes, int protection, bool lazy, struct mapping *ret);
/* Takes over a window on a GPU that is mapped already. */
void mapping_take(void *memory, uint64_t bytes, void (*unmap)(void *memory), struct mapping *ret);
void mapping_deinit(struct mapping *m);
/*
 * Puts the window `next`, which may be empty, in m's place, and empties next.  -errno: the window
 * of m may be gone, but its addresses stay mapped.
 */
int mapping_replace(struct mapping *m, struct mapping *next);
