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

/* ---- offers ------------------------------------------------------------------ */

void offer_free(struct offer *o)
{
        assert(o->in_flight == 0);
        if (o->announced)
                fabric_forget(o->replica->job->x->fabric, o->node, o->announced);
        receive_buffer_give(o->replica, &o->buffer);
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
