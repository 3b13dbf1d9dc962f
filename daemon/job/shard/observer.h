/*
 * observer.h - who looks on while an owner's shards change.  Included by shard.h.
 */
#pragma once

#include "daemon/store/store.h"

struct job;
struct replica;

/*
 * Observes an owner's shards while they are made, read and updated.  engine/engine.c lists all
 * observers; each event goes to all of them in that order.  A NULL hook does nothing.  All run on
 * the loop thread, except update_chunk().
 */
struct shard_observer {
        int (*made)(struct replica *h); /* -ENOMEM */
        void (*freed)(struct replica *h);
        /* A group is at a new version. */
        void (*ready)(struct replica *h, uint32_t group);
        /* A group's last reader is gone. */
        void (*unpinned)(struct replica *h);
        /* The sum of a group's gradient is complete. */
        void (*summed)(struct replica *h, uint32_t group);
        /*
         * An update begins to change a group, which is not pinned.  Returns from which place in the
         * stream of a checkpoint on the observer saves what changes; UINT64_MAX: nowhere.  If it
         * saves, update_chunk() gets each chunk's old values, on an offload thread, and
         * update_end() comes after the group's last chunk.  At most one observer saves.
         */
        uint64_t (*update_begin)(struct replica *h, uint32_t group);
        void (*update_chunk)(const struct replica *h, uint32_t chunk, struct undo_values old,
                             uint64_t from);
        void (*update_end)(struct replica *h);
        /* An update is over, and the next one has not begun. */
        void (*updated)(struct replica *h);
        /* An update or a copy of planes has ended, or a vote is decided. */
        void (*settled)(struct job *job);
};

#define for_observers(x, o)                                                                  \
        for (const struct shard_observer *const *o##_at = (x)->observers, *o; (o = *o##_at); \
             o##_at++)
