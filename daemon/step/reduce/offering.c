/*
 * Offers node gradients to the owners of their group, in the order of micro-batches.
 *
 * Owners on other nodes take their ranges of node gradients.  If the owner can read this node's
 * memory, ranges of up to ANNOUNCED_BYTES are announced with the offer, and the owner reads them as
 * soon as it has a buffer: that saves the round trip of a request.  Otherwise the owner asks, part
 * by part.  A request must be for something on offer, and for the owner's own range.
 */
#include "daemon/step/reduce/node_gradient.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "daemon/floor/base/crash.h"
#include "proto/cleanup.h"

/* A larger range takes far longer than a round trip, and UCX reads it in one go. */
enum { ANNOUNCED_BYTES = 4 << 20 };

/* A part of a node gradient on its way to its owner. */
struct delivery {
        struct list link; /* node_gradient.announced, or none */
        uint64_t transfer;
        struct job *job;
        struct node_gradient *node_gradient;
        uint32_t owner;
        uint64_t elements;
};

static struct delivery *delivery_new(struct job *job, struct node_gradient *p, uint32_t owner,
                                     uint64_t elements)
{
        struct delivery *d = malloc(sizeof *d);

        if (d) {
                *d = (struct delivery){
                        .job = job, .node_gradient = p, .owner = owner, .elements = elements
                };
                list_init(&d->link);
                job_ref(job);
        }
        return d;
}

static void delivery_free(struct delivery *d)
{
        if (!d)
                return;
        job_unref(d->job);
        free(d);
}

static void delivery_sent(void *arg, int status)
{
        struct delivery *d = arg;
        struct job *job = d->job;
        struct node_gradient *p = d->node_gradient;

        list_remove(&d->link); /* the node gradient may be freed */
        if (status == 0)
                job->reduce->elements_sent += d->elements;
        node_gradient_read_end(p, d->owner, status == 0 ? d->elements : 0);
        delivery_free(d);
}

static uint64_t node_gradient_announce(struct node_gradient *p, uint32_t owner)
{
        struct job *job = p->job;
        struct range range = partition_range(job->partition, p->group, owner);
        size_t n = job_spec_sum_bytes(&job->spec, range.count);
        struct delivery *d = NULL;
        uint64_t transfer = 0;

        if (n && n <= ANNOUNCED_BYTES)
                d = delivery_new(job, p, owner, range.count);
        if (d)
                transfer =
                        fabric_announce(job->x->fabric, job->placement.node[owner], TRAFFIC_REDUCE,
                                        node_gradient_data(p, range.first), n, delivery_sent, d);
        if (!transfer) {
                delivery_free(d);
                return 0;
        }
        d->transfer = transfer;
        list_insert(&p->announced, &d->link);
        node_gradient_read_begin(p);
        crash_point(CRASH_PUSH_SENDING);
        return transfer;
}

/* This node would wait for an owner that may never have a buffer for the gradient. */
void node_gradient_withdraw(struct node_gradient *p)
{
        list_for_each (&p->announced, item) {
                const struct delivery *d = CONTAINER_OF(item, struct delivery, link);

                ask_refuse(d->job, d->job->placement.node[d->owner], d->transfer, ZERO_EABORTED,
                           "the gradient's attempt is over");
        }
}

/* Of the attempt that runs. */
static struct node_gradient *node_gradient_find(struct job *job, uint32_t group,
                                                uint32_t micro_batch)
{
        list_for_each (&job->reduce->node_gradients, item) {
                struct node_gradient *p = CONTAINER_OF(item, struct node_gradient, link);

                if (!p->void_ && p->group == group && p->micro_batch == micro_batch)
                        return p;
        }
        return NULL;
}

