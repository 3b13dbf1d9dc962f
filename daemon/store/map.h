/*
 * map.h - access to a state's planes.  Included by store.h.
 */
#pragma once

#include "daemon/compute/device/device.h"
#include "daemon/store/undo.h"

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
struct mapping state_map(const struct state *state, struct plane plane, uint32_t group,
                         struct range part);
/* As state_map(), for the loop thread.  Calls done() once the elements can be read and written.
 * That is before this returns, because the memory of all planes has an address. */
void state_want(struct mapping *m, const struct state *state, struct plane plane, uint32_t group,
                struct range part, void (*done)(struct mapping *m));
/* Reads part of a tensor as clients get it: moments and master weights in fp32, whatever their
 * formats. */
void state_read(const struct state *state, struct plane plane, uint32_t group, struct range part,
                const struct device_ops *ops, void *to);
/* Changes elements of a tensor in MASTER or a moment, and what is served of a master that is not in
 * fp32. */
void state_write(const struct state *state, struct plane plane, uint32_t group, struct range part,
                 const struct device_ops *ops, const float *from);
/* Must be called before the state is closed, dropped or moved to a GPU. */
void state_unmap(struct mapping *m);

/*
 * Fills a shard's master segments with their tensors' first values (init.h) and writes serve.
 * Called on an offload thread; several groups may be filled at the same time.  0 or -ENOMEM.
 */
int state_init_group(struct state *state, const layout *l, uint32_t group,
                     const struct device_ops *ops);
/* Writes serve from master for a shard.  There is nothing to do where trainers get master itself,
 * or where master needs the serve plane. */
void state_serve_group(struct state *state, const layout *l, uint32_t group,
                       const struct device_ops *ops);
/*
 * Copies what is served of a chunk that is a unit, of a group that has a serve plane.  old: its
 * values before an update; NULL: the serve plane has not been written since.
 */
void state_was(const struct state *state, const layout *l, uint32_t chunk,
               const struct undo_values *old, const struct device_ops *ops, void *to);
/* As state_serve_group(), for one unit of a shard's update. */
void state_serve_unit(struct state *state, const layout *l, uint32_t unit,
                      const struct device_ops *ops);
