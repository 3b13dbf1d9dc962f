/*
 * The owner's side of a gradient.
 *
 * Nodes offer what their ranks contributed to a group.  The owner pulls its range of each offer
 * (pulling.c) and adds it up in fp32: micro-batch by micro-batch, and in node order within each, so
 * that the result does not depend on timing.
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
#include "proto/cleanup.h"
#include "proto/sure.h"

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

static void accumulator_free(struct replica *h)
{
        struct accumulator *l = h->accumulator;

        if (!l)
                return;
        for (uint32_t g = 0; l->groups && g < l->n_groups; g++) {
                assert(!l->groups[g].deferred); /* the offer has the job */
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

uint64_t accumulator_bytes(const struct replica *h, uint64_t elements)
{
        return h->copy ? elements * sizeof(float) : job_spec_sum_bytes(&h->job->spec, elements);
}

struct range accumulator_range(const struct replica *h, uint32_t group)
{
        const struct plan_shard *shard = &h->state->plan->shards[group];

        return h->copy ? (struct range){ 0, shard->moment_count } : shard->range;
}

bool offer_is_alone(const struct offer *o)
{
        const struct replica *h = o->replica;
        const struct accumulator_group *lg = &h->accumulator->groups[o->group];

        for (uint32_t node = 0; node < h->job->x->cluster->n_nodes; node++)
                if (node != o->node && !lg->nodes[node].finished &&
                    accumulator_expects(h, o->group, node))
                        return false;
        return true;
}

/* ---- tasks ---- */

/*
 * A task on a group's sum adds an offer, or takes the norm of the whole, or does both in one pass
 * over memory.  Or one task on several groups takes the norm of their offers and adds none.
 *
 * Each tensor of the group is a piece (device.h) of its own, because each has other sources, and
 * the gaps between tensors have no gradient.
 */

static bool offer_has(const struct offer *o, uint32_t tensor)
{
        uint32_t i = tensor - o->replica->job->layout->groups[o->group].first_tensor;

        return o->present[i / 8] >> (i % 8) & 1;
}

void offer_mark_present(const struct offer *o)
{
        const struct replica *h = o->replica;
        const struct plan_shard *shard = &h->state->plan->shards[o->group];

        for (uint32_t i = 0; i < shard->n_segments; i++) {
                uint32_t t = h->state->plan->segments[shard->first_segment + i].tensor;

                if (!h->job->layout->tensors[t].frozen && offer_has(o, t))
                        h->accumulator->present[t] = 1;
        }
}

/* Where a segment lies in what was pulled: as in the group, or for a mirror as in the plane. */
static const void *pulled_at(const struct offer *o, const struct plan_segment *s)
{
        const struct replica *h = o->replica;
        const struct plan_shard *shard = &h->state->plan->shards[o->group];
        uint64_t at = h->copy ? s->moment - shard->moment : s->in_group - shard->range.first;

        return (const char *)o->buffer->memory + accumulator_bytes(h, at);
}

/* Addresses of the tensor's contributions; returns their number. */
static size_t sources_of(const struct offer *o, const struct plan_segment *s, const void **ret_src)
{
        if (o->node_gradient)
                return node_gradient_sources(o->node_gradient, s->tensor, s->in_group, ret_src);
        ret_src[0] = pulled_at(o, s);
        return 1;
}

double reduce_norm_scale(const struct job *job, uint32_t group)
{
        double divisor = layout_group_divisor(&job->layout->groups[group], job->world_size);

        return 1 / (divisor * divisor);
}

void group_norm_init(struct group_norm *norm, const struct job *job, uint32_t group)
{
        norm->scale = reduce_norm_scale(job, group);
        norm->finite = true;
        exact_sum_init(&norm->sum);
}

/* The pieces of one or several groups, with memory for the addresses of their sources. */
struct pieces {
        struct reduce_piece *list; /* [segment of the shards] */
        const void **src;          /* [most * segment of the shards] */
        size_t most, n;
};

/* acc: the segment's sum.  False: the segment needs nothing. */
static bool piece_make(const struct replica *h, const struct plan_segment *s, const struct offer *o,
                       bool normed, float *acc, const void **src, struct reduce_piece *ret)
{
        const struct layout_tensor *t = &h->job->layout->tensors[s->tensor];
        uint8_t *present = &h->accumulator->present[s->tensor];
        bool has = !t->frozen && o && offer_has(o, s->tensor);
        bool first = !*present || (o && o->way != OFFER_ADDED);
        uint64_t n = plan_segment_elements(t, s);

        if (has)
                *present = 1; /* even for a tensor without elements here */
        if (n == 0 || t->frozen || !(has || (normed && *present)))
                return false;
        *ret = (struct reduce_piece){
                .acc = acc, .n = n, .k = has ? sources_of(o, s, src) : 0, .src = src, .first = first
        };
        return true;
}

static void pieces_reduce(const struct replica *h, const struct pieces *p, const struct offer *o,
                          struct group_norm *norm)
{
        const struct node_gradient *node_gradient = o ? o->node_gradient : NULL;
        enum zero_dtype wire = h->copy ? ZERO_FP32 : h->job->reduce_dtype,
                        from = node_gradient ? node_gradient_dtype(node_gradient) : wire;

