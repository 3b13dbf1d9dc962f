/*
 * The slabs of a gather window: which group each holds, who leases it, which slab goes next.  Pure:
 * gather.c has the bytes and the waiting.
 *
 * A slab is free or belongs to one group.  A slab is never taken while it has leases, while it is
 * being filled (pinned), or while somebody copies from it.  Of the others a slab that suits the
 * group's size goes first, a free one before the least recently used.
 *
 * A slab's pages take memory once they have been written to, and a sealed segment cannot give pages
 * back.  So a large group takes a slab that has had a large group, and a small group leaves that
 * slab alone: a window takes the memory of what is held at once, not of its largest group in every
 * slab.
 */
#pragma once

#include "proto/slots.h"

enum { SLAB_NONE = UINT32_MAX };

struct slab {
        uint32_t group; /* SLAB_NONE: free */
        uint32_t leases;
        bool pinned;      /* being filled */
        uint32_t readers; /* copies to other windows */
        uint64_t used;    /* clock of the last use */
        uint64_t touched; /* bytes of the largest group so far */
};

struct window {
        struct slots *slots;
        struct slab *slabs; /* [slots->n] */
        uint32_t *slab_of;  /* [group]; SLAB_NONE: it has none */
        uint32_t n_groups;
        uint64_t clock;
};

/* Takes slots over on success. */
int window_init(struct window *w, uint32_t n_groups, struct slots *slots);
void window_deinit(struct window *w);
/*
 * Takes a slab for a group of `bytes` that has none; SLAB_NONE: all are in use.  *ret_evicted is
 * the group that loses its slab, or SLAB_NONE.
 */
uint32_t window_take(struct window *w, uint32_t group, uint64_t bytes, uint32_t *ret_evicted);
void window_lease(struct window *w, uint32_t slab);
/* Returns true with the last lease. */
bool window_release(struct window *w, uint32_t slab);
uint64_t window_offset(const struct window *w, uint32_t slab);
/* Number of slabs that can be taken. */
uint32_t window_available(const struct window *w);
