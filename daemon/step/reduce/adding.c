/*
 * The arithmetic of an owner's sum.
 *
 * A task on a group's sum adds an offer, or takes the norm of the whole, or does both in one pass
 * over memory.  Or one task on several groups takes the norm of their offers and adds none.  Each
 * tensor of the group is a piece (device.h) of its own, because each has other sources, and the
 * gaps between tensors have no gradient.
 *
 * A sum of the wire's dtype takes half as much memory as one in fp32.  What a micro-batch brings
 * from all nodes is added in fp32 to what the sum has, in node order, and rounded once.  The norm
 * is that of the rounded values, for those are applied: by the owner, by its mirror, and by a
 * process that goes on after a crash.  A task that adds a part of the micro-batch leaves all that
 * the group has in fp32 beside the sum, from where the next task goes on.
 */
#include "daemon/step/reduce/accumulator.h"
#include "daemon/step/reduce/node_gradient.h"

#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"
#include "proto/dtype.h"
#include "proto/sure.h"

/* A mirror pulls its owner's sum. */
static enum zero_dtype pulled_dtype(const struct replica *h)
{
        return h->copy ? h->state->plan->grad_dtype : h->job->reduce_dtype;
}

uint64_t accumulator_bytes(const struct replica *h, uint64_t elements)
{
        return dtype_bytes(pulled_dtype(h), elements);
}

bool accumulator_rounds(const struct replica *h)
{
        return h->state->plan->grad_dtype != ZERO_FP32;
}

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

static size_t offer_sources(const struct offer *o, const struct plan_segment *s,
                            const void **ret_src)
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
        *ret = (struct reduce_piece){ .acc = acc,
                                      .n = n,
                                      .k = has ? offer_sources(o, s, src) : 0,
                                      .src = src,
                                      .first = first };
        return true;
}

static size_t offer_sources_max(const struct offer *o)
{
        return o && o->node_gradient ? node_gradient_sources_max(o->node_gradient) : 1;
}

static void offer_reduce(const struct replica *h, const struct offer *o,
                         const struct reduce_piece *list, size_t n, struct group_norm *norm)
{
        enum zero_dtype wire = pulled_dtype(h);

        h->job->x->ops->reduce(
                list, n, wire, o && o->node_gradient ? node_gradient_dtype(o->node_gradient) : wire,
                norm ? norm->scale : 0, norm ? &norm->sum : NULL, norm ? &norm->finite : NULL);
}

static void pieces_init(struct pieces *p, size_t n_segments, const struct offer *o)
{
        *p = (struct pieces){ .most = offer_sources_max(o) };
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
                        offer_reduce(h, offers[i - 1], p.list, p.n, norm);
                        p.n = 0;
                }
                norm->scale = scale;
                pieces_take(&p, h, offers[i]->group, offers[i], true, NULL);
        }
        offer_reduce(h, offers[n - 1], p.list, p.n, norm);
        pieces_deinit(&p);
}

/* ---- a sum that is rounded ---- */

enum { PART = 16 * LAYOUT_ALIGN }; /* elements that are in L1, in fp32, until their norm is taken */

/* A segment, or what is left of it. */
struct rounding {
        const struct replica *h;
        const struct offer *offers; /* the first; NULL: only the norm is taken */
        struct plan_segment at;
        const void **src;  /* room for the addresses of any offer's sources */
        bool had;          /* the sum has contributions already; otherwise its values are void */
        bool ended;        /* what `from` has was never rounded, but its micro-batch has ended */
        const float *from; /* NULL: the sum */
        float *to;         /* NULL: the sum */
        uint8_t *sum;
        struct group_norm *norm; /* NULL: more will be added */
};

static void add_offer(const struct rounding *r, const struct offer *o, size_t n, float *acc,
                      bool *first)
{
        if (!offer_has(o, r->at.tensor))
                return;
        offer_reduce(r->h, o,
                     &(struct reduce_piece){ .acc = acc,
                                             .n = n,
                                             .k = offer_sources(o, &r->at, r->src),
                                             .src = r->src,
                                             .first = *first },
                     1, NULL);
        *first = false;
}

/* Into the sum, and back. */
static void round_values(const struct rounding *r, float *acc, size_t n)
{
        const struct device_ops *ops = r->h->job->x->ops;
        enum zero_dtype dtype = r->h->state->plan->grad_dtype;

        ops->cast(dtype, r->sum, ZERO_FP32, acc, n);
        ops->cast(ZERO_FP32, acc, dtype, r->sum, n);
}

