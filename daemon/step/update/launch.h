/* launch.h - updates on a device other than the host: large pieces, in place. */
#pragma once

#include "daemon/step/update/update.h"

/*
 * Updates what is left of the replica's shard of the group, and unless it is ahead writes what the
 * shard serves.  The gradient is the sum of the node gradient's contributions; NULL: it is in the
 * state.  For an offload thread.
 */
void launch_shard(const struct replica *h, const struct unit_update *update,
                  const struct node_gradient *node_gradient, uint32_t group);
