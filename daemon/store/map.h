/*
 * map.h - what lies in a state's planes, and its update.  Included by store.h.
 *
 * `ops` are those of host memory; a state on a GPU uses gpu_ops().
 */
#pragma once

#include "daemon/device/device.h"
#include "daemon/store/state.h"

/*
 * Elements of a plane, at their address: they have one from state_map() to state_unmap(), and no
 * other call tells where a plane lies.  Any thread.  The CPU must not touch those of a state on a
 * GPU.
 */
struct mapping {
        const struct state *state; /* NULL: nothing is mapped */
        void *at;                  /* NULL if there are no elements */
};

/* Elements of MASTER, of a moment or of GRAD; plan_span() says where in it a group lies. */
struct mapping state_map(const struct state *state, enum zero_plane plane, struct range elements);
/* Elements of a group, a part of the shard, as trainers get it: in serve, or in master for fp32. */
struct mapping state_map_shard(const struct state *state, const layout *l, uint32_t group,
                               struct range part);
/* Before the state is closed, dropped or put on a GPU. */
void state_unmap(struct mapping *m);

/*
 * Fills a shard's master segments with their tensors' first values (init.h) and writes serve.
 * For an offload thread; groups may be filled in parallel.  -ENOMEM.
 */
int state_init_group(struct state *state, const layout *l, uint32_t group,
                     const struct device_ops *ops);
/* Writes serve from master for a shard (nothing to do for fp32 groups). */
void state_serve_group(struct state *state, const layout *l, uint32_t group,
                       const struct device_ops *ops);
/* ... for a chunk of a shard in host memory. */
void state_serve_chunk(struct state *state, const layout *l, uint32_t chunk,
                       const struct device_ops *ops);

/* The version a chunk is at; UINT64_MAX if that cannot be read (the memory is damaged). */
uint64_t state_chunk_version(const struct state *state, uint32_t chunk);
/* Values of a chunk, one behind the other in each plane: master, then moments. */
struct undo_values {
        const float *planes[UPDATE_PLANES];
};
/*
 * Brings a chunk to `version` (the record's, plus 1): its optimizer's rule for the tensors that
 * have a gradient, with scalars[tensor]; the others stay as they are.  By thread `slot`, for a
 * state in host memory.  The old values stay readable until that thread's next call.
 */
struct undo_values undo_update(struct state *state, uint32_t slot, uint32_t chunk, uint64_t version,
                               const struct device_ops *ops, const struct update_scalars *scalars);
/* As undo_update() for a chunk whose values stay as they are, or that a GPU has updated. */
void undo_skip(struct state *state, uint32_t chunk, uint64_t version);
/* Copies what a chunk holds now to the slot of thread `slot`, which updates no chunk meanwhile. */
struct undo_values undo_values(const struct state *state, uint32_t slot, uint32_t chunk);
