/*
 * The owner's side of a gradient.
 *
 * Nodes offer what their ranks contributed to a group.  The owner pulls its range of each offer
 * (pulling.c) and adds it up in fp32: micro-batch by micro-batch, and in node order within each, so
 * that the result does not depend on timing.
 *
 * A sum of the wire's dtype (job_spec.h) is rounded once a micro-batch.  So a task waits until all
 * nodes have offered to a micro-batch, and adds all of them to what the sum has.  That wait alone
 * could last forever: ranks push groups in different orders, or not all groups, and have no slot
 * for what the others wait for.  So each time the owner stands still, more groups may go on in node
 * order without the missing nodes, as all sums in fp32 do.  Such a group has its sum in fp32 beside
 * until the micro-batch ends.  The next attempt begins with as many as this one had at once: a job
 * that needs them stands still no more, and in any other job they become few again.
 *
 * When all nodes have sent their last offer for a group, the owner takes the group's norm, in the
 * same pass as the last addition if it knows that this is the last.  When all groups are complete
 * and the coordinator has asked, the owner takes the norm of all sums that it defers, and votes
 * (vote.c).
 */
#include "daemon/step/reduce/accumulator.h"
#include "daemon/step/reduce/node_gradient.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/floor/base/crash.h"
#include "daemon/floor/base/buffer.h"
#include "proto/cleanup.h"
#include "proto/sure.h"

enum { STILL_MS = 500, STILL_PARTS = 8 }; /* that often, a part of the groups goes on */

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

                lg->replica = h;
                lg->nodes = calloc(nodes, sizeof *lg->nodes);
                if (!lg->nodes)
                        return -ENOMEM;
                for (uint32_t i = 0; i < nodes; i++)
                        list_init(&lg->nodes[i].queue);
        }
        return 0;
}

static void beside_give(struct accumulator *l, struct accumulator_group *lg)
{
        l->n_beside -= lg->beside != NULL;
        buffer_free(STEAL(lg->beside));
        lg->ended = false;
}

