/*
 * stash.h - activation checkpoints of this node's ranks, kept until the backward pass reads them
 * (P_a of ZeRO-R, SC20, section 6.1).
 *
 * The ranks of a set stash the same bytes: each rank writes its part and reads the whole.
 */
#pragma once

#include "daemon/compute/device/segment/segment.h"
#include "daemon/job/core/job.h"
#include "daemon/step/stash/pages.h"

struct stash;

struct stash_needs {
        uint32_t *ranks;  /* ascending; freed with the needs */
        uint32_t n_ranks; /* 0: the rank has no stash */
        uint64_t bytes, entry_bytes;
        uint32_t place;
};
/* Sums over all sets of the job on this node. */
struct stash_info {
        uint64_t reserved, used;    /* bytes */
        uint64_t assembled;         /* bytes in use of entries put together, in order to be read */
        uint64_t most;              /* the most bytes in use at the same time */
        uint64_t received;          /* bytes from other nodes */
        char places[ZERO_NAME_MAX]; /* the places' names, separated by commas */
};

/* Checks what a rank declares and copies it.  n 0: the set is the rank alone. */
int stash_needs_new(uint32_t rank, uint32_t world_size, const uint32_t *ranks, size_t n,
                    uint64_t bytes, uint64_t entry_bytes, uint32_t place, struct stash_needs *ret,
                    struct fault *fault);
/*
 * Adds the rank's session to its set.  The first session of a set makes the set; it reserves memory
 * only if the place is the host.  All ranks of a set on one node must name the same place.
 */
int stash_admit(struct job *job, uint32_t rank, const struct stash_needs *needs, struct stash **ret,
                struct fault *fault);
/* Ends a session that was admitted.  entered: the session was the rank, so the rank may have
 * touched the set's memory.  s may be NULL. */
void stash_leave(struct stash *s, uint32_t rank, bool entered);
const struct segment *stash_segment(const struct stash *s);
/* Bytes that the set still needs in a place other than the host; 0 if s is NULL. */
uint64_t stash_lacks(const struct stash *s);
/* Gives the set its memory: takes the segment over and leaves an empty one. */
void stash_provide(struct stash *s, struct segment *segment);
/* The rank knows that earlier attempts are over, so it no longer touches their entries. */
void stash_aware(struct stash *s, uint32_t rank);

/*
 * The calls of a rank in the job's current attempt.  A write and a read end r with r->result.stash:
 * a write when there is room, a read when the whole entry is here.
 *
 * hash: of the entry's bytes; 0: they are not compared.  waits: a write waits if memory will become
 * free; otherwise it fails with ZERO_EWINDOW at once.
 */
int stash_write(struct stash *s, uint32_t rank, uint64_t key, uint64_t bytes, uint64_t hash,
                bool waits, struct request *r, struct fault *fault);
int stash_written(struct stash *s, uint32_t rank, uint64_t key, struct fault *fault);
int stash_read(struct stash *s, uint32_t rank, uint64_t key, struct request *r,
               struct fault *fault);
int stash_release(struct stash *s, uint32_t rank, uint64_t key, bool last, struct fault *fault);

/* The attempt cannot end: calls that wait fail.  Entries stay until the attempt is over. */
void stash_fail(struct job *job, int status, const char *text);
/* The attempt is over: its entries end.  decided: no rank touches them any more. */
void stash_begin_attempt(struct job *job, bool decided);
void stash_pull_message(struct job *job, uint32_t node, const Zero__Pull *pull);
void stash_done_message(struct job *job, uint32_t node, const Zero__StashDone *m);
void stash_info(const struct job *job, struct stash_info *ret);

extern const struct module stash_module;
