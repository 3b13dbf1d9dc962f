/*
 * What each rank keeps with a step (zero_step.blob): a few bytes a rank, in a file beside the
 * state that outlives the process.
 *
 * Each rank has two places.  state_blob_stage() writes the one that does not hold what the last
 * decided attempt kept, so that a process killed at any instruction has, for every rank,
 * what belongs to the attempt that its record calls the last decided one.  A place counts only
 * if its checksum is right and its attempt is the record's decided_attempt: what was kept with an
 * attempt that came to nothing, or with an earlier one, is never given for it.  So every
 * rank's bytes are staged in every attempt, also if they are the same again.
 *
 * The file appears with the first bytes that are kept; a job that keeps nothing has none.
 */
#pragma once

#include "daemon/store/state.h"

/*
 * Before state_prepare() of `attempt`: n bytes (at most ZERO_BLOB_MAX; 0: the rank keeps nothing
 * with this step).  Again for the same rank and attempt: the later bytes count.  Grows the file
 * for ranks it has no places for yet.  0 or -errno: -EDQUOT if the store's quota, -ENOSPC if
 * the file system is full; -EINVAL for a rank or a length above its bound, or an attempt
 * that is not after the last decided one.
 */
int state_blob_stage(struct state *state, uint32_t rank, uint64_t attempt, const void *p, size_t n);
/*
 * What the rank kept with the last decided attempt; *ret_bytes 0 if nothing.  A pointer into the
 * file, valid until the next state_blob_stage().
 */
const void *state_blob(const struct state *state, uint32_t rank, size_t *ret_bytes);
