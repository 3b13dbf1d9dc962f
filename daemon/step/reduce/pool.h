/*
 * pool.h - memory for gradients in transit, in any place, within a budget.  Loop thread.
 *
 * Host memory is there at once.  It may take time to allocate memory in other places, so another
 * thread does that: who needs it waits, or takes host memory.  Blocks in other places are large
 * enough for whatever their users need, so that any block fits.  They are kept for the next use
 * while a rank is attached to this node.  On a node without ranks they are kept until nobody has
 * used one for a while.
 */
#pragma once

#include "daemon/job/core/job.h"

enum { BLOCKS_KEPT = 4 }; /* in a place; the default budget holds as many of the largest */

struct pool_block {
        struct list link; /* pool.kept, or of its user */
        void *memory;
        uint64_t bytes;
        uint32_t place;
};

struct pool {
        struct job *job;
        const char *what, *instead; /* what it is for; what follows where a place has no memory */
        void (*came)(struct job *job); /* an allocation has ended; NULL: nobody waits for that */
        struct list kept, asking;
        uint64_t used;    /* bytes, as its users count them */
        uint64_t full;    /* bits of places without memory */
        uint64_t kept_ms; /* loop time at which the newest came */
};

enum block_found { BLOCK_TAKEN, BLOCK_ASKED, BLOCK_NONE };

void pool_init(struct pool *p, struct job *job);
void pool_deinit(struct pool *p);
/* Whether the budget has so many bytes more; default_budget: without a configured one. */
bool pool_affords(const struct pool *p, uint64_t bytes, uint64_t default_budget);
/* So many bytes fewer are used; each place may be asked again. */
void pool_discharge(struct pool *p, uint64_t bytes);
/*
 * Takes a block of at least `bytes` away from the host.  BLOCK_ASKED: there is none yet, another
 * thread allocates one of `most` bytes.  BLOCK_NONE: the place has no memory, or nobody would keep
 * it, or `most` is 0.
 */
enum block_found pool_take(struct pool *p, uint32_t place, uint64_t bytes, uint64_t most,
                           struct pool_block **ret);
/* Host memory; NULL: out of memory. */
struct pool_block *pool_block_new(uint64_t bytes);
void pool_give(struct pool *p, struct pool_block *block);
/* Frees what is kept. */
void pool_vacate(struct pool *p);
/* Frees what is kept if no rank is attached and nobody has used it for a while. */
void pool_tick(struct pool *p);
