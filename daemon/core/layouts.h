/*
 * layouts.h - layouts of ranks that attach, and of jobs that this node coordinates.
 *
 * Ranks of a job bring one layout: equal layouts of one user are kept once.  What a user's layouts
 * take before a job stands for them is bounded.  Loop thread.
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
        Zero__Layout *message; /* the same, as it is sent */
        uint64_t bytes;
};

/* Whether the user may have another such layout: ZERO_EQUOTA.  A user without others may have any.
 */
int layouts_admit(const struct engine *x, uint32_t uid, const layout *l, struct fault *fault);
/* Takes the layout over in any case.  A reference; NULL: out of memory. */
struct shared_layout *layouts_take(struct engine *x, uint32_t uid, layout *l);
/* NULL is accepted. */
void layouts_unref(struct shared_layout *s);
