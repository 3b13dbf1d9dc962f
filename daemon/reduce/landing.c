/*
 * An owner's side of a gradient.
 *
 * Nodes offer what their ranks contributed to a group; the owner pulls its range of each
 * offer into a landing buffer and accumulates micro-batch by micro-batch, within each in node
 * order, in fp32: the result depends on no timing.  Offers out of turn are pulled
 * ahead while the budget lasts; the one whose turn it is may always be pulled, so a
 * full budget cannot stop the order.
 *
 * When all nodes of a group have sent their last, the group's norm is taken, in the pass that adds
 * the last one where it is known to be that; when all groups are complete and the
 * coordinator has asked, the owner votes.
 *
 * Offers of the next attempt may come before this owner has heard of the decision, and while
 * the group's old gradient is still being read by the update: they wait.
 */
#include "daemon/reduce/landing.h"
#include "daemon/reduce/node_gradient.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/crash.h"
#include "proto/cleanup.h"

static int landing_new(struct holding *h)
{
        const struct job *job = h->job;
        uint32_t n = job->layout->n_groups, nodes = job->x->cluster->n_nodes;
        struct landing *l = calloc(1, sizeof *l);

        if (!l)
                return -ENOMEM;
        h->landing = l;
        l->n_groups = n;
        list_init(&l->early);
        l->groups = calloc(n, sizeof *l->groups);
        l->present = calloc(job->layout->n_tensors + 1, 1);
        if (!l->groups || !l->present)
                return -ENOMEM;
        for (uint32_t g = 0; g < n; g++) {
                struct landing_group *lg = &l->groups[g];

                lg->queues = malloc(nodes * sizeof *lg->queues);
                lg->offered = calloc(nodes, sizeof *lg->offered);
                lg->finished = calloc(nodes, sizeof *lg->finished);
                for (uint32_t i = 0; lg->queues && i < nodes; i++)
                        list_init(&lg->queues[i]);
                if (!lg->queues || !lg->offered || !lg->finished)
                        return -ENOMEM;
        }
        return 0;
}

static void landing_free(struct holding *h)
{
        struct landing *l = h->landing;

        if (!l)
                return;
        for (uint32_t g = 0; l->groups && g < l->n_groups; g++) {
                assert(!l->groups[g].deferred); /* it has the job */
                free(l->groups[g].queues);
                free(l->groups[g].offered);
                free(l->groups[g].finished);
        }
        free(l->groups);
        free(l->present);
        landing_forget_kept(l);
        landing_vacate(l);
        free(l);
}

void landing_forget_kept(struct landing *l)
{
        for (uint32_t r = 0; r < l->n_kept; r++)
                kept_clear(&l->kept[r]);
        free(l->kept);
        l->kept = NULL;
        l->n_kept = 0;
}

/* ---- accumulation -------------------------------------------------------------- */

/* Offload thread. landing.present is only touched by the one task of a group's tensors. */
static void offer_accumulate(struct offload_task *task, uint32_t worker)
{
        struct offer *o = CONTAINER_OF(task, struct offer, task);

        landing_add(o->holding, o->group, o, o->final ? &o->norm : NULL);
}

/* No tensor of the group has a gradient any more. */
void landing_forget_present(struct holding *h, uint32_t group)
{
        const struct layout_group *g = &h->job->layout->groups[group];

        memset(h->landing->present + g->first_tensor, 0, g->n_tensors);
}

/* Nobody wants what it brought any more. */
static void offer_end(struct offer *o)
{
        const struct holding *h = o->holding;

        if (o->node_gradient)
                node_gradient_read_end(o->node_gradient, h->owner,
                                       h->state->plan->shards[o->group].range.count);
        offer_free(o);
}

static void offer_accumulated(struct offload_task *task)
{
        struct offer *o = CONTAINER_OF(task, struct offer, task);
        struct holding *h = o->holding;
        struct job *job = h->job;
        struct landing_group *lg = &h->landing->groups[o->group];
        uint32_t group = o->group;

        crash_point(CRASH_LANDING_ADDED);
        lg->busy = false;
        job_ref(job);
        if (o->generation != h->landing->generation) {
                landing_forget_present(h, group);
                offer_end(o);
        } else if (o->way == OFFER_SETTLED) {
                offer_end(o);
                landing_vote(h);
        } else {
                lg->finished[o->node] = o->last;
                lg->cursor++;
                lg->normed = o->final;
                lg->norm = o->norm;
                if (o->way == OFFER_DEFERRED)
                        deferred_keep(o);
                else
                        offer_end(o);
        }
        landing_advance(h, group);
        job_unref(job);
}

/* Whether nothing is added to the group after it, as far as it is known. */
static bool offer_is_final(const struct offer *o)
{
        const struct holding *h = o->holding;
        const struct landing_group *lg = &h->landing->groups[o->group];

        for (uint32_t node = 0; node < h->job->x->cluster->n_nodes; node++)
                if (node != o->node && !lg->finished[node] && landing_expects(h, o->group, node))
                        return false;
        return o->last;
}

static void offer_run(struct offer *o)
{
        struct holding *h = o->holding;

        h->landing->groups[o->group].busy = true;
        o->task.run = offer_accumulate;
        o->task.done = offer_accumulated;
        offload_submit(h->job->x->offload, &o->task);
}

static void offer_submit(struct offer *o)
{
        struct holding *h = o->holding;

        o->final = offer_is_final(o);
        o->way = offer_defers(o) ? OFFER_DEFERRED : OFFER_ADDED;
        group_norm_init(&o->norm, h->job, o->group);
        o->generation = h->landing->generation;
        list_remove(&o->link);
        if (o->node_gradient)
                node_gradient_read_begin(o->node_gradient);
        offer_run(o);
}

