/*
 * undo.h - updates of units, and how they are undone.  Included by store.h.
 *
 * A unit (plan.h) goes from one version to the next at once.  It is named by its first chunk.  Its
 * undo follows from what it is:
 *
 *   a chunk   (undo_slot.c) has its old values in a slot while its values change.  A process that
 *             is killed leaves the chunk at its new version, or the old values.
 *   a shard   (undo_kept.c) on a GPU does not outlive the process, and has no slot.
 *
 * A unit that is updated ahead of the decision keeps a copy of its old values until the next update
 * ahead.  Any thread may update a unit, but no two threads the same one.
 */
#pragma once

#include "daemon/compute/device/device.h"
#include "daemon/store/state.h"

/* A chunk's version; UINT64_MAX if its word is damaged.  Only for chunks with a version. */
uint64_t state_chunk_version(const struct state *state, uint32_t chunk);
/*
 * How many chunks of a shard have versions, from the first one on: one for each unit.  A shard that
 * came to a GPU in the middle of an update keeps the versions of all chunks until that update ends.
 */
uint32_t state_chunks(const struct state *state, uint32_t group);

/* What brings units to a version. */
struct unit_update {
        uint64_t version;       /* the record's plus 1 */
        bool ahead;             /* of the decision; the record may change meanwhile */
        const uint8_t *present; /* [tensor]: it has a gradient; others stay as they are */
        const struct update_scalars *scalars; /* [tensor] */
        const layout *layout;
        /* bf16, of the group's matrices, by element of the shard's gradient; NULL: it has none */
        const uint16_t *directions;
};

/* A chunk's values, contiguous in each plane and in its format: master, then moments. */
struct undo_values {
        const void *planes[UPDATE_PLANES];
        const uint16_t *served; /* of a master that is not in fp32; else NULL */
};

/* True if all of the unit is at the version. */
bool undo_reached(const struct state *state, uint32_t unit, uint64_t version);
/*
 * Updates a chunk that is a unit by its optimizer's rule.  `slot` numbers the calling thread.
 * Returns the old values, which stay readable until that thread's next call.
 */
struct undo_values undo_update(struct state *state, uint32_t slot, uint32_t chunk,
                               const struct unit_update *update, const struct device_ops *ops);
/* Copies a unit's values to the place of its old values, before an update ahead that has no slot.
 */
void undo_keep(const struct state *state, uint32_t unit);
/* The unit is at `version`: its values have changed without a slot, or do not change. */
void undo_done(struct state *state, uint32_t unit, uint64_t version);
/* Puts the old values of an update ahead back, and the unit at `version`.  The step may be decided
 * meanwhile. */
void undo_back(struct state *state, uint32_t slot, uint32_t unit, uint64_t version);
/* Copies a chunk's current values to the slot of thread `slot`, which must not be updating a chunk.
 * They stay readable until that thread's next call. */
struct undo_values undo_values(const struct state *state, uint32_t slot, uint32_t chunk);
