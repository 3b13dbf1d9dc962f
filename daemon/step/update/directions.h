/*
 * directions.h - the directions in which an update moves matrices (compute/optimizer/muon.c).
 *
 * A direction needs all of a matrix, and nothing of it is in the state: after a crash it is
 * computed again, to the same bits.  So an update computes the directions of a group first, in
 * tasks, and then goes on chunk by chunk.
 */
#pragma once

#include "daemon/job/shard/shard.h"

/* Of an owner's shard of one group. */
struct directions;

/* For the update to `version`, by the recorded decision.  scalars: [tensor], until the end.
 * -ENOMEM: try again later.  done() is called after each task. */
int directions_new(struct replica *h, uint32_t group, uint64_t version,
                   const struct update_scalars *scalars, void (*done)(struct replica *h),
                   struct directions **ret);
/* Submits one task; false: none can run now, or there is no memory. */
bool directions_submit(struct directions *d);
/* True if no task is in flight, although not all directions are there. */
bool directions_starve(const struct directions *d);
/* NULL until all are there; then as unit_update.directions. */
const uint16_t *directions_values(const struct directions *d);
/* No task is in flight.  NULL is allowed. */
void directions_free(struct directions *d);
