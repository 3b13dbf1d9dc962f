/* launch.h - updates on a device other than the host: large pieces, in place. */
#pragma once

#include "daemon/update/update.h"

/*
 * Updates the replica's chunks `first` to `end` - 1, all of one group, to `version`; skips those
 * that are there already.  scalars, present: [tensor].  The gradient is the sum of the node
 * gradient's contributions; NULL: the gradient is in the state.  serve: writes the served
 * parameters too.  For an offload thread.
 */
void launch_chunks(const struct replica *h, const struct update_scalars *scalars,
                   const uint8_t *present, const struct node_gradient *node_gradient, bool serve,
                   uint32_t first, uint32_t end, uint64_t version);
