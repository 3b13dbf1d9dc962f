/*
 * One task on a group's sum: it adds an offer, or takes the norm of the whole, or does both in one
 * pass over memory.  Or one task on several groups takes the norm of their offers and adds none.
 *
 * Each tensor of the group is a piece (device.h) of its own, because each has other sources, and
 * the gaps between tensors have no gradient.
 */
#include "daemon/step/reduce/accumulator.h"
#include "daemon/step/reduce/node_gradient.h"

#include <stdlib.h>

#include "proto/sure.h"

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

        return (const char *)o->buffer->memory + at * dtype_size(accumulator_dtype(h));
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
        enum zero_dtype wire = accumulator_dtype(h),
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

void accumulator_add(const struct replica *h, uint32_t group, const struct offer *o,
                     struct group_norm *norm)
{
        const struct plan_shard *shard = &h->state->plan->shards[group];
        struct mapping sum;
        struct pieces p;

        pieces_init(&p, shard->n_segments, o);
        sum = state_map(h->state, ZERO_PLANE_GRAD,
                        (struct range){ shard->moment, shard->moment_count });
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
