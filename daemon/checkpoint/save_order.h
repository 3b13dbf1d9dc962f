/*
 * save_order.h - who copies what of a state that goes on being updated: pieces are cut of the
 * stream from its beginning on, and an update that comes to a group before them saves what is left
 * of it.
 *
 * Rule: what is before `next` is in a piece.  In a group that an update has begun all that changes
 * from there on is the update's to save, and only what is frozen is still cut into pieces.  A
 * group is begun once: by its next update all is saved.
 * Pure; no piece may be cut while an update runs that is to change the group, and no update
 * may begin one of which a piece is being copied.
 */
#pragma once

#include "daemon/store/snapshot/snapshot.h"

struct save_piece {
        uint64_t offset, bytes; /* in the stream, of one extent */
        uint32_t group;
};

struct save_order {
        const struct snapshot_map *map; /* the caller's */
        bool *begun;                    /* [group] */
        uint64_t next;
        uint32_t extent;          /* the first that is not behind `next` */
        uint32_t copying, saving; /* pieces, and groups */
};

int save_order_init(struct save_order *o, const struct snapshot_map *map); /* -ENOMEM */
void save_order_deinit(struct save_order *o);
/* Cuts the next piece, of at most so many bytes; false: there is none. */
bool save_order_cut(struct save_order *o, uint64_t most, struct save_piece *ret);
/* One that was cut is copied. */
void save_order_copied(struct save_order *o);
/* An update begins a group: from where on in the stream it has to save; UINT64_MAX: nothing, else
 * save_order_saved() is to follow. */
uint64_t save_order_begin(struct save_order *o, uint32_t group);
void save_order_saved(struct save_order *o);
/* All is copied or saved. */
bool save_order_over(struct save_order *o);
