/* launch.h - updates on a device other than the host: large pieces, in place. */
#pragma once

#include "daemon/step/update/update.h"

/* Memory of the device for the largest matrix of a group; kept from update to update, because to
 * allocate and to free it waits for the device. */
struct launch_room {
        bool taken; /* by a group that is updated */
        void *memory;
        size_t bytes;
};

/*
 * Updates what is left of the replica's shard of the group, and unless it is ahead writes what the
 * shard serves.  The gradient is the sum of the node gradient's contributions; NULL: it is in the
 * state.  room: of a group with matrices.  For an offload thread.  -ENOMEM: nothing has changed,
 * try again later.
 */
int launch_shard(const struct replica *h, const struct unit_update *update,
                 const struct node_gradient *node_gradient, uint32_t group,
                 struct launch_room *room);
