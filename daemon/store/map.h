/*
 * map.h - access to a state's planes, and their update.  Included by store.h.
 */
#pragma once

#include "daemon/compute/device/device.h"
#include "daemon/store/state.h"

/*
 * The address of a plane's elements, valid from state_map() to state_unmap().  No other call tells
 * where a plane lies.  Any thread.  The CPU must not touch the elements of a state on a GPU.
 */
struct mapping {
        const struct state *state; /* NULL: nothing is mapped */
        void *at;                  /* NULL if there are no elements */
        uint64_t bytes;
};

/* What a part of a group's shard has in a plane of the group (plan_bytes()).  SERVE: the part as
 * trainers get it. */
struct mapping state_map(const struct state *state, enum zero_plane plane, uint32_t group,
                         struct range part);
/* Must be called before the state is closed, dropped or moved to a GPU. */
void state_unmap(struct mapping *m);

/*
 * Fills a shard's master segments with their tensors' first values (init.h) and writes serve.
 * Called on an offload thread; several groups may be filled at the same time.  0 or -ENOMEM.
 */
int state_init_group(struct state *state, const layout *l, uint32_t group,
                     const struct device_ops *ops);
/* Writes serve from master for a shard (nothing to do for fp32 groups). */
void state_serve_group(struct state *state, const layout *l, uint32_t group,
                       const struct device_ops *ops);
/* As state_serve_group(), for one chunk of a shard in host memory. */
void state_serve_chunk(struct state *state, const layout *l, uint32_t chunk,
                       const struct device_ops *ops);

/* A chunk's version; UINT64_MAX if its word is damaged.  Only for chunks with a version. */
uint64_t state_chunk_version(const struct state *state, uint32_t chunk);
/*
 * How many chunks of a shard have versions, from the first one on.  In host memory all have one.
 * On a GPU the first chunk has the version of the whole shard, because nothing there outlives the
 * process.  A shard that came to the GPU in the middle of an update keeps all versions until that
 * update ends.
 */
uint32_t state_chunks(const struct state *state, uint32_t group);
/* A chunk's values, contiguous in each plane: master, then moments. */
struct undo_values {
        const float *planes[UPDATE_PLANES];
};
/*
 * Brings a chunk to `version`, which is the record's plus 1.  Applies the optimizer's rule, with
 * scalars[tensor], to the tensors that have a gradient; other tensors stay as they are.  The state
 * is in host memory; `slot` numbers the calling thread.  Returns the old values, which stay
 * readable until that thread's next call.
 */
struct undo_values undo_update(struct state *state, uint32_t slot, uint32_t chunk, uint64_t version,
                               const struct device_ops *ops, const struct update_scalars *scalars);
/*
 * As undo_update(), for a chunk of an eager group before the step is decided.  The record may
 * change meanwhile.  present: [tensor]: it has a gradient.  The state keeps the old values until
 * the next such call for the chunk.
 */
struct undo_values undo_update_ahead(struct state *state, uint32_t slot, uint32_t chunk,
                                     uint64_t version, const uint8_t *present,
                                     const struct device_ops *ops,
                                     const struct update_scalars *scalars);
/* Puts the old values of undo_update_ahead() back, and the chunk at `version`.  The step may be
 * decided meanwhile. */
void undo_ahead(struct state *state, uint32_t slot, uint32_t chunk, uint64_t version);
/* Keeps the old values of an eager group that a GPU is about to update. */
void undo_keep(const struct state *state, uint32_t group);
/* Puts the values that undo_keep() kept back, and the shard on the GPU at `version`. */
void undo_back(struct state *state, uint32_t group, uint64_t version);
/* Brings a chunk to `version` without an update: no value of it changes. */
void undo_skip(struct state *state, uint32_t chunk, uint64_t version);
/* Records that a GPU has brought all of a shard to `version`. */
void state_updated(struct state *state, uint32_t group, uint64_t version);
/* Copies a chunk's current values to the slot of thread `slot`, which must not be updating a chunk.
 * They stay readable until that thread's next call. */
struct undo_values undo_values(const struct state *state, uint32_t slot, uint32_t chunk);
