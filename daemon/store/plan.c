/*
 * Where an owner's part of a job lies; see plan.h for the rule.
 *
 * plan_new() walks the layout twice: the first walk only counts, the second fills the tables.
 *
 * Invariants: the segments of a shard are contiguous and cover it.  The chunks of a shard cover its
 * trainable segments once, in order.  Every offset and count of a segment is a multiple of
 * LAYOUT_ALIGN elements.
 */
#include "daemon/store/plan.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"
#include "proto/dtype.h"

enum { SERVE_ALIGN = 4096 }; /* bytes */

DEFINE_CLEANUP(struct plan *, plan_free)

void plan_free(struct plan *p)
{
        if (!p)
                return;
        free(p->shards);
        free(p->segments);
        free(p->runs);
        free(p->chunk_segments);
        free(p);
}

static uint64_t align_up(uint64_t n, uint64_t unit)
{
        return (n + unit - 1) / unit * unit;
}

static uint64_t min_u64(uint64_t a, uint64_t b)
{
        return a < b ? a : b;
}

/* Cuts into chunks of about equal length, so that no short remainder is left. */
static uint64_t chunk_length(const struct plan *p, uint64_t count)
{
        uint64_t n = (count + p->chunk_elements - 1) / p->chunk_elements;

        return align_up((count + n - 1) / n, LAYOUT_ALIGN);
}

static uint32_t segment_at(const struct plan *p, uint32_t segment, uint64_t in_group)
{
        while (in_group >= p->segments[segment].in_group + p->segments[segment].count)
                segment++;
        return segment;
}

/* Ends the run, if one has begun. */
static void cut_run(struct plan *p, struct plan_run *run)
{
        if (run->count == 0)
                return;
        run->first_chunk = p->n_chunks;
        run->length = (uint32_t)chunk_length(p, run->count);

        uint32_t n = (uint32_t)((run->count + run->length - 1) / run->length);
        uint32_t segment = run->first_segment;

        for (uint32_t i = 0; p->chunk_segments && i < n; i++) {
                uint64_t at = (uint64_t)i * run->length;

                segment = segment_at(p, segment, run->in_group + at);
                p->chunk_segments[p->n_chunks + i] = segment;
        }
        if (p->runs)
                p->runs[p->n_runs] = *run;
        p->n_runs++;
        p->n_chunks += n;
        run->count = 0;
}

static void add_segment(struct plan *p, const struct plan_segment *s)
{
        if (p->segments)
                p->segments[p->n_segments] = *s;
        p->n_segments++;
        p->master_elements += s->count;
        if (s->moment != UINT64_MAX)
                p->moment_elements += s->count;
}

/* The part of tensor t, gap included, inside the range; false if there is none. */
static bool cut_tensor(const layout *l, uint32_t t, struct range range, struct plan_segment *ret)
{
        const struct layout_tensor *tensor = &l->tensors[t];
        uint64_t end = align_up(tensor->offset + tensor->elements, LAYOUT_ALIGN);
        uint64_t first = tensor->offset > range.first ? tensor->offset : range.first;

        end = min_u64(end, range.first + range.count);
        if (first >= end)
                return false;
        *ret = (struct plan_segment){
                .tensor = t,
                .group = tensor->group,
                .in_group = first,
                .count = end - first,
                .moment = UINT64_MAX,
        };
        return true;
}

static void walk_segments(struct plan *p, const layout *l, uint32_t group, struct range range)
{
        const struct layout_group *g = &l->groups[group];
        struct plan_run run = { 0 };

        for (uint32_t t = g->first_tensor; t < g->first_tensor + g->n_tensors; t++) {
                struct plan_segment s;

                if (!cut_tensor(l, t, range, &s))
                        continue;
                s.master = p->master_elements;
                if (l->tensors[t].frozen) {
                        cut_run(p, &run);
                } else {
                        s.moment = p->moment_elements;
                        s.run = p->n_runs;
                        if (run.count == 0)
                                run = (struct plan_run){ .group = group,
                                                         .first_segment = p->n_segments,
                                                         .master = s.master,
                                                         .moment = s.moment,
                                                         .in_group = s.in_group };
                        run.count += s.count;
                }
                add_segment(p, &s);
        }
        cut_run(p, &run);
}

static void walk_group(struct plan *p, const layout *l, uint32_t group, struct range range,
                       bool sole)
{
        struct plan_shard *shard = &p->shards[group];
        uint64_t served = layout_group_served(&l->groups[group]);

        if (sole)
                p->master_elements = align_up(p->master_elements, SERVE_ALIGN / sizeof(float));
        *shard = (struct plan_shard){
                .range = range,
                .master = p->master_elements,
                .moment = p->moment_elements,
                .optimizer = optimizer_of(l, group),
                .dtype = l->groups[group].dtype,
                .ema = l->groups[group].ema,
                .n_moments = optimizer_moments(l, group),
                .serve = served ? p->serve_bytes : UINT64_MAX,
                .old = l->groups[group].eager ? p->old_elements : UINT64_MAX,
                .first_segment = p->n_segments,
                .first_chunk = p->n_chunks,
        };
        memcpy(shard->moments, p->moments, sizeof(shard->moments));
        walk_segments(p, l, group, range);
        shard->moment_count = p->moment_elements - shard->moment;
        for (uint32_t i = 0; i < shard->n_moments; i++)
                p->moments[i] += shard->moment_count;
        if (1 + shard->n_moments > p->n_planes)
                p->n_planes = 1 + shard->n_moments;
        if (shard->old != UINT64_MAX)
                p->old_elements += (1 + shard->n_moments) * shard->moment_count;
        shard->n_segments = p->n_segments - shard->first_segment;
        shard->n_chunks = p->n_chunks - shard->first_chunk;
        p->serve_bytes += align_up(range.count * served, SERVE_ALIGN);
        assert(p->master_elements == shard->master + range.count);
}

