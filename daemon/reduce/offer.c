/*
 * Offers of nodes: checked and queued.  Those of an attempt this node has not heard of yet wait
 * until it has.
 */
#include "daemon/reduce/accumulator.h"
#include "daemon/reduce/node_gradient.h"

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
                return node == job->place.node[h->owner];
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

/* Whether the rules allow the offer, now that its attempt is the current one. */
static bool offer_allowed(const struct offer *o, size_t present_bytes)
{
        const struct replica *h = o->replica;

        return accumulator_has(h, o->group) &&
               (o->empty ||
                (present_bytes == (h->job->layout->groups[o->group].n_tensors + 7) / 8 &&
                 accumulator_range(h, o->group).count)) &&
               o->micro_batch >= h->accumulator->groups[o->group].offered[o->node] &&
               o->micro_batch < MICRO_BATCHES_MAX;
}

/* Not behind one that a link has lost, nor of a node that has not heard where its ranks are now. */
static bool offer_counts(const struct offer *o)
{
        return accumulator_expects(o->replica, o->group, o->node) &&
               o->micro_batch == o->replica->accumulator->groups[o->group].offered[o->node];
}

static int offer_queue(struct offer *o)
{
        struct accumulator_group *lg = &o->replica->accumulator->groups[o->group];

        if (!offer_allowed(o, o->present_bytes)) {
                offer_free(o);
                return -EPROTO;
        }
        if (!offer_counts(o)) {
                offer_free(o);
                return 0;
        }
        lg->offered[o->node]++;
        list_insert(&lg->queues[o->node], &o->link);
        offer_pull(o, false);
        return 0;
}

static struct offer *offer_new(struct replica *h, uint32_t node, const Zero__Offer *m,
                               struct node_gradient *node_gradient)
{
        struct offer *o = calloc(1, sizeof *o);

        if (!o)
                return NULL;
        o->present = malloc(m->present.len + 1);
        if (!o->present) {
                free(o);
                return NULL;
        }
        if (m->present.len)
                memcpy(o->present, m->present.data, m->present.len);
        o->present_bytes = m->present.len;
        list_init(&o->link);
        o->replica = h;
        job_ref(h->job);
        o->node = node;
        o->group = m->group;
        o->micro_batch = m->micro_batch;
        o->attempt = m->attempt;
        o->announced = m->transfer;
        o->last = m->last;
        o->empty = m->empty;
        o->node_gradient = node_gradient;
        return o;
}

/* So many that no node which keeps the rules is cut: all of them may be far ahead. */
static uint64_t early_max(const struct job *job)
{
        return (uint64_t)job->x->cluster->n_nodes * (MICRO_BATCHES_MAX + job->layout->n_groups);
}

/* The attempt that this process found in the state has ended with the process before. */
static bool attempt_is_over(const struct job *job, uint64_t attempt)
{
        return attempt < job->attempt || (attempt == job->attempt && !job->started);
}

/* What is offered to it is to be here; if it is not, it was lost and is being filled. */
static bool is_holder(const struct job *job, const Zero__Offer *m)
{
        const struct placement *place = &job->place;

        return m->owner < place->n_owners && m->copy < place->copies &&
               holder_node(place, holder_of(place, m->owner, m->copy)) == job->x->cluster->self;
}

void offer_drop(struct engine *x, uint32_t node, const Zero__Offer *m)
{
        if (m->transfer & BULK_ANNOUNCED)
                fabric_forget(x->fabric, node, m->transfer);
}

int accumulator_offer(struct job *job, uint32_t node, const Zero__Offer *m,
                      struct node_gradient *node_gradient)
{
        struct replica *h = replica_of_copy(job, m->owner, m->copy);
        struct accumulator *l = h ? h->accumulator : NULL;
        struct offer *o;
        int r;

        if (m->group >= job->layout->n_groups || !is_holder(job, m) ||
            (m->transfer && !(m->transfer & BULK_ANNOUNCED)))
                return -EPROTO;
        if (!h || attempt_is_over(job, m->attempt)) {
                offer_drop(job->x, node, m);
                return 0;
        }
        if (m->attempt > job->attempt && l->n_early >= early_max(job))
                return -EPROTO;
        o = offer_new(h, node, m, node_gradient);
        if (!o) {
                offer_drop(job->x, node, m);
                return -ENOMEM;
        }
        if (m->attempt > job->attempt) {
                list_insert(&l->early, &o->link);
                l->n_early++;
                return 0;
        }
        r = offer_queue(o);
        if (r == 0)
                accumulator_advance(h, m->group);
        return r;
}

/* ---- attempts ---------------------------------------------------------------------- */

/* Offers whose attempt has begun now; those of attempts that never will are dropped. */
void accumulator_take_early(struct replica *h)
{
        const struct job *job = h->job;
        struct accumulator *l = h->accumulator;

        list_for_each (&l->early, item) {
                struct offer *o = CONTAINER_OF(item, struct offer, link);
                uint32_t node = o->node;

                if (!job->dead && o->attempt > job->attempt)
                        continue;
                list_remove(&o->link);
                l->n_early--;
                if (job->dead || attempt_is_over(job, o->attempt))
                        offer_free(o);
                else if (offer_queue(o))
                        fabric_cut(job->x->fabric, node, "it offered a gradient against the rules");
        }
}

/* The attempts are void with the link, and a node that has lost its state may begin others under
 * the same numbers. */
void accumulator_forget_node(struct replica *h, uint32_t node)
{
        struct accumulator *l = h->accumulator;

        list_for_each (&l->early, item) {
                struct offer *o = CONTAINER_OF(item, struct offer, link);

                if (o->node != node)
                        continue;
                list_remove(&o->link);
                l->n_early--;
                offer_free(o);
        }
        /* what they announce has gone with the link; a next process counts from the start */
        for (uint32_t g = 0; g < l->n_groups; g++)
                list_for_each (&l->groups[g].queues[node], item) {
                        CONTAINER_OF(item, struct offer, link)->announced = 0;
                }
}
