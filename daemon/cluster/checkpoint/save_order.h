/*
 * save_order.h - who copies which part of a state while updates continue: the stream is cut into
 * pieces from its beginning on, and an update that reaches a group earlier saves the rest of the
 * group.
 *
 * Rule: everything before `next` is in a piece.  In a group that an update has begun, the update
 * saves everything behind `next` that changes; only frozen tensors are still cut into pieces.  A
 * group is begun once: at its next update everything is saved.  Pure.  The caller cuts no piece
 * while an update runs that is going to change the group, and begins no group while one of its
 * pieces is being copied.
 */
#pragma once

#include "daemon/store/snapshot/snapshot.h"

struct save_piece {
        uint64_t offset, bytes; /* in the stream; within one extent */
        uint32_t group;
};

struct save_order {
        const struct snapshot_map *map; /* belongs to the caller */
        bool *begun;                    /* [group] */
        uint64_t next;
        uint32_t extent;          /* the first one not before `next` */
        uint32_t copying, saving; /* numbers of pieces, and of groups */
};

int save_order_init(struct save_order *o, const struct snapshot_map *map); /* -ENOMEM */
void save_order_deinit(struct save_order *o);
/* Cuts the next piece, of at most `most` bytes; false: there is none. */
bool save_order_cut(struct save_order *o, uint64_t most, struct save_piece *ret);
/* A piece is copied. */
void save_order_copied(struct save_order *o);
/* An update begins a group.  Returns from which place in the stream on it saves; UINT64_MAX:
 * nothing.  Otherwise save_order_saved() follows. */
uint64_t save_order_begin(struct save_order *o, uint32_t group);
void save_order_saved(struct save_order *o);
/* Whether everything is copied or saved. */
bool save_order_over(struct save_order *o);
