/*
 * A window of the daemon's memory, and its successors.
 *
 * Rule: addresses that were given out stay mapped until mapping_deinit(), whatever becomes
 * of the daemon.  The next window takes the last one's address if it fits there; what
 * is left of the last one then reads as zeros and holds no memory of the daemon's.
 *
 * On a GPU a window cannot take the address of another, and what is mapped holds the GPU's memory:
 * there a window stays mapped until its successor is replaced too.
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
        bool kept; /* its descriptor is, and nothing mapped: for private views */
        int fd;
        struct remains *remains;     /* of windows at other addresses */
        void (*unmap)(void *memory); /* of a window on a GPU, else NULL */
        void *before;                /* ... and the one before it */
};

/*
 * Maps a window, or keeps a copy of its descriptor if protection is PROT_NONE; fd stays the
 * caller's.  Its pages are there at once, but for those of the first `lazy` bytes, which appear
 * when they are touched.  -errno.
 */
int mapping_open(int fd, uint64_t bytes, int protection, uint64_t lazy, struct mapping *ret);
/* A window on a GPU, mapped there already. */
void mapping_take(void *memory, uint64_t bytes, void (*unmap)(void *memory), struct mapping *ret);
void mapping_deinit(struct mapping *m);
/*
 * Puts the window `next`, which may be none, in m's place; next is empty then.  -errno: the window
 * of m may be gone, its addresses are not.
 */
int mapping_replace(struct mapping *m, struct mapping *next);
