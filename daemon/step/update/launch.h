/* launch.h - updates on a device other than the host: large pieces, in place. */
#pragma once

#include "daemon/step/update/update.h"

/*
 * Updates the replica's shard of the group to `version`; skips what is there already.  scalars,
 * present: [tensor].  The gradient is the sum of the node
 * gradient's contributions; NULL: the gradient is in the state.  serve: writes the served
 * parameters too.  For an offload thread.
 */
void launch_group(const struct replica *h, const struct update_scalars *scalars,
                  const uint8_t *present, const struct node_gradient *node_gradient, bool serve,
                  uint32_t group, uint64_t version);
