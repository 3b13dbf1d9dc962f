/*
 * layouts.h - layouts of ranks that attach, and of jobs that this node coordinates.
 *
 * All ranks of a job bring the same layout, so equal layouts of a user are kept once.  The memory
 * of a user's layouts is bounded.  Loop thread.
 */
#pragma once

#include "proto/layout.h"
#include "proto/list.h"

struct engine;

struct shared_layout {
        struct list link; /* engine.layouts */
        struct engine *x;
        uint32_t references, uid;
        uint8_t hash[LAYOUT_HASH];
        layout *layout;
        Zero__Layout *message; /* the layout as a message */
        uint64_t bytes;
};

/* Whether the user may have one more such layout: ZERO_EQUOTA.  A user's first layout is always
 * allowed. */
int layouts_admit(const struct engine *x, uint32_t uid, const layout *l, struct fault *fault);
/* Returns a reference, and takes the layout over in any case.  NULL: out of memory. */
struct shared_layout *layouts_take(struct engine *x, uint32_t uid, layout *l);
/* Both: *ret is a reference.  Takes the layout over in any case. */
int layouts_add(struct engine *x, uint32_t uid, layout *l, struct shared_layout **ret,
                struct fault *fault);
/* NULL is accepted. */
void layouts_unref(struct shared_layout *s);