static void accumulator_free(struct replica *h)
{
        struct accumulator *l = h->accumulator;

        if (!l)
                return;
        for (uint32_t g = 0; l->groups && g < l->n_groups; g++) {
                assert(!l->groups[g].deferred); /* the offer has the job */
                beside_give(l, &l->groups[g]);
                free(l->groups[g].nodes);
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

bool accumulator_has(const struct replica *h, uint32_t group)
{
        return h->state->plan->shards[group].range.count > 0 &&
               layout_group_trainable(h->job->layout, group);
}

bool accumulator_expects(const struct replica *h, uint32_t group, uint32_t node)
{
        const struct job *job = h->job;

        return h->copy ? node == job->placement.node[h->owner]
                       : node_set_has(job->reduce->nodes[group], node);
}

struct range accumulator_range(const struct replica *h, uint32_t group)
{
        const struct plan_shard *shard = &h->state->plan->shards[group];

        return h->copy ? (struct range){ 0, shard->moment_count } : shard->range;
}

/* Whether the node has something to add yet. */
static bool is_due(const struct replica *h, uint32_t group, uint32_t node)
{
        return !h->accumulator->groups[group].nodes[node].finished &&
               accumulator_expects(h, group, node);
}

bool offer_is_alone(const struct offer *o)
{
        for (uint32_t node = 0; node < o->replica->job->x->cluster->n_nodes; node++)
                if (node != o->node && is_due(o->replica, o->group, node))
                        return false;
        return true;
}

/* ---- accumulation ---- */

/* For an offload thread.  Only the one task of a group touches accumulator.present of its tensors.
 */
static void offer_accumulate(struct offload_task *task, uint32_t worker)
{
        struct offer *o = CONTAINER_OF(task, struct offer, task);

        struct accumulator_group *lg = &o->replica->accumulator->groups[o->group];

        accumulator_add(o->replica, o->group, o, o->final ? &lg->norm : NULL);
}

void accumulator_forget_added(struct replica *h, uint32_t group)
{
        const struct layout_group *g = &h->job->layout->groups[group];

        memset(h->accumulator->present + g->first_tensor, 0, g->n_tensors);
        beside_give(h->accumulator, &h->accumulator->groups[group]);
}

/* Nobody needs the gradients of the offer, and of those with it, any more. */
static void offer_end(struct offer *o)
{
        const struct replica *h = o->replica;

        list_for_each (&o->with, item) {
                offer_end(CONTAINER_OF(item, struct offer, link));
        }
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
        if (lg->beside != o->beside)
                beside_give(h->accumulator, lg);
        lg->beside = o->beside;
        lg->ended = false;
        h->accumulator->moved_ms = engine_now(job->x);
        job_ref(job);
        if (o->generation != h->accumulator->generation) {
                accumulator_forget_added(h, group);
                offer_end(o);
        } else if (o->way == OFFER_SETTLED) {
                lg->measured = true;
                offer_end(o);
                accumulator_vote(h);
                shard_settled(job);
        } else {
                lg->cursor = accumulator_rounds(h) ? o->until : o->node + 1;
                lg->normed = o->final;
                offer_end(o);
        }
        accumulator_advance(h, group);
        job_unref(job);
}

static void offer_run(struct offer *o)
{
        const struct replica *h = o->replica;
        struct accumulator_group *lg = &h->accumulator->groups[o->group];

        if (o->final)
                group_norm_init(&lg->norm, h->job, o->group);
        lg->busy = true;
        o->task.run = offer_accumulate;
        o->task.done = offer_accumulated;
        job_compute(h->job, OFFLOAD_STEP, &o->task);
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

/* Out of its queue; it is going to be added. */
static void offer_take(struct offer *o)
{
        o->replica->accumulator->groups[o->group].nodes[o->node].finished = o->last;
        list_remove(&o->link);
        if (o->node_gradient && !o->empty)
                node_gradient_read_begin(o->node_gradient);
}

/* Takes what the nodes behind it offer to the micro-batch, up to its end; returns the last of all.
 */
static struct offer *offer_join(struct offer *first)
{
        struct replica *h = first->replica;
        struct accumulator_group *lg = &h->accumulator->groups[first->group];
        struct offer *last = first;

        for (uint32_t n = first->node + 1; n < first->until; n++) {
                struct list *queue = &lg->nodes[n].queue;
                struct offer *o = CONTAINER_OF(queue->next, struct offer, link);

                if (!is_due(h, first->group, n))
                        continue;
                if (!o->empty)
                        offer_take_end(o, queue);
                offer_take(o);
                if (o->empty) {
                        offer_free(o);
                        continue;
                }
                list_insert(&first->with, &o->link);
                last = o;
        }
        return last;
}

static void offer_submit(struct offer *o)
{
        struct replica *h = o->replica;
        bool defers = offer_defers(o);
        const struct offer *last = o;

        o->way = defers ? OFFER_DEFERRED : OFFER_ADDED;
        o->generation = h->accumulator->generation;
        offer_take(o);
        if (accumulator_rounds(h))
                last = offer_join(o);
        o->final = last->last && offer_is_alone(last);
        if (defers)
                deferred_keep(o);
        else
                offer_run(o);
}

void offer_settle(struct offer *o)
{
        const struct replica *h = o->replica;

        o->way = OFFER_SETTLED;
        o->final = !h->accumulator->groups[o->group].measured;
        offer_run(o);
}

static void measure_run(struct offload_task *task, uint32_t worker)
{
        struct accumulator_group *lg = CONTAINER_OF(task, struct accumulator_group, task);
        const struct replica *h = lg->replica;

        accumulator_add(h, (uint32_t)(lg - h->accumulator->groups), NULL, &lg->norm);
}

static void measure_done(struct offload_task *task)
{
        struct accumulator_group *lg = CONTAINER_OF(task, struct accumulator_group, task);
        struct replica *h = lg->replica;
        struct job *job = h->job;
        uint32_t group = (uint32_t)(lg - h->accumulator->groups);

        lg->busy = false;
        if (lg->generation == h->accumulator->generation) {
                beside_give(h->accumulator, lg);
                accumulator_complete(h, group);
        } else {
                accumulator_forget_added(h, group);
                accumulator_advance(h, group);
        }
        job_unref(job);
}

/* Takes the norm of a complete group that has none.  The sum beside becomes that of the group. */
static void accumulator_measure(struct replica *h, uint32_t group)
{
        struct accumulator_group *lg = &h->accumulator->groups[group];

        job_ref(h->job);
        lg->generation = h->accumulator->generation;
        group_norm_init(&lg->norm, h->job, group);
        lg->complete = true;
        lg->busy = true;
        lg->task.run = measure_run;
        lg->task.done = measure_done;
        job_compute(h->job, OFFLOAD_STEP, &lg->task);
}

/* Moves on to the next node in order that still contributes to the micro-batch; false if none is
 * left. */
static bool accumulator_turn(struct replica *h, uint32_t group)
{
        struct accumulator_group *lg = &h->accumulator->groups[group];
        uint32_t nodes = h->job->x->cluster->n_nodes;

        for (uint32_t tries = 0; tries <= nodes; tries++) {
                for (; lg->cursor < nodes; lg->cursor++)
                        if (is_due(h, group, lg->cursor))
                                return true;
                lg->cursor = 0;
                lg->micro_batch++;
                lg->ended = lg->beside;
        }
        return false;
}

/* The first node whose offer to the micro-batch has not come; the number of nodes: all have. */
static uint32_t micro_batch_lacks(const struct replica *h, uint32_t group)
{
        const struct accumulator_group *lg = &h->accumulator->groups[group];
        uint32_t n = lg->cursor;

        while (n < h->job->x->cluster->n_nodes &&
               (!is_due(h, group, n) || !list_empty(&lg->nodes[n].queue)))
                n++;
        return n;
}

/* Pulls what the nodes up to that one offer to the micro-batch; false: some is on its way. */
static bool micro_batch_landed(struct replica *h, uint32_t group, uint32_t until)
{
        struct accumulator_group *lg = &h->accumulator->groups[group];
        bool landed = true;

        for (uint32_t n = lg->cursor; n < until; n++) {
                struct offer *o = CONTAINER_OF(lg->nodes[n].queue.next, struct offer, link);

                if (!is_due(h, group, n) || o->empty || o->node_gradient ||
                    o->phase == OFFER_LANDED)
                        continue;
                landed = false;
                offer_pull(o, true);
        }
        return landed;
}

/* NULL: out of memory. */
static float *beside_new(struct replica *h, uint32_t group)
{
        struct accumulator *l = h->accumulator;
        float *beside = buffer_new(h->state->plan->shards[group].moment_count * sizeof *beside);

        l->n_beside += beside != NULL;
        if (l->most_beside < l->n_beside)
                l->most_beside = l->n_beside;
        h->job->reduce->lacking = h->job->reduce->lacking || !beside;
        return beside;
}

/* Whether a task can add the offer, whose turn it is, and those behind it.  If nodes are lacking,
 * the sum goes beside. */
static bool round_begins(struct offer *o)
{
        struct replica *h = o->replica;
        const struct accumulator *l = h->accumulator;
        const struct accumulator_group *lg = &l->groups[o->group];
        bool whole;

        o->until = micro_batch_lacks(h, o->group);
        whole = o->until == h->job->x->cluster->n_nodes;
        if (!whole && !lg->beside && l->n_beside >= l->may_beside)
                return false;
        if (!micro_batch_landed(h, o->group, o->until))
                return false;
        if (!whole)
                o->beside = lg->beside ? lg->beside : beside_new(h, o->group);
        return whole || o->beside;
}

/* Whether nothing but offers is lacking. */
static bool is_open(const struct replica *h, uint32_t group)
{
        const struct accumulator_group *lg = &h->accumulator->groups[group];

        return !h->job->dead && h->job->started && !lg->busy && !lg->readers && !lg->complete &&
               accumulator_has(h, group) && !h->unread[group];
}

void accumulator_advance(struct replica *h, uint32_t group)
{
        struct accumulator_group *lg = &h->accumulator->groups[group];

        if (!is_open(h, group))
                return;
        while (accumulator_turn(h, group)) {
                struct list *queue = &lg->nodes[lg->cursor].queue;
                struct offer *o;

                if (list_empty(queue))
                        return;
                o = CONTAINER_OF(queue->next, struct offer, link);
                if (o->empty) {
                        lg->nodes[o->node].finished = o->last;
                        lg->cursor++;
                        offer_free(o);
                        continue;
                }
                if (accumulator_rounds(h) && !round_begins(o))
                        return;
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

/* Whether an offer waits for nodes that have not offered to its micro-batch. */
static bool round_waits(const struct replica *h, uint32_t group)
{
        const struct accumulator_group *lg = &h->accumulator->groups[group];
        uint32_t nodes = h->job->x->cluster->n_nodes;

        return is_open(h, group) && accumulator_rounds(h) && lg->cursor < nodes &&
               !list_empty(&lg->nodes[lg->cursor].queue) && micro_batch_lacks(h, group) < nodes;
}

void accumulator_tick(struct replica *h)
{
        struct accumulator *l = h->accumulator;
        uint32_t waiting = 0, part;

        if (engine_now(h->job->x) - l->moved_ms < STILL_MS)
                return;
        for (uint32_t g = 0; g < l->n_groups; g++)
                waiting += round_waits(h, g);
        if (!waiting)
                return;
        part = (l->n_groups + STILL_PARTS - 1) / STILL_PARTS;
        if (l->may_beside < l->n_beside + part)
                l->may_beside = l->n_beside + part;
        l->moved_ms = engine_now(h->job->x);
        for (uint32_t g = 0; g < l->n_groups; g++)
                accumulator_advance(h, g);
}

/* ---- attempts ---- */

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
        for (uint32_t n = 0; n < nodes; n++) {
                struct accumulator_node *node = &lg->nodes[n];

                while (!list_empty(&node->queue))
                        offer_void(CONTAINER_OF(node->queue.next, struct offer, link));
                node->offered = 0;
                node->finished = false;
        }
        lg->micro_batch = lg->cursor = 0;
        lg->complete = lg->normed = lg->measured = false;
}

void accumulator_reset(struct replica *h)
{
        struct job *job = h->job;
        struct accumulator *l = h->accumulator;

        l->generation++;
        l->preparing = l->have_params = l->voted = l->left = false;
        l->may_beside = l->most_beside;
        l->most_beside = 0;
        for (uint32_t g = 0; g < job->layout->n_groups; g++) {
                accumulator_reset_group(&l->groups[g], job->x->cluster->n_nodes);
                deferred_end(h, g);
                if (!l->groups[g].busy) /* otherwise the task's end does it */
                        accumulator_forget_added(h, g);
        }
        accumulator_take_early(h);
        for (uint32_t g = 0; g < job->layout->n_groups; g++)
                accumulator_advance(h, g);
        shard_settled(job);
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
                        if (h->accumulator->groups[g].nodes[n].offered)
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

/* ---- names ---- */

uint32_t accumulator_waits(struct replica *h, struct wait_line *lines, uint32_t n)
{
        const struct job *job = h->job;
        struct accumulator *l = h->accumulator;

        if (!l->preparing || n == 0)
                return 0;
        for (uint32_t g = 0; g < job->layout->n_groups; g++) {
                struct accumulator_group *lg = &l->groups[g];
                uint32_t lacks = micro_batch_lacks(h, g);

                if (!accumulator_has(h, g) || lg->measured)
                        continue;
                if (!accumulator_rounds(h) || lacks == job->x->cluster->n_nodes)
                        lacks = lg->complete ? job->x->cluster->self : lg->cursor;
                snprintf(lines[0].who, sizeof lines[0].who, "node %.60s", node_name(job->x, lacks));
                snprintf(lines[0].what, sizeof lines[0].what, "gradient of group '%.80s'",
                         job->layout->groups[g].name);
                return 1;
        }
        return 0;
}

const struct shard_observer reduce_observer = { .made = accumulator_new,
                                                .freed = accumulator_free };