static void fetch_values(const struct rounding *r, float *acc, size_t n)
{
        if (!r->from) {
                r->h->job->x->ops->cast(ZERO_FP32, acc, r->h->state->plan->grad_dtype, r->sum, n);
                return;
        }
        memcpy(acc, r->from, n * sizeof *acc);
        if (r->ended)
                round_values(r, acc, n);
}

static void round_part(const struct rounding *r, size_t n)
{
        bool first = !r->had;
        float acc[PART];

        if (r->had)
                fetch_values(r, acc, n);
        if (r->offers) {
                add_offer(r, r->offers, n, acc, &first);
                list_for_each ((struct list *)&r->offers->with, item) {
                        add_offer(r, CONTAINER_OF(item, struct offer, link), n, acc, &first);
                }
        }
        if (r->to)
                memcpy(r->to, acc, n * sizeof *acc);
        else if (r->offers || r->from)
                round_values(r, acc, n);
        if (r->norm)
                r->h->job->x->ops->norm(acc, n, r->norm->scale, &r->norm->sum, &r->norm->finite);
}

/* Marks the tensor if an offer has it.  Returns false if the task has nothing to do for it. */
static bool mark(const struct rounding *r)
{
        uint8_t *present = &r->h->accumulator->present[r->at.tensor];
        bool some = r->offers && offer_has(r->offers, r->at.tensor);

        if (r->offers)
                list_for_each ((struct list *)&r->offers->with, item) {
                        some |= offer_has(CONTAINER_OF(item, struct offer, link), r->at.tensor);
                }
        *present |= some; /* even for a tensor without elements here */
        return some || ((r->norm || r->from || r->to) && *present);
}

static void round_segment(struct rounding *r)
{
        const struct layout_tensor *t = &r->h->job->layout->tensors[r->at.tensor];
        enum zero_dtype dtype = r->h->state->plan->grad_dtype;

        r->had = r->h->accumulator->present[r->at.tensor];
        if (!mark(r))
                return;
        for (uint64_t left = plan_segment_elements(t, &r->at), n; left; left -= n) {
                n = left < PART ? left : PART;
                round_part(r, n);
                r->sum += dtype_bytes(dtype, n);
                r->from += r->from ? n : 0;
                r->to += r->to ? n : 0;
                r->at.in_group += n;
                r->at.moment += n;
        }
}

static const void **room_for_sources(const struct offer *offers)
{
        size_t most = offer_sources_max(offers);

        if (offers)
                list_for_each ((struct list *)&offers->with, item) {
                        size_t n = offer_sources_max(CONTAINER_OF(item, struct offer, link));

                        most = n > most ? n : most;
                }
        return sure_realloc(NULL, most * sizeof(void *));
}

static void rounded_add(const struct replica *h, uint32_t group, const struct offer *offers,
                        void *sum, struct group_norm *norm)
{
        const struct plan_shard *shard = &h->state->plan->shards[group];
        const struct accumulator_group *lg = &h->accumulator->groups[group];
        float *to = offers ? offers->beside : NULL;
        const void **src = room_for_sources(offers);

        for (uint32_t i = 0; i < shard->n_segments; i++) {
                const struct plan_segment *s = &h->state->plan->segments[shard->first_segment + i];
                uint64_t at = s->moment - shard->moment;
                struct rounding r = { .h = h,
                                      .offers = offers,
                                      .at = *s,
                                      .src = src,
                                      .ended = lg->ended,
                                      .norm = norm };

                if (s->moment == UINT64_MAX)
                        continue;
                r.from = lg->beside ? lg->beside + at : NULL;
                r.to = to ? to + at : NULL;
                r.sum = (uint8_t *)sum + dtype_bytes(h->state->plan->grad_dtype, at);
                round_segment(&r);
        }
        free(src);
}

void accumulator_add(const struct replica *h, uint32_t group, const struct offer *o,
                     struct group_norm *norm)
{
        const struct plan_shard *shard = &h->state->plan->shards[group];
        struct mapping sum = state_map(h->state, plane_grad, group, shard->range);
        struct pieces p;

        if (accumulator_rounds(h)) {
                rounded_add(h, group, o, sum.at, norm);
        } else {
                pieces_init(&p, shard->n_segments, o);
                pieces_take(&p, h, group, o, norm, sum.at);
                offer_reduce(h, o, p.list, p.n, norm);
                pieces_deinit(&p);
        }
        state_unmap(&sum);
}
