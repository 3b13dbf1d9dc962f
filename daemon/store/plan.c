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

/* Where values take fewer bytes than fp32 a chunk has more elements, in the same room. */
static uint64_t longest_chunk(const struct plan *p, const struct plan_run *run)
{
        uint64_t step = format_is_split(run->master_format) ? FORMAT_STEP * sizeof(uint16_t) : 0;

        for (uint32_t k = 0; k <= run->n_moments; k++)
                step += plan_run_bytes(run, k, FORMAT_STEP);
        return (uint64_t)p->chunk_elements * (1 + run->n_moments) * sizeof(float) / step *
               FORMAT_STEP;
}

/* Cuts into chunks of about equal length, so that no short remainder is left. */
static uint64_t chunk_length(const struct plan *p, const struct plan_run *run)
{
        uint64_t longest = longest_chunk(p, run), n = (run->count + longest - 1) / longest;

        return align_up((run->count + n - 1) / n, LAYOUT_ALIGN);
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
        for (uint32_t i = 0; i < run->n_moments; i++)
                p->moment_bytes[i] += plan_run_bytes(run, 1 + i, run->count);
        if (run->optimizer->matrices)
                p->shards[run->group].matrices = true;
        run->first_chunk = p->n_chunks;
        run->length = (uint32_t)chunk_length(p, run);

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

static void begin_run(const struct plan *p, const layout *l, const struct plan_segment *s,
                      struct plan_run *run)
{
        *run = (struct plan_run){ .group = s->group,
                                  .first_segment = p->n_segments,
                                  .master = s->master,
                                  .moment = s->moment,
                                  .in_group = s->in_group,
                                  .optimizer = optimizer_of(l, s->tensor),
                                  .master_format = p->shards[s->group].format,
                                  .packed = p->shards[s->group].format != FORMAT_FP32,
                                  .n_moments = optimizer_moments(l, s->tensor) };
        memcpy(run->moment_at, p->moment_bytes, sizeof(run->moment_at));
        for (uint32_t i = 0; i < run->n_moments; i++) {
                run->formats[i] = optimizer_format(l, s->tensor, i);
                run->packed = run->packed || run->formats[i] != FORMAT_FP32;
        }
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
                if (l->tensors[t].frozen || run.optimizer != optimizer_of(l, t))
                        cut_run(p, &run);
                if (!l->tensors[t].frozen) {
                        s.moment = p->moment_elements;
                        s.run = p->n_runs;
                        if (run.count == 0)
                                begin_run(p, l, &s, &run);
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
        enum format format = optimizer_master(&l->groups[group]);

        if (sole) {
                p->master_elements = align_up(p->master_elements, SERVE_ALIGN / sizeof(float));
                p->master_bytes = align_up(p->master_bytes, SERVE_ALIGN);
        }
        *shard = (struct plan_shard){
                .range = range,
                .master = p->master_elements,
                .master_at = p->master_bytes,
                .moment = p->moment_elements,
                .dtype = l->groups[group].dtype,
                .format = format,
                .ema = l->groups[group].ema,
                .n_moments = optimizer_group_moments(l, group),
                .serve = served ? p->serve_bytes : UINT64_MAX,
                .old = l->groups[group].eager ? p->old_bytes : UINT64_MAX,
                .first_segment = p->n_segments,
                .first_chunk = p->n_chunks,
        };
        memcpy(shard->moment_at, p->moment_bytes, sizeof(shard->moment_at));
        walk_segments(p, l, group, range);
        shard->moment_count = p->moment_elements - shard->moment;
        if (shard->old != UINT64_MAX)
                p->old_bytes += shard->moment_count * sizeof(float);
        for (uint32_t i = 0; i < shard->n_moments; i++) {
                shard->moment_bytes[i] = p->moment_bytes[i] - shard->moment_at[i];
                p->old_bytes += shard->old != UINT64_MAX ? shard->moment_bytes[i] : 0;
        }
        if (1 + shard->n_moments > p->n_planes)
                p->n_planes = 1 + shard->n_moments;
        shard->n_segments = p->n_segments - shard->first_segment;
        shard->n_chunks = p->n_chunks - shard->first_chunk;
        p->serve_bytes += align_up(range.count * served, SERVE_ALIGN);
        p->master_bytes += format_bytes(format, range.count);
        p->keeps_served = p->keeps_served || format != FORMAT_FP32;
        assert(p->master_elements == shard->master + range.count);
}

static void walk(struct plan *p, const layout *l, const struct partition *partition)
{
        p->n_segments = p->n_runs = p->n_chunks = 0;
        p->master_elements = p->moment_elements = p->old_bytes = p->serve_bytes = 0;
        p->master_bytes = 0;
        memset(p->moment_bytes, 0, sizeof(p->moment_bytes));
        for (uint32_t g = 0; g < p->n_groups; g++)
                walk_group(p, l, g, partition_range(partition, g, p->owner),
                           partition->n_owners == 1);
}

/* Directions take two bytes an element; each group that has them works on as many matrices as the
 * largest takes memory. */
static void count_update(struct plan *p, const layout *l)
{
        uint64_t largest = 0;

        for (uint32_t i = 0; i < p->n_segments; i++) {
                const struct plan_segment *s = &p->segments[i];
                const struct layout_tensor *t = &l->tensors[s->tensor];

                for (uint32_t k = 0; layout_matrices(t) && k < t->n_rows; k++) {
                        uint64_t bytes = ortho_bytes(t->rows[k], t->shape[t->ndim - 1]);

                        p->matrix_bytes = bytes > p->matrix_bytes ? bytes : p->matrix_bytes;
                }
        }
        for (uint32_t g = 0; g < p->n_groups; g++)
                if (p->shards[g].matrices && p->shards[g].moment_count > largest)
                        largest = p->shards[g].moment_count;
        p->update_bytes = PLAN_DIRECTED * (largest * sizeof(uint16_t) + p->matrix_bytes);
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
                            .chunk_elements = chunk_elements,
                            .grad_dtype = ZERO_FP32 };
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
        count_update(p, l);
        *ret = STEAL(p);
        return 0;
}

uint64_t plan_plane_bytes(const struct plan *p, struct plane plane)
{
        switch (plane.kind) {
        case PLANE_MASTER:
                return p->master_bytes;
        case PLANE_MOMENT:
                return p->moment_bytes[plane.index];
        case PLANE_GRAD:
                return dtype_bytes(p->grad_dtype, p->moment_elements);
        case PLANE_OLD:
                return p->old_bytes;
        case PLANE_SERVE:
                return p->serve_bytes;
        default:
                return 0;
        }
}

static bool segment_has(const struct plan *p, const struct plan_segment *s, struct plane plane)
{
        return s->moment != UINT64_MAX &&
               (plane.kind == PLANE_GRAD || plane.index < p->runs[s->run].n_moments);
}

/* The shard's first segment that has the plane and ends behind element `at` of the group; NULL:
 * there is none. */
static const struct plan_segment *find_segment(const struct plan *p, const struct plan_shard *shard,
                                               struct plane plane, uint64_t at)
{
        const struct plan_segment *s = &p->segments[shard->first_segment], *end;
        uint32_t n = shard->n_segments;

        end = s + n;
        for (uint32_t half; n > 1; n -= half) { /* the last segment that begins at `at` or before */
                half = n / 2;
                s += s[half].in_group <= at ? half : 0;
        }
        while (s < end && !segment_has(p, s, plane))
                s++;
        return s < end ? s : NULL;
}

/* A number of elements in whole records, unless the format is fp32. */
static uint64_t whole(enum format format, uint64_t n, bool up)
{
        if (format == FORMAT_FP32)
                return n;
        return (n + (up ? LAYOUT_ALIGN - 1 : 0)) / LAYOUT_ALIGN * LAYOUT_ALIGN;
}

/* The first byte of element `at` of the group in grad or a moment.  Of a record that `at` divides
 * it is the first byte, or with `up` the first one behind it. */
static uint64_t byte_at(const struct plan *p, const struct plan_shard *shard, struct plane plane,
                        uint64_t at, bool up)
{
        const struct plan_segment *s = find_segment(p, shard, plane, at);
        uint64_t within = s && at > s->in_group ? at - s->in_group : 0, i = plane.index;

        if (plane.kind == PLANE_GRAD)
                return dtype_bytes(p->grad_dtype,
                                   s ? s->moment + within : shard->moment + shard->moment_count);
        if (!s)
                return shard->moment_at[i] + shard->moment_bytes[i];
        const struct plan_run *run = &p->runs[s->run];

        within = whole(run->formats[i], within, up);
        return plan_moment_at(run, plane.index, s->moment + within);
}

struct range plan_bytes(const struct plan *p, struct plane plane, uint32_t group, struct range part)
{
        const struct plan_shard *shard = &p->shards[group];
        uint64_t first = part.first - shard->range.first;

        if (part.count == 0)
                return (struct range){ 0, 0 };
        assert(range_within(part, shard->range));
        plane = plan_stored(shard, plane);
        if (plane.kind == PLANE_SERVE)
                return (struct range){ shard->serve + plane_bytes(plane, shard->dtype, first),
                                       plane_bytes(plane, shard->dtype, part.count) };
        if (plane.kind == PLANE_MASTER) {
                uint64_t end = whole(shard->format, first + part.count, true);

                first = whole(shard->format, first, false);
                return (struct range){ shard->master_at + plan_master_bytes(shard, first),
                                       plan_master_bytes(shard, end - first) };
        }
        assert(plane.kind == PLANE_GRAD || plan_has(p, group, plane));
        first = byte_at(p, shard, plane, part.first, false);
        return (struct range){ first,
                               byte_at(p, shard, plane, part.first + part.count, true) - first };
}

enum format plan_format(const struct plan *p, struct plane plane, uint32_t group, uint64_t at)
{
        if (plane.kind == PLANE_MASTER)
                return p->shards[group].format;
        const struct plan_segment *s =
                plane.kind == PLANE_MOMENT ? find_segment(p, &p->shards[group], plane, at) : NULL;

        return s ? p->runs[s->run].formats[plane.index] : FORMAT_FP32;
}

struct plane plan_kept(const struct plan *p, uint32_t group, uint32_t k)
{
        const struct plan_shard *shard = &p->shards[group];

        if (k <= shard->n_moments)
                return plane_updated(k);
        return k == 1 + shard->n_moments && shard->format != FORMAT_FP32
                       ? plane_serve
                       : (struct plane){ PLANE_NONE, 0 };
}

bool plan_has(const struct plan *p, uint32_t group, struct plane plane)
{
        const struct plan_shard *shard = &p->shards[group];

        return plane.kind == PLANE_MASTER ||
               (plane.kind == PLANE_MOMENT && plane.index < shard->n_moments) ||
               (plane.kind == PLANE_SERVE && shard->format != FORMAT_FP32);
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

                bytes += format_bytes(optimizer_master(&l->groups[g]), range.count);
                for (uint32_t i = 0; i < optimizer_group_moments(l, g); i++)
                        bytes += optimizer_moment_bytes(l, g, range, i);
        }
        return bytes;
}

uint64_t plan_owner_trained(const layout *l, const struct partition *p, uint32_t owner)
{
        uint64_t n = 0;

        for (uint32_t i = 0; i < l->n_tensors; i++) {
                const struct layout_tensor *t = &l->tensors[i];

                if (!t->frozen)
                        n += range_overlap((struct range){ t->offset, layout_tensor_room(t) },
                                           partition_range(p, t->group, owner));
        }
        return n;
}
