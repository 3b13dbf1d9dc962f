/*
 * stash.h - activation checkpoints of this node's ranks, which the backward pass needs again (P_a
 * of ZeRO-R, SC20, section 6.1).
 *
 * The ranks of a set stash the same bytes: each one writes its part, and reads the whole.
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
/* Over all sets of the job on this node.  places: their names, separated by commas. */
struct stash_info {
        uint64_t reserved, used, most,
                received; /* bytes; most: used at once; received: from other nodes */
        char places[ZERO_NAME_MAX];
};

/* *ret_n ranks of a set, which may be the rank alone (n 0). */
int stash_needs_new(uint32_t rank, uint32_t world_size, const uint32_t *ranks, size_t n,
                    uint64_t bytes, uint64_t entry_bytes, uint32_t place, struct stash_needs *ret,
                    struct fault *fault);
/*
 * The first rank of a set on this node makes the set's memory, if that is the host's.  Ranks of one
 * node name one place.
 */
int stash_admit(struct job *job, uint32_t rank, const struct stash_needs *needs, struct stash **ret,
                struct fault *fault);
/* A session that was admitted has ended; entered: it was the rank, which has had the set's memory.
 * s may be NULL. */
void stash_leave(struct stash *s, uint32_t rank, bool entered);
const struct segment *stash_segment(const struct stash *s);
/* Bytes of a place other than the host that the set still needs; 0 for s NULL. */
uint64_t stash_lacks(const struct stash *s);
/* Takes them over. */
void stash_provide(struct stash *s, struct segment *segment);
/* The rank knows that earlier attempts are over: it no longer touches what it had in them. */
void stash_aware(struct stash *s, uint32_t rank);

/*
 * The calls of a rank in the job's current attempt.  A write and a read end r with r->result.stash:
 * the write when there is room, the read when the whole is here.  hash: of all bytes; 0: they are
 * not compared.  waits: otherwise a write without room is ZERO_EWINDOW also where room comes.
 */
int stash_write(struct stash *s, uint32_t rank, uint64_t key, uint64_t bytes, uint64_t hash,
                bool waits, struct request *r, struct fault *fault);
int stash_written(struct stash *s, uint32_t rank, uint64_t key, struct fault *fault);
int stash_read(struct stash *s, uint32_t rank, uint64_t key, struct request *r,
               struct fault *fault);
int stash_release(struct stash *s, uint32_t rank, uint64_t key, bool last, struct fault *fault);

/* The attempt cannot end: calls wait no longer.  What was stashed stays until it is over. */
void stash_fail(struct job *job, int status, const char *text);
/* The attempt is over, decided or not: what was stashed goes. */
void stash_begin_attempt(struct job *job, bool decided);
void stash_pull_message(struct job *job, uint32_t node, const Zero__Pull *pull);
void stash_done_message(struct job *job, uint32_t node, const Zero__StashDone *m);
void stash_info(const struct job *job, struct stash_info *ret);

extern const struct module stash_module;