void offer_settle(struct offer *o)
{
        o->way = OFFER_SETTLED;
        o->final = false;
        offer_run(o);
}

/* ---- completion and vote ---------------------------------------------------------- */

/* The next node in order that still contributes to the current micro-batch; false if none is left.
 */
static bool landing_turn(struct holding *h, uint32_t group)
{
        struct landing_group *lg = &h->landing->groups[group];
        uint32_t nodes = h->job->x->cluster->n_nodes;

        for (uint32_t tries = 0; tries <= nodes; tries++) {
                for (; lg->cursor < nodes; lg->cursor++)
                        if (!lg->finished[lg->cursor] && landing_expects(h, group, lg->cursor))
                                return true;
                lg->cursor = 0;
                lg->micro_batch++;
        }
        return false;
}

/* Moves a group on as far as it goes now. */
void landing_advance(struct holding *h, uint32_t group)
{
        const struct job *job = h->job;
        struct landing_group *lg = &h->landing->groups[group];

        if (job->dead || !job->started || lg->busy || lg->readers || lg->complete ||
            !landing_has(h, group) || h->unread[group])
                return;
        while (landing_turn(h, group)) {
                struct list *queue = &lg->queues[lg->cursor];
                struct offer *o;

                if (list_empty(queue))
                        return;
                o = CONTAINER_OF(queue->next, struct offer, link);
                if (o->empty) {
                        lg->finished[o->node] = o->last;
                        lg->cursor++;
                        offer_free(o);
                        continue;
                }
                if (o->node_gradient || o->phase == OFFER_LANDED)
                        offer_submit(o);
                else
                        offer_pull(o, true);
                return;
        }
        if (lg->normed)
                landing_measured(h, group);
        else
                landing_measure(h, group);
}

/* ---- attempts ---------------------------------------------------------------------- */

static void landing_reset_group(struct landing_group *lg, uint32_t nodes)
{

        for (uint32_t n = 0; n < nodes; n++)
                while (!list_empty(&lg->queues[n]))
                        offer_void(CONTAINER_OF(lg->queues[n].next, struct offer, link));
        memset(lg->offered, 0, nodes * sizeof *lg->offered);
        memset(lg->finished, 0, nodes * sizeof *lg->finished);
        lg->micro_batch = lg->cursor = 0;
        lg->complete = lg->normed = lg->measured = false;
}

void landing_reset(struct holding *h)
{
        struct job *job = h->job;
        struct landing *l = h->landing;

        l->generation++;
        l->preparing = l->have_params = l->voted = false;
        for (uint32_t g = 0; g < job->layout->n_groups; g++) {
                landing_reset_group(&l->groups[g], job->x->cluster->n_nodes);
                deferred_end(h, g);
                if (!l->groups[g].busy) /* else when its task ends */
                        landing_forget_present(h, g);
        }
        landing_take_early(h);
        for (uint32_t g = 0; g < job->layout->n_groups; g++)
                landing_advance(h, g);
        shard_settled(job);
}

void landing_group_free(struct holding *h, uint32_t group)
{
        landing_advance(h, group);
}

void landing_updated(struct holding *h)
{
        for (uint32_t g = 0; g < h->job->layout->n_groups; g++)
                landing_advance(h, g);
        landing_vote(h);
}

bool landing_begun(const struct holding *h)
{
        for (uint32_t g = 0; g < h->landing->n_groups; g++)
                for (uint32_t n = 0; n < h->job->x->cluster->n_nodes; n++)
                        if (h->landing->groups[g].offered[n])
                                return true;
        return false;
}

bool landing_in_use(const struct holding *h)
{
        for (uint32_t g = 0; g < h->landing->n_groups; g++)
                if (h->landing->groups[g].busy || h->landing->groups[g].readers)
                        return true;
        return false;
}

bool landing_voted(const struct holding *h)
{
        return h->landing->voted;
}

void landing_refused(struct holding *h)
{
        if (!landing_voted(h))
                return;
        h->landing->voted = false;
        shard_settled(h->job);
}

/* ---- names --------------------------------------------------------------------------- */

uint32_t landing_waits(struct holding *h, struct wait_line *lines, uint32_t n)
{
        const struct job *job = h->job;
        struct landing *l = h->landing;

        if (!l->preparing || n == 0)
                return 0;
        for (uint32_t g = 0; g < job->layout->n_groups; g++) {
                struct landing_group *lg = &l->groups[g];

                if (!landing_has(h, g) || lg->measured)
                        continue;
                snprintf(lines[0].who, sizeof lines[0].who, "node %.60s",
                         node_name(job->x, lg->complete ? job->x->cluster->self : lg->cursor));
                snprintf(lines[0].what, sizeof lines[0].what, "gradient of group '%.80s'",
                         job->layout->groups[g].name);
                return 1;
        }
        return 0;
}

/* ---- what the node goes through ---------------------------------------------------- */

void landings_tick(struct engine *x)
{
        list_for_each (&x->jobs, item) {
                for_holdings (CONTAINER_OF(item, struct job, link), h)
                        landing_tick(h);
        }
}

void landings_node_down(struct engine *x, uint32_t node, const char *why)
{
        list_for_each (&x->jobs, item) {
                for_holdings (CONTAINER_OF(item, struct job, link), h)
                        landing_forget_node(h, node);
        }
}

const struct shard_observer reduce_observer = { .made = landing_new, .freed = landing_free };
