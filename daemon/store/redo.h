/*
 * Crash-consistent in-place update of a chunk at cache cost.
 *
 * Each updating thread owns one redo slot in the state file, small enough to stay
 * in L1.  The new master | exp_avg | exp_avg_sq are written to the slot, the slot is
 * marked valid (release), copied home, the chunk's version is raised (release),
 * the slot is freed (release).  Whatever the instruction at which the process
 * dies, the chunk is either at its old version and untouched, or restorable from
 * a valid slot, or at its new version.
 *
 * States on a GPU need none of it: nothing of them survives the process.  Their chunks are updated
 * in place, and then redo_keep() says so.
 */
#pragma once

#include "daemon/store/state.h"

/* Where thread `slot` writes the new values of `chunk`; each holds plan->chunk_elements floats. */
struct redo_view {
        float *p, *m, *v;
};
struct redo_view redo_begin(struct state *state, uint32_t slot, uint32_t chunk);
/*
 * Commits what redo_begin() gave as the chunk's values at `version` (the record's, plus 1).
 * The view stays readable until the slot's next redo_begin(), so that serve is
 * written from values that are in the cache.
 */
void redo_commit(struct state *state, uint32_t slot, uint32_t chunk, uint64_t version);
/* The same for a chunk whose values stay as they are (no tensor of it has a gradient), or that was
 * updated in place on a GPU. */
void redo_keep(struct state *state, uint32_t chunk, uint64_t version);
/* After a crash: copies valid slots home.  Returns how many there were. */
uint32_t redo_replay(struct state *state);