        h->job->x->ops->reduce(p->list, p->n, wire, from, norm ? norm->scale : 0,
                               norm ? &norm->sum : NULL, norm ? &norm->finite : NULL);
}

static void pieces_init(struct pieces *p, size_t n_segments, const struct offer *o)
{
        *p = (struct pieces){ .most = o && o->node_gradient
                                              ? node_gradient_sources_max(o->node_gradient)
                                              : 1 };
        p->list = sure_realloc(NULL, n_segments * sizeof *p->list);
        p->src = sure_realloc(NULL, n_segments * p->most * sizeof *p->src);
}

static void pieces_deinit(struct pieces *p)
{
        free(p->list);
        free(p->src);
}

/* sum: of the group's shard; NULL: nothing is written. */
static void pieces_take(struct pieces *p, const struct replica *h, uint32_t group,
                        const struct offer *o, bool normed, float *sum)
{
        const struct plan_shard *shard = &h->state->plan->shards[group];

        for (uint32_t i = 0; i < shard->n_segments; i++) {
                const struct plan_segment *s = &h->state->plan->segments[shard->first_segment + i];
                bool frozen = s->moment == UINT64_MAX;

                p->n += piece_make(h, s, o, normed,
                                   frozen || !sum ? NULL : sum + (s->moment - shard->moment),
                                   p->src + p->n * p->most, &p->list[p->n]);
        }
}

static void accumulator_add(const struct replica *h, uint32_t group, const struct offer *o,
                            struct group_norm *norm)
{
        const struct plan_shard *shard = &h->state->plan->shards[group];
        struct mapping sum;
        struct pieces p;

        pieces_init(&p, shard->n_segments, o);
        sum = state_map(h->state, plane_grad, group, shard->range);
        pieces_take(&p, h, group, o, norm, sum.at);
        pieces_reduce(h, &p, o, norm);
        state_unmap(&sum);
        pieces_deinit(&p);
}

/* The offer with the most sources. */
static const struct offer *most_sources(struct offer *const *offers, uint32_t n)
{
        const struct offer *most = offers[0];

        for (uint32_t i = 1; i < n; i++)
                if (node_gradient_sources_max(offers[i]->node_gradient) >
                    node_gradient_sources_max(most->node_gradient))
                        most = offers[i];
        return most;
}

void deferred_norm(const struct replica *h, struct offer *const *offers, uint32_t n,
                   struct group_norm *norm)
{
        size_t n_segments = 0;
        struct pieces p;

        for (uint32_t i = 0; i < n; i++)
                n_segments += h->state->plan->shards[offers[i]->group].n_segments;
        pieces_init(&p, n_segments, most_sources(offers, n));
        for (uint32_t i = 0; i < n; i++) {
                double scale = reduce_norm_scale(h->job, offers[i]->group);

                if (p.n && scale != norm->scale) {
                        pieces_reduce(h, &p, offers[i - 1], norm);
                        p.n = 0;
                }
                norm->scale = scale;
                pieces_take(&p, h, offers[i]->group, offers[i], true, NULL);
        }
        pieces_reduce(h, &p, offers[n - 1], norm);
        pieces_deinit(&p);
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
                offer_end(o);
                accumulator_vote(h);
                shard_settled(job);
        } else {
                lg->nodes[o->node].finished = o->last;
                lg->cursor++;
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

static void offer_submit(struct offer *o)
{
        struct replica *h = o->replica;
        bool defers = offer_defers(o);

        o->final = o->last && offer_is_alone(o);
        o->way = defers ? OFFER_DEFERRED : OFFER_ADDED;
        o->generation = h->accumulator->generation;
        list_remove(&o->link);
        if (o->node_gradient)
                node_gradient_read_begin(o->node_gradient);
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

/* An empty offer behind it only says that the offer is the last. */
static void offer_take_end(struct offer *o, const struct list *queue)
{
        struct offer *next = CONTAINER_OF(o->link.next, struct offer, link);

        if (o->link.next == queue || !next->empty || !next->last)
                return;
        o->last = true;
        offer_free(next);
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
                accumulator_complete(h, group);
        } else {
                accumulator_forget_present(h, group);
                accumulator_advance(h, group);
        }
        job_unref(job);
}

/* Takes the norm of a complete group that has none. */
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
                        if (!lg->nodes[lg->cursor].finished &&
                            accumulator_expects(h, group, lg->cursor))
                                return true;
                lg->cursor = 0;
                lg->micro_batch++;
        }
        return false;
}

void accumulator_advance(struct replica *h, uint32_t group)
{
        const struct job *job = h->job;
        struct accumulator_group *lg = &h->accumulator->groups[group];

        if (job->dead || !job->started || lg->busy || lg->readers || lg->complete ||
            !accumulator_has(h, group) || h->unread[group])
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

const struct shard_observer reduce_observer = { .made = accumulator_new,
                                                .freed = accumulator_free };
