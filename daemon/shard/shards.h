/*
 * shards.h - what the several ways to a state have in common: making one (create.c, loading.c,
 * filling.c), saying where it stands, taking it up.
 */
#pragma once

#include "daemon/engine/engine.h"

/* state_create() or state_draft() */
typedef int shards_maker(struct store *store, const struct state_identity *id, const layout *l,
                         struct plan *plan, uint32_t n_undo, struct state **ret,
                         struct fault *fault);
/* Where this node puts states of the owner list in force (state_identity.place). */
uint32_t shards_place(const struct exchange *x, uint32_t owner, uint32_t copy);
/* An owner's shards of the owner list in force, empty, in their place; p is over id->n_owners.
 * For a thread that may block. */
int shards_make(const struct exchange *x, const struct state_identity *id, const layout *l,
                const struct partition *p, uint32_t owner, shards_maker *make, struct state **ret,
                struct fault *fault);

/* Trainable elements of a range of a group, gaps behind trainable tensors included. */
uint64_t shard_trainable(const layout *l, uint32_t group, struct range range);
/* Bytes of an owner's master weights and moments: what a fill brings. */
uint64_t shards_bytes(const layout *l, const struct partition *p, uint32_t owner);

/* Where a state stands; the messages it points to are the caller's. */
struct standing_message {
        Zero__Standing standing;
        Zero__Decision decision;
        struct step_params_message params;
        int64_t norm[EXACT_SUM_BINS];
};
Zero__Standing *standing_fill(const struct state *state, struct standing_message *ret);
