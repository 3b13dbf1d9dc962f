/*
 * The sum of a node gradient: where it is made, and its memory (pool.h).
 *
 * Sums are in host memory.  If both gradients and an owner of this node lie in other places, the
 * sums lie there, too, and need no detour through the host: each owner's part is in the owner's
 * place (parts.h).  Each place has a block, large enough for any group.  The node gradient that
 * needs a block waits, as it does while all blocks are in use.
 */
#include "daemon/step/reduce/node_gradient.h"

#include <assert.h>
#include <stdlib.h>

#include "proto/cleanup.h"

/* Bits of the places away from the host that hold its sources. */
static uint64_t places_of_sources(const struct node_gradient *p)
{
        uint64_t set = 0;

        for (uint32_t i = 0; i < p->n_sources; i++) {
                uint32_t place = place_of(p->sources[i]->data);

                set |= place_is_host(place) ? 0 : UINT64_C(1) << place;
        }
        return set;
}

bool node_gradient_is_away(const struct node_gradient *p)
{
        return places_of_sources(p);
}

bool node_gradient_stays_away(const struct node_gradient *p)
{
        for_replicas (p->job, h)
                if (h->state && !state_in_file(h->state))
                        return node_gradient_is_away(p);
        return false;
}

static uint64_t group_bytes(const struct job *job, uint32_t group)
{
        return job->layout->groups[group].elements * dtype_size(job->reduce_dtype);
}

static uint64_t largest_bytes(const struct job *job)
{
        uint64_t largest = 0;

        for (uint32_t g = 0; g < job->layout->n_groups; g++)
                if (group_bytes(job, g) > largest)
                        largest = group_bytes(job, g);
        return largest;
}

/* One sum is always allowed, so that the oldest node gradient goes on. */
static bool budget_has(const struct job *job, uint64_t bytes)
{
        const struct pool *pool = &job->reduce->pool;

        return !pool->used || pool_affords(pool, bytes, BLOCKS_KEPT * largest_bytes(job));
}

/* ---- away from the host ------------------------------------------------------ */

/* [owner]: as in parts_rule; NULL: out of memory. */
static uint32_t *places_of_owners(const struct job *job)
{
        uint32_t *places = calloc(job->placement.n_owners, sizeof *places);

        for (uint32_t o = 0; places && o < job->placement.n_owners; o++) {
                const struct replica *h = replica_of_copy(job, o, 0);

                places[o] = h && h->state ? h->state->id.place : 0;
        }
        return places;
}

/* Bytes of the largest block that any group needs in that place; 0: out of memory. */
static uint64_t block_bytes_most(const struct job *job, const struct parts_rule *rule,
                                 uint32_t place)
{
        uint64_t most = 0;

        for (uint32_t g = 0; g < job->layout->n_groups; g++) {
                uint32_t n = job->partition->slices[g];
                CLEANUP(cleanup_free) struct part *parts = calloc(n + 1, sizeof *parts);
                uint64_t bytes;

                if (!parts)
                        return 0;
                parts_plan(rule, g, parts);
                bytes = parts_bytes(parts, n, place, rule->size);
                most = bytes > most ? bytes : most;
        }
        return most;
}

static enum block_found block_take(struct node_gradient *p, const struct parts_rule *rule,
                                   uint32_t place)
{
        uint32_t n = p->job->partition->slices[p->group];
        struct pool_block *block = NULL;
        enum block_found found =
                pool_take(&p->job->reduce->pool, place, parts_bytes(p->parts, n, place, rule->size),
                          block_bytes_most(p->job, rule, place), &block);

        if (block)
                list_insert(&p->blocks, &block->link);
        return found;
}

static void blocks_give(struct node_gradient *p)
{
        while (!list_empty(&p->blocks))
                pool_give(&p->job->reduce->pool,
                          CONTAINER_OF(p->blocks.next, struct pool_block, link));
        free(STEAL(p->parts));
}

/* Takes all blocks, or none; returns the worst result. */
static enum block_found blocks_take(struct node_gradient *p)
{
        const struct job *job = p->job;
        uint32_t n = job->partition->slices[p->group];
        CLEANUP(cleanup_free) uint32_t *owners = places_of_owners(job);
        struct parts_rule rule = { .partition = job->partition,
                                   .place_of_owner = owners,
                                   .sources = places_of_sources(p),
                                   .size = dtype_size(job->reduce_dtype) };
        enum block_found found = BLOCK_TAKEN;

        p->parts = calloc(n + 1, sizeof *p->parts);
        if (!owners || !p->parts) {
                blocks_give(p);
                return BLOCK_NONE;
        }
        parts_plan(&rule, p->group, p->parts);
        for (uint64_t left = parts_places(p->parts, n); left; left &= left - 1) {
                enum block_found f = block_take(p, &rule, (uint32_t)__builtin_ctzll(left));

                found = f > found ? f : found;
        }
        if (found != BLOCK_TAKEN)
                blocks_give(p);
        return found;
}

void *sum_at(const struct node_gradient *p, const struct part *part, uint64_t element)
{
        size_t size = dtype_size(p->job->reduce_dtype);

        list_for_each ((struct list *)&p->blocks, item) {
                const struct pool_block *block = CONTAINER_OF(item, struct pool_block, link);

                if (block->place == part->place)
                        return (char *)block->memory + part->at +
                               (element - part->range.first) * size;
        }
        assert(!"a part has its block");
        return NULL;
}

/* ---- of a node gradient --------------------------------------------------------------- */

static bool sum_charge(struct node_gradient *p, uint64_t bytes)
{
        p->sum_bytes = bytes;
        pool_charge(&p->job->reduce->pool, bytes);
        return true;
}

static bool host_take(struct node_gradient *p, uint64_t bytes)
{
        struct pool_block *block = pool_block_new(bytes);

        if (!block) {
                p->job->reduce->lacking = true;
                return false;
        }
        list_insert(&p->blocks, &block->link);
        p->data = block->memory;
        return sum_charge(p, bytes);
}

bool sum_take(struct node_gradient *p)
{
        const struct job *job = p->job;
        uint64_t bytes = group_bytes(job, p->group), largest = largest_bytes(job);
        enum block_found found;

        if (bytes && node_gradient_stays_away(p)) { /* a group without elements has no parts */
                if (!budget_has(job, largest))
                        return false;
                found = blocks_take(p);
                if (found == BLOCK_TAKEN)
                        return sum_charge(p, largest);
                if (found == BLOCK_ASKED || job->reduce->pool.used) /* memory will become free */
                        return false;
        }
        return budget_has(job, bytes) && host_take(p, bytes);
}

void sum_give(struct node_gradient *p)
{
        pool_discharge(&p->job->reduce->pool, p->sum_bytes);
        p->sum_bytes = 0;
        blocks_give(p);
}
