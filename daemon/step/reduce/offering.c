/* Offers node gradients to the owners of their group, in the order of micro-batches. */
#include "daemon/step/reduce/node_gradient.h"

#include <assert.h>
#include <errno.h>

#include "daemon/floor/base/crash.h"
#include "proto/cleanup.h"

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

static struct node_gradient *node_gradient_ready(struct job *job, uint32_t group,
                                                 uint32_t micro_batch)
{
        list_for_each (&job->reduce->node_gradients, item) {
                struct node_gradient *p = CONTAINER_OF(item, struct node_gradient, link);

                if (p->ready && !p->void_ && p->group == group && p->micro_batch == micro_batch)
                        return p;
        }
        return NULL;
}

/* Offers what is ready, in the order of micro-batches. */
void group_offer(struct job *job, uint32_t group)
{
        struct reduce_group *g = &job->reduce->groups[group];
        struct node_gradient *p;

        if (g->offering)
                return;
        g->offering = true;
        while ((p = node_gradient_ready(job, group, g->offered)) && node_gradient_offer(p))
                g->offered++;
        if (!p && g->ends_empty && g->offered >= g->micro_batch)
                g->ends_empty = !offer_all(job, group, g->micro_batch, true, NULL);
        g->offering = false;
}