void reduce_pull_message(struct job *job, uint32_t node, const Zero__Pull *request)
{
        struct node_gradient *p = node_gradient_find(job, request->group, request->micro_batch);
        struct range range = { request->first, request->count };
        struct delivery *d;
        size_t n;

        if (!p || !p->offered || p->attempt != request->attempt ||
            request->owner >= job->placement.n_owners ||
            job->placement.node[request->owner] != node) {
                ask_refuse(job, node, request->transfer, ZERO_EABORTED,
                           "the gradient is not on offer: its attempt may be over");
                return;
        }
        if (!range_within(range, partition_range(job->partition, request->group, request->owner))) {
                ask_refuse(job, node, request->transfer, ZERO_EPROTO,
                           "the range reaches beyond this owner's");
                return;
        }
        d = delivery_new(job, p, request->owner, range.count);
        n = job_spec_sum_bytes(&job->spec, range.count);
        if (!d) {
                ask_refuse(job, node, request->transfer, ZERO_ENOMEM, "out of memory");
                return;
        }
        node_gradient_read_begin(p);
        if (staged_payload(job, node, request->transfer, TRAFFIC_REDUCE,
                           node_gradient_data(p, range.first), n, node_gradient_is_pushed_memory(p),
                           delivery_sent, d) == 0) {
                crash_point(CRASH_PUSH_SENDING);
                return;
        }
        node_gradient_read_end(p, request->owner, 0);
        delivery_free(d);
}

/* ---- offers ---- */

/* Offers to one owner. p NULL: an empty offer, with nothing to take.  False: out of memory. */
static bool offer_send(struct job *job, uint32_t group, uint32_t owner, uint32_t micro_batch,
                       bool last, struct node_gradient *p)
{
        Zero__LinkMessage m = job_message(job->name);
        Zero__Offer offer = ZERO__OFFER__INIT;

        offer.attempt = job->attempt;
        offer.group = group;
        offer.owner = owner;
        offer.micro_batch = micro_batch;
        offer.last = last;
        offer.empty = p == NULL;
        if (p) {
                offer.present.data = p->present;
                offer.present.len = (job->layout->groups[group].n_tensors + 7) / 8;
        }
        if (job->placement.node[owner] == job->x->cluster->self) {
                int r = accumulator_offer(job, job->x->cluster->self, &offer, p);

                assert(r == 0 || r == -ENOMEM); /* this node keeps the rules */
                return r == 0;
        }
        if (p)
                offer.transfer = node_gradient_announce(p, owner);
        m.body_case = ZERO__LINK_MESSAGE__BODY_OFFER;
        m.offer = &offer;
        fabric_send(job->x->fabric, job->placement.node[owner], &m);
        crash_point(CRASH_PUSH_OFFERED);
        return true;
}

/* Offers to all owners, from the first that has not been told on.  False: out of memory. */
static bool offer_all(struct job *job, uint32_t group, uint32_t micro_batch, bool last,
                      struct node_gradient *p)
{
        struct reduce_group *g = &job->reduce->groups[group];

        for (; g->told < job->partition->slices[group]; g->told++)
                if (!offer_send(job, group, partition_owner(job->partition, group, g->told),
                                micro_batch, last, p)) {
                        job->reduce->lacking = true;
                        return false;
                }
        g->told = 0;
        return true;
}

/* False: out of memory. */
static bool node_gradient_offer(struct node_gradient *p)
{
        struct job *job = p->job;

        if (p->n_sources == 0) {
                if (!offer_all(job, p->group, p->micro_batch, p->last, NULL))
                        return false;
                node_gradient_free(p);
                return true;
        }
        if (!p->offered) {
                p->takers = job->partition->slices[p->group];
                for (uint32_t o = 0; o < job->partition->n_owners; o++)
                        p->untaken[o] = partition_range(job->partition, p->group, o).count;
        }
        p->offered = true;
        if (p->takers == 0) { /* a group of empty tensors */
                node_gradient_check(p);
                return true;
        }
        return offer_all(job, p->group, p->micro_batch, p->last, p);
}

void group_offer(struct job *job, uint32_t group)
{
        struct reduce_group *g = &job->reduce->groups[group];
        struct node_gradient *p;

        if (g->offering)
                return;
        g->offering = true;
        while ((p = node_gradient_find(job, group, g->offered)) && p->ready &&
               node_gradient_offer(p))
                g->offered++;
        if (!p && g->ends_empty && g->offered >= g->micro_batch)
                g->ends_empty = !offer_all(job, group, g->micro_batch, true, NULL);
        g->offering = false;
}
