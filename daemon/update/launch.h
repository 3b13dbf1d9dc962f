/* launch.h - updates on a device other than the host: large pieces, in place. */
#pragma once

#include "daemon/update/update.h"

/*
 * Brings those of a range of chunks of one group that are at an older version to `version`, for a
 * replica there. scalars: [tensor].  The gradient is the sum of the node gradient's
 * contributions, or, if that is NULL, in the state.  For an offload thread.
 */
void launch_chunks(const struct replica *h, const struct update_scalars *scalars,
                   const struct node_gradient *node_gradient, uint32_t first, uint32_t end,
                   uint64_t version);
