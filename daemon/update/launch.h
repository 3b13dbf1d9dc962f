/* launch.h - updates on a GPU: large pieces, in place. */
#pragma once

#include "daemon/update/update.h"

/*
 * Brings a range of chunks of one group, of a replica on a GPU, to a version; those that are there
 * are left as they are.  scalars: [tensor].  The gradient is the sum of what the node gradient has,
 * or, if that is NULL, in the state.  For an offload thread.
 */
void launch_chunks(const struct replica *h, const struct update_scalars *scalars,
                   const struct node_gradient *node_gradient, uint32_t first, uint32_t end,
                   uint64_t version);
