/*
 * part.h - a part of a group while somebody reads it.  Included by shard.h.
 */
#pragma once

#include "daemon/store/store.h"

struct replica;

/* A part of a group that is read: mapped, and the group is pinned. */
struct shard_part {
        struct replica *replica; /* NULL: there is no part */
        uint32_t group;
        struct mapping bytes;
        void (*done)(struct shard_part *part);
};
/* Calls done() once the part can be read (state_want()).  done() or what follows ends the part. */
void shard_want(struct shard_part *part, struct replica *h, struct plane plane, uint32_t group,
                struct range range, void (*done)(struct shard_part *part));
void shard_part_end(struct shard_part *part);