static void walk(struct plan *p, const layout *l, const struct partition *partition)
{
        p->n_segments = p->n_runs = p->n_chunks = 0;
        p->master_elements = p->moment_elements = p->old_elements = p->serve_bytes = 0;
        memset(p->moments, 0, sizeof(p->moments));
        for (uint32_t g = 0; g < p->n_groups; g++)
                walk_group(p, l, g, partition_range(partition, g, p->owner),
                           partition->n_owners == 1);
}

/* Not NULL even without items: in a walk NULL means "count only". */
static void *table(uint32_t n, size_t size)
{
        return calloc(n ? n : 1, size);
}

int plan_new(const layout *l, const struct partition *partition, uint32_t owner,
             uint32_t chunk_elements, struct plan **ret)
{
        assert(chunk_elements > 0 && chunk_elements % LAYOUT_ALIGN == 0);
        assert(partition->n_groups == l->n_groups && owner < partition->n_owners);
        /* chunks are at least half full, except for one in each run of segments */
        if (partition_elements(partition, owner) / chunk_elements >= UINT32_MAX / 4)
                return -EOVERFLOW;

        CLEANUP(cleanup_plan_free) struct plan *p = calloc(1, sizeof(*p));
        if (!p)
                return -ENOMEM;
        *p = (struct plan){ .owner = owner,
                            .n_groups = l->n_groups,
                            .chunk_elements = chunk_elements };
        p->shards = table(l->n_groups, sizeof(*p->shards));
        if (!p->shards)
                return -ENOMEM;
        walk(p, l, partition);
        p->segments = table(p->n_segments, sizeof(*p->segments));
        p->runs = table(p->n_runs, sizeof(*p->runs));
        p->chunk_segments = table(p->n_chunks, sizeof(*p->chunk_segments));
        if (!p->segments || !p->runs || !p->chunk_segments)
                return -ENOMEM;
        walk(p, l, partition);
        *ret = STEAL(p);
        return 0;
}

static uint64_t plane_elements(const struct plan *p, struct plane plane)
{
        switch (plane.kind) {
        case PLANE_MASTER:
                return p->master_elements;
        case PLANE_MOMENT:
                return p->moments[plane.index];
        case PLANE_GRAD:
                return p->moment_elements;
        case PLANE_OLD:
                return p->old_elements;
        default:
                return 0;
        }
}

uint64_t plan_plane_bytes(const struct plan *p, struct plane plane)
{
        return plane.kind == PLANE_SERVE ? p->serve_bytes
                                         : plane_bytes(plane, ZERO_FP32, plane_elements(p, plane));
}

/* How many trainable elements the shard has before element `at` of the group. */
static uint64_t trainable_before(const struct plan *p, const struct plan_shard *shard, uint64_t at)
{
        const struct plan_segment *s = &p->segments[shard->first_segment], *end;
        uint32_t n = shard->n_segments;

        end = s + n;
        for (uint32_t half; n > 1; n -= half) { /* the last segment that begins at `at` or before */
                half = n / 2;
                s += s[half].in_group <= at ? half : 0;
        }
        while (s < end && s->moment == UINT64_MAX)
                s++;
        if (s == end)
                return shard->moment_count;
        return s->moment - shard->moment + (at > s->in_group ? at - s->in_group : 0);
}

struct range plan_bytes(const struct plan *p, struct plane plane, uint32_t group, struct range part)
{
        const struct plan_shard *shard = &p->shards[group];
        uint64_t base = 0, first = part.first - shard->range.first, n = part.count;

        if (n == 0)
                return (struct range){ 0, 0 };
        assert(range_within(part, shard->range));
        plane = plan_stored(shard, plane);
        if (plane.kind == PLANE_SERVE) {
                base = shard->serve;
        } else if (plane.kind == PLANE_MASTER) {
                first += shard->master;
        } else {
                assert(plane.kind == PLANE_GRAD || plan_has(p, group, plane));
                first = trainable_before(p, shard, part.first);
                n = trainable_before(p, shard, part.first + n) - first;
                first += plane.kind == PLANE_GRAD ? shard->moment : shard->moments[plane.index];
        }
        return (struct range){ base + plane_bytes(plane, shard->dtype, first),
                               plane_bytes(plane, shard->dtype, n) };
}

bool plan_has(const struct plan *p, uint32_t group, struct plane plane)
{
        return plane.kind == PLANE_MASTER ||
               (plane.kind == PLANE_MOMENT && plane.index < p->shards[group].n_moments);
}

uint64_t plan_state_bytes(const struct plan *p)
{
        uint64_t bytes = 0;

        for (uint32_t k = 0; k < UPDATE_PLANES; k++)
                bytes += plan_plane_bytes(p, plane_updated(k));
        return bytes;
}

/* ---- without a plan ---- */

uint64_t plan_owner_bytes(const layout *l, const struct partition *p, uint32_t owner)
{
        uint64_t bytes = 0;

        for (uint32_t g = 0; g < l->n_groups; g++) {
                struct range range = partition_range(p, g, owner);
                uint64_t trainable = partition_trainable(l, g, range);

                for (uint32_t k = 0; k <= optimizer_moments(l, g); k++)
                        bytes += plane_bytes(plane_updated(k), l->groups[g].dtype,
                                             k ? trainable : range.count);
        }
        return bytes;
}
