/*
 * The slabs of a gather window: which group is in which, who holds it, which may be
 * used next.  Pure; bytes and waiting are gather.c's.
 *
 * A slab is free, or belongs to one group.  One with leases, with a gather in flight (pinned) or
 * that is copied from is never taken; of the others the least recently used goes first, and one
 * that holds nothing before any other.
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
};

struct window {
        struct slots *slots;
        struct slab *slabs; /* [slots->n] */
        uint32_t *slab_of;  /* [group]; SLAB_NONE */
        uint32_t n_groups;
        uint64_t clock;
};

/* Takes slots over on success. */
int window_init(struct window *w, uint32_t n_groups, struct slots *slots);
void window_deinit(struct window *w);
/*
 * A slab for a group that has none: SLAB_NONE if all are held.  The group that was
 * in it before loses it (*ret_evicted, or SLAB_NONE).
 */
uint32_t window_take(struct window *w, uint32_t group, uint32_t *ret_evicted);
void window_lease(struct window *w, uint32_t slab);
/* True if that was the last lease. */
bool window_release(struct window *w, uint32_t slab);
void window_free_slab(struct window *w, uint32_t slab);
uint64_t window_offset(const struct window *w, uint32_t slab);
/* Slabs that may be taken. */
uint32_t window_available(const struct window *w);
