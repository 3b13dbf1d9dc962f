/*
 * coding.h - codes how an update changes what a slice serves, for readers (job/deltas).
 *
 * An update only copies what a chunk served before into a buffer that has its size, from the
 * thread's cache.  What is served now stays until the group's next update, so threads on which no
 * step waits compare the two and code the delta then.  An update that comes earlier ends that.
 */
#pragma once

#include "daemon/job/deltas/deltas.h"
#include "daemon/job/shard/shard.h"

/* What the slices of a replica served before an update, of the groups that are coded. */
struct was;
/* A delta that is being coded. */
struct coding;

/*
 * An update begins that somebody may follow.  *was is there already, or is made if follow_deltas
 * leaves room; NULL: nothing is coded.
 */
void was_make(struct replica *h, struct was **was);
/* Takes the memory back once nobody reads it. */
void was_free(struct was **was);
/* Whether the group's deltas are coded. */
bool was_has(const struct was *was, const struct replica *h, uint32_t group);
/* Copies what the chunk serves, on an update's thread.  old_master: as of state_was(). */
void was_copy(struct was *was, const struct replica *h, uint32_t chunk,
              const struct undo_values *old);

/*
 * The group has been updated.  *ret is NULL without memory, and again once the delta is kept or
 * lost.
 */
void coding_start(struct replica *h, struct was *was, uint32_t group, uint64_t version,
                  struct coding **ret);
/*
 * An update wants the group: the delta is lost, and who waits for it gets the slice, which pins the
 * group.  False: a thread still reads what the group serves.  Then shard_observer.unpinned comes.
 */
bool coding_stop(struct coding **c);
/* The update changed nothing that the owner serves of the group. */
void coding_nothing(struct replica *h, uint32_t group, uint64_t version);
