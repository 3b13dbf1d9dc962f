/*
 * The owner's side of a gradient.
 *
 * Nodes offer what their ranks contributed to a group.  The owner pulls its range of each offer
 * into a receive buffer and adds it up in fp32: micro-batch by micro-batch, and in node order
 * within each, so that the result does not depend on timing.  The owner pulls offers ahead of their
 * turn while the budget lasts.  It can always pull the offer whose turn it is, so a full budget
 * cannot stop the order.
 *
 * When all nodes have sent their last offer for a group, the owner takes the group's norm, in the
 * same pass as the last addition if it knows that this is the last.  When all groups are complete
 * and the coordinator has asked, the owner takes the norm of all sums that it defers (deferred.c),
 * and votes.
 *
 * Offers of the next attempt wait if they come before this owner has heard of the decision, or
 * while the update still reads the group's old gradient.
 */
#include "daemon/step/reduce/accumulator.h"
#include "daemon/step/reduce/node_gradient.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/floor/base/crash.h"
#include "proto/cleanup.h"

static int accumulator_new(struct replica *h)
{
        const struct job *job = h->job;
        uint32_t n = job->layout->n_groups, nodes = job->x->cluster->n_nodes;
        struct accumulator *l = calloc(1, sizeof *l);

        if (!l)
                return -ENOMEM;
        h->accumulator = l;
        pool_init(&l->pool, h->job);
        l->pool.what = "accumulator";
        l->pool.instead = "received gradients go to host memory";
        l->n_groups = n;
        list_init(&l->early);
        l->groups = calloc(n, sizeof *l->groups);
        l->present = calloc(job->layout->n_tensors + 1, 1);
        if (!l->groups || !l->present)
                return -ENOMEM;
        for (uint32_t g = 0; g < n; g++) {
                struct accumulator_group *lg = &l->groups[g];

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

static void accumulator_free(struct replica *h)
{
        struct accumulator *l = h->accumulator;

        if (!l)
                return;
        for (uint32_t g = 0; l->groups && g < l->n_groups; g++) {
                assert(!l->groups[g].deferred); /* the offer has the job */
                free(l->groups[g].queues);
                free(l->groups[g].offered);
                free(l->groups[g].finished);
        }
        free(l->groups);
        free(l->present);
        accumulator_forget_kept(l);
        pool_deinit(&l->pool);
        free(l);
}

void accumulator_forget_kept(struct accumulator *l)
{
        for (uint32_t r = 0; r < l->n_kept; r++)
                blob_clear(&l->kept[r]);
        free(l->kept);
        l->kept = NULL;
        l->n_kept = 0;
}

/* ---- accumulation -------------------------------------------------------------- */

/* For an offload thread.  Only the one task of a group touches accumulator.present of its tensors.
 */
static void offer_accumulate(struct offload_task *task, uint32_t worker)
{
        struct offer *o = CONTAINER_OF(task, struct offer, task);

        accumulator_add(o->replica, o->group, o, o->final ? &o->norm : NULL);
}

/* None of the group's tensors has a gradient any more. */
void accumulator_forget_present(struct replica *h, uint32_t group)
{
        const struct layout_group *g = &h->job->layout->groups[group];

        memset(h->accumulator->present + g->first_tensor, 0, g->n_tensors);
}

/* Nobody needs the offer's gradient any more. */
static void offer_end(struct offer *o)
{
        const struct replica *h = o->replica;

        if (o->node_gradient)
                node_gradient_read_end(o->node_gradient, h->owner,
                                       h->state->plan->shards[o->group].range.count);
        offer_free(o);
}

static void offer_accumulated(struct offload_task *task)
{
        struct offer *o = CONTAINER_OF(task, struct offer, task);
        struct replica *h = o->replica;
        struct job *job = h->job;
        struct accumulator_group *lg = &h->accumulator->groups[o->group];
        uint32_t group = o->group;

        crash_point(CRASH_ACCUMULATOR_ADDED);
        lg->busy = false;
        job_ref(job);
        if (o->generation != h->accumulator->generation) {
                accumulator_forget_present(h, group);
                offer_end(o);
        } else if (o->way == OFFER_SETTLED) {
                lg->measured = true;
                if (o->final)
                        lg->norm = o->norm;
                offer_end(o);
                accumulator_vote(h);
                shard_settled(job);
        } else {
                lg->finished[o->node] = o->last;
                lg->cursor++;
                lg->normed = o->final;
                lg->norm = o->norm;
                offer_end(o);
        }
        accumulator_advance(h, group);
        job_unref(job);
}

static void offer_run(struct offer *o)
{
        struct replica *h = o->replica;

        h->accumulator->groups[o->group].busy = true;
        o->task.run = offer_accumulate;
        o->task.done = offer_accumulated;
        job_compute(h->job, OFFLOAD_STEP, &o->task);
}

static void offer_submit(struct offer *o)
{
        struct replica *h = o->replica;
        bool defers = offer_defers(o);

        o->final = o->last && offer_is_alone(o);
        o->way = defers ? OFFER_DEFERRED : OFFER_ADDED;
        group_norm_init(&o->norm, h->job, o->group);
        o->generation = h->accumulator->generation;
        list_remove(&o->link);
        if (o->node_gradient)
                node_gradient_read_begin(o->node_gradient);
        if (defers)
                deferred_keep(o);
        else
                offer_run(o);
}

/* Takes the norm, too, unless the group has its own. */
void offer_settle(struct offer *o)
{
        const struct replica *h = o->replica;

        o->way = OFFER_SETTLED;
        o->final = !h->accumulator->groups[o->group].measured;
        offer_run(o);
}

/* An empty offer behind it only says that the offer is the last. */
static void offer_take_end(struct offer *o, const struct list *queue)
{
        struct offer *next = CONTAINER_OF(o->link.next, struct offer, link);

        if (o->link.next == queue || !next->empty || !next->last)
                return;
        o->last = true;
        offer_free(next);
}

/* ---- completion and vote ---------------------------------------------------------- */

/* Moves on to the next node in order that still contributes to the micro-batch; false if none is
 * left. */
static bool accumulator_turn(struct replica *h, uint32_t group)
{
        struct accumulator_group *lg = &h->accumulator->groups[group];
        uint32_t nodes = h->job->x->cluster->n_nodes;

        for (uint32_t tries = 0; tries <= nodes; tries++) {
                for (; lg->cursor < nodes; lg->cursor++)
                        if (!lg->finished[lg->cursor] && accumulator_expects(h, group, lg->cursor))
                                return true;
                lg->cursor = 0;
                lg->micro_batch++;
        }
        return false;
}

/* Moves a group on as far as possible. */
void accumulator_advance(struct replica *h, uint32_t group)
{
        const struct job *job = h->job;
        struct accumulator_group *lg = &h->accumulator->groups[group];

        if (job->dead || !job->started || lg->busy || lg->readers || lg->complete ||
            !accumulator_has(h, group) || h->unread[group])
                return;
        while (accumulator_turn(h, group)) {
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
                offer_take_end(o, queue);
                if (!o->node_gradient && o->phase != OFFER_LANDED)
                        offer_pull(o, true);
                else if (o->link.next != queue || !offer_waits(o)) /* what follows is there */
                        offer_submit(o);
                if (!lg->deferred)
                        return;
        }
        if (lg->normed || lg->deferred)
                accumulator_complete(h, group);
        else
                accumulator_measure(h, group);
}

/* ---- offers ------------------------------------------------------------------------- */

/* Whether the rules allow the offer in its attempt, which is the current one. */
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

/* False for an offer after one that a link has lost, and for an offer of a node that does not know
 * yet where its ranks are now. */
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

/* So high that no node is cut for being ahead, as far as the rules allow. */
static uint64_t early_max(const struct job *job)
{
        return (uint64_t)job->x->cluster->n_nodes * (MICRO_BATCHES_MAX + job->layout->n_groups);
}

static enum owner_offer offer_stands(const struct job *job, uint64_t attempt)
{
        return owner_offer(job->attempt, job->started, attempt);
}

/* Whether the offer's owner belongs on this node.  If it is not here, it was lost and is being
 * filled. */
static bool is_holder(const struct job *job, const Zero__Offer *m)
{
        const struct placement *placement = &job->placement;

        return m->owner < placement->n_owners && m->copy < placement->copies &&
               holder_node(placement, holder_of(placement, m->owner, m->copy)) ==
                       job->x->cluster->self;
}

int accumulator_offer(struct job *job, uint32_t node, const Zero__Offer *m,
                      struct node_gradient *node_gradient)
{
        struct replica *h = replica_of_copy(job, m->owner, m->copy);
        struct accumulator *l = h ? h->accumulator : NULL;
        enum owner_offer stands;
        struct offer *o;
        int r;

        if (m->group >= job->layout->n_groups || !is_holder(job, m) ||
            (m->transfer && !(m->transfer & BULK_ANNOUNCED)))
                return -EPROTO;
        stands = offer_stands(job, m->attempt);
        if (!h || stands == OWNER_OFFER_OVER) {
                offer_drop(job->x, node, m);
                return 0;
        }
        if (stands == OWNER_OFFER_EARLY && l->n_early >= early_max(job))
                return -EPROTO;
        o = offer_new(h, node, m, node_gradient);
        if (!o) {
                offer_drop(job->x, node, m);
                return -ENOMEM;
        }
        if (stands == OWNER_OFFER_EARLY) {
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

/* Queues offers whose attempt has begun; drops those whose attempt will never begin. */
static void accumulator_take_early(struct replica *h)
{
        const struct job *job = h->job;
        struct accumulator *l = h->accumulator;

        list_for_each (&l->early, item) {
                struct offer *o = CONTAINER_OF(item, struct offer, link);
                enum owner_offer stands = offer_stands(job, o->attempt);
                uint32_t node = o->node;

                if (!job->dead && stands == OWNER_OFFER_EARLY)
                        continue;
                list_remove(&o->link);
                l->n_early--;
                if (job->dead || stands == OWNER_OFFER_OVER)
                        offer_free(o);
                else if (offer_queue(o))
                        fabric_cut(job->x->fabric, node,
                                   "its offer of a gradient does not fit the job's layout, owners "
                                   "or order of micro-batches");
        }
}

/* A lost link voids the attempts.  A node that has lost its state may begin others of the same
 * numbers. */
static void accumulator_forget_node(struct replica *h, uint32_t node)
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
        /* announcements end with their link, and a new process numbers from the start */
        for (uint32_t g = 0; g < l->n_groups; g++)
                list_for_each (&l->groups[g].queues[node], item) {
                        CONTAINER_OF(item, struct offer, link)->announced = 0;
                }
}

/* The attempt is over, and no update takes the deferred sum.  A recorded vote may still be decided,
 * so its sum is written. */
static void deferred_end(struct replica *h, uint32_t group)
{
        struct offer *o = h->accumulator->groups[group].busy ? NULL : deferred_take(h, group);

        if (o && h->state->record->phase == ATTEMPT_PREPARED)
                offer_settle(o);
        else
                deferred_release(o);
}

void accumulator_left(struct replica *h)
{
        if (accumulator_voted(h))
                return;
        h->accumulator->left = true;
        for (uint32_t g = 0; g < h->accumulator->n_groups; g++) {
                const struct accumulator_group *lg = &h->accumulator->groups[g];

                if (lg->deferred && !lg->busy) /* otherwise the task's end does it */
                        offer_settle(deferred_take(h, g));
                accumulator_advance(h, g);
        }
}

static void accumulator_reset_group(struct accumulator_group *lg, uint32_t nodes)
{

        for (uint32_t n = 0; n < nodes; n++)
                while (!list_empty(&lg->queues[n]))
                        offer_void(CONTAINER_OF(lg->queues[n].next, struct offer, link));
        memset(lg->offered, 0, nodes * sizeof *lg->offered);
        memset(lg->finished, 0, nodes * sizeof *lg->finished);
        lg->micro_batch = lg->cursor = 0;
        lg->complete = lg->normed = lg->measured = false;
}

void accumulator_reset(struct replica *h)
{
        struct job *job = h->job;
        struct accumulator *l = h->accumulator;

        l->generation++;
        l->preparing = l->have_params = l->voted = l->left = false;
        for (uint32_t g = 0; g < job->layout->n_groups; g++) {
                accumulator_reset_group(&l->groups[g], job->x->cluster->n_nodes);
                deferred_end(h, g);
                if (!l->groups[g].busy) /* otherwise the task's end does it */
                        accumulator_forget_present(h, g);
        }
        accumulator_take_early(h);
        for (uint32_t g = 0; g < job->layout->n_groups; g++)
                accumulator_advance(h, g);
        shard_settled(job);
}

void accumulator_group_free(struct replica *h, uint32_t group)
{
        accumulator_advance(h, group);
}

void accumulator_updated(struct replica *h)
{
        for (uint32_t g = 0; g < h->job->layout->n_groups; g++)
                accumulator_advance(h, g);
        accumulator_vote(h);
}

bool accumulator_begun(const struct replica *h)
{
        for (uint32_t g = 0; g < h->accumulator->n_groups; g++)
                for (uint32_t n = 0; n < h->job->x->cluster->n_nodes; n++)
                        if (h->accumulator->groups[g].offered[n])
                                return true;
        return false;
}

bool accumulator_settle(struct replica *h, uint32_t group)
{
        struct accumulator_group *lg = &h->accumulator->groups[group];

        if (!accumulator_has(h, group))
                return true;
        if (!lg->complete || lg->busy)
                return false;
        if (!lg->deferred)
                return lg->measured;
        if (!accumulator_voted(h)) /* otherwise the update takes it */
                offer_settle(deferred_take(h, group));
        return false;
}

void accumulator_read_begin(struct replica *h, uint32_t group)
{
        h->accumulator->groups[group].readers++;
}

void accumulator_read_end(struct replica *h, uint32_t group)
{
        assert(h->accumulator->groups[group].readers > 0);
        h->accumulator->groups[group].readers--;
        accumulator_advance(h, group);
}

bool accumulator_present(const struct replica *h, uint32_t tensor)
{
        return h->accumulator->present[tensor];
}

bool accumulator_in_use(const struct replica *h)
{
        for (uint32_t g = 0; g < h->accumulator->n_groups; g++)
                if (h->accumulator->groups[g].busy || h->accumulator->groups[g].readers)
                        return true;
        return false;
}

bool accumulator_voted(const struct replica *h)
{
        return h->accumulator->voted;
}

void accumulator_take_up(struct replica *h)
{
        h->accumulator->voted = h->state->record->phase == ATTEMPT_PREPARED;
}

void accumulator_refused(struct replica *h)
{
        if (!accumulator_voted(h))
                return;
        h->accumulator->voted = false;
        shard_settled(h->job);
}

/* ---- names --------------------------------------------------------------------------- */

uint32_t accumulator_waits(struct replica *h, struct wait_line *lines, uint32_t n)
{
        const struct job *job = h->job;
        struct accumulator *l = h->accumulator;

        if (!l->preparing || n == 0)
                return 0;
        for (uint32_t g = 0; g < job->layout->n_groups; g++) {
                struct accumulator_group *lg = &l->groups[g];

                if (!accumulator_has(h, g) || lg->measured)
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

void accumulators_node_down(struct engine *x, uint32_t node, const char *why)
{
        list_for_each (&x->jobs, item) {
                for_replicas (CONTAINER_OF(item, struct job, link), h)
                        accumulator_forget_node(h, node);
        }
}

const struct shard_observer reduce_observer = { .made = accumulator_new,
                                                .freed = accumulator_free };
