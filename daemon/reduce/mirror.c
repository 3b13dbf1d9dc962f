/*
 * The chain to a mirror.
 *
 * Nodes offer their gradients to an owner alone.  When it has a group's sum it offers that to
 * its mirror, which pulls it in parts (fp32, as the owner's own plane has it), takes the norm
 * itself, votes and runs the same update: four bytes a parameter and step instead of the twelve of
 * the states, and the mirror's vote must be the owner's.
 *
 * Invariant: a sum is not overwritten while it is being sent; so whatever a mirror has taken is
 * the sum of the attempt that it was offered in.
 */
#include "daemon/reduce/accumulator.h"
#include "daemon/reduce/node_gradient.h"

#include <assert.h>
#include <stdlib.h>

#include "daemon/base/crash.h"
#include "proto/cleanup.h"

/* A part of a group's sum on its way. */
struct sending {
        struct replica *replica;
        uint32_t group;
};

/* False: no tensor of the group has a gradient. */
static bool group_present(const struct replica *h, uint32_t group, uint8_t *ret)
{
        const struct layout_group *g = &h->job->layout->groups[group];
        bool some = false;

        for (uint32_t i = 0; i < g->n_tensors; i++) {
                if (!h->accumulator->present[g->first_tensor + i])
                        continue;
                ret[i / 8] |= (uint8_t)(1u << (i % 8));
                some = true;
        }
        return some;
}

void mirror_offer(struct replica *h, uint32_t group)
{
        const struct job *job = h->job;
        const struct placement *place = &job->place;
        size_t bytes = (job->layout->groups[group].n_tensors + 7) / 8;
        Zero__LinkMessage m = job_message(job);
        Zero__Offer offer = ZERO__OFFER__INIT;
        bool some;

        if (h->copy != 0 || place->copies < 2)
                return;
        CLEANUP(cleanup_free) uint8_t *present = calloc(1, bytes + 1);
        if (!present)
                return; /* the step's deadline will say so */
        some = group_present(h, group, present);
        offer.attempt = job->attempt;
        offer.group = group;
        offer.owner = h->owner;
        offer.copy = 1;
        offer.last = true;
        offer.empty = !some || h->state->plan->shards[group].moment_count == 0;
        offer.present.data = present;
        offer.present.len = offer.empty ? 0 : bytes;
        m.body_case = ZERO__LINK_MESSAGE__BODY_OFFER;
        m.offer = &offer;
        fabric_send(job->x->fabric, holder_node(place, holder_of(place, h->owner, 1)), &m);
        crash_point(CRASH_MIRROR_OFFERED);
}

static void sum_sent(void *arg, int status)
{
        struct sending *s = arg;
        struct replica *h = s->replica;
        struct job *job = h->job;

        assert(h->accumulator->groups[s->group].readers > 0);
        h->accumulator->groups[s->group].readers--;
        accumulator_advance(h, s->group);
        free(s);
        job_unref(job);
}

/* Whether a pull is of what was offered, by the node that it was offered to. */
static bool pull_fits(const struct job *job, const struct replica *h, uint32_t node,
                      const Zero__Pull *request)
{
        const struct placement *place = &job->place;

        return h && place->copies > 1 && request->group < job->layout->n_groups &&
               holder_node(place, holder_of(place, h->owner, 1)) == node &&
               request->attempt == job->attempt && h->accumulator->groups[request->group].measured;
}

void mirror_pull_message(struct job *job, uint32_t node, const Zero__Pull *request)
{
        struct replica *h = replica_of_copy(job, request->owner, 0);
        struct range range = { request->first, request->count };
        const struct plan_shard *shard;
        struct sending *s;

        if (!pull_fits(job, h, node, request)) {
                ask_refuse(job, node, request->transfer, ZERO_EABORTED, "no such sum is offered");
                return;
        }
        shard = &h->state->plan->shards[request->group];
        if (!range_within(range, (struct range){ 0, shard->moment_count })) {
                ask_refuse(job, node, request->transfer, ZERO_EPROTO, "not this owner's range");
                return;
        }
        s = malloc(sizeof *s);
        if (!s) {
                ask_refuse(job, node, request->transfer, ZERO_ENOMEM, "out of memory");
                return;
        }
        *s = (struct sending){ h, request->group };
        job_ref(job);
        h->accumulator->groups[request->group].readers++;
        if (plane_payload(h, node, request->transfer, TRAFFIC_REDUCE,
                          h->state->grad + shard->moment + range.first, range.count * sizeof(float),
                          sum_sent, s))
                sum_sent(s, -ECANCELED); /* the node is gone */
        else
                crash_point(CRASH_MIRROR_SENDING);
}
