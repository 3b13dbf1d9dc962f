/* Offers: which an owner expects, their size and dtype, and their end. */
#include "daemon/step/reduce/accumulator.h"
#include "daemon/step/reduce/node_gradient.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"

/* Whether this owner reduces the group at all. */
bool accumulator_has(const struct replica *h, uint32_t group)
{
        return h->state->plan->shards[group].range.count > 0 &&
               layout_group_trainable(h->job->layout, group);
}

bool accumulator_expects(const struct replica *h, uint32_t group, uint32_t node)
{
        const struct job *job = h->job;

        if (h->copy)
                return node == job->placement.node[h->owner];
        for (uint32_t r = 0; r < job->world_size; r++)
                if (job->node_of_rank[r] == node &&
                    layout_group_has_rank(&job->layout->groups[group], r))
                        return true;
        return false;
}

enum zero_dtype accumulator_dtype(const struct replica *h)
{
        return h->copy ? ZERO_FP32 : h->job->reduce_dtype;
}

struct range accumulator_range(const struct replica *h, uint32_t group)
{
        const struct plan_shard *shard = &h->state->plan->shards[group];

        return h->copy ? (struct range){ 0, shard->moment_count } : shard->range;
}

/* ---- receive buffers --------------------------------------------------------------- */

static uint64_t offer_bytes(const struct replica *h, uint32_t group)
{
        return accumulator_range(h, group).count * dtype_size(accumulator_dtype(h));
}

static uint64_t largest_bytes(const struct replica *h)
{
        uint64_t largest = 0;

        for (uint32_t g = 0; g < h->job->layout->n_groups; g++)
                if (offer_bytes(h, g) > largest)
                        largest = offer_bytes(h, g);
        return largest;
}

/*
 * The buffer lies where the owner's sum does, if there is free memory: what comes is added without
 * a detour.  The offer whose turn it is gets a buffer even beyond the budget: in host memory,
 * unless it is the only one.
 */
bool offer_take_buffer(struct offer *o, bool its_turn)
{
        struct replica *h = o->replica;
        struct pool *pool = &h->accumulator->pool;
        uint64_t bytes = offer_bytes(h, o->group), largest = largest_bytes(h);
        uint64_t budget = BLOCKS_KEPT * largest * h->job->x->cluster->n_nodes;
        bool only = its_turn && pool->used == 0;

        if (!state_in_file(h->state) && (only || pool_affords(pool, largest, budget)))
                pool_take(pool, h->state->id.place, largest, largest, &o->buffer);
        if (!o->buffer && (its_turn || pool_affords(pool, bytes, budget)))
                o->buffer = pool_block_new(bytes);
        if (o->buffer)
                pool_charge(pool, o->buffer->bytes);
        return o->buffer;
}

void offer_give_buffer(struct offer *o)
{
        struct pool *pool = &o->replica->accumulator->pool;
        struct pool_block *buffer = STEAL(o->buffer);

        if (!buffer)
                return;
        pool_discharge(pool, buffer->bytes);
        pool_give(pool, buffer);
}

/* ---- offers ------------------------------------------------------------------ */

void offer_free(struct offer *o)
{
        assert(o->in_flight == 0);
        if (o->announced)
                fabric_forget(o->replica->job->x->fabric, o->node, o->announced);
        offer_give_buffer(o);
        list_remove(&o->link);
        free(o->parts);
        free(o->present);
        job_unref(o->replica->job);
        free(o);
}

void offer_drop(struct engine *x, uint32_t node, const Zero__Offer *m)
{
        if (m->transfer & BULK_ANNOUNCED)
                fabric_forget(x->fabric, node, m->transfer);
}

bool offer_is_alone(const struct offer *o)
{
        const struct replica *h = o->replica;
        const struct accumulator_group *lg = &h->accumulator->groups[o->group];

        for (uint32_t node = 0; node < h->job->x->cluster->n_nodes; node++)
                if (node != o->node && !lg->finished[node] &&
                    accumulator_expects(h, o->group, node))
                        return false;
        return true;
}
