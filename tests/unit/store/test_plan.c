/* Properties of plans over random layouts, numbers of owners and chunk sizes. */
#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

#include "daemon/store/plan.h"
#include "proto/cleanup.h"
#include "proto/dtype.h"
#include "tests/unit/proto/layouts.h"

DEFINE_CLEANUP(layout *, layout_free)
DEFINE_CLEANUP(struct partition *, partition_free)
DEFINE_CLEANUP(struct plan *, plan_free)

enum { LAYOUTS = 40 };

typedef void property(const layout *l, const struct partition *partition, const struct plan *p);

static void hold(const layout *l, uint32_t n_owners, uint32_t chunk, property *check)
{
        CLEANUP(cleanup_partition_free) struct partition *partition = NULL;

        cr_assert_eq(partition_new(l, n_owners, &partition), 0);
        for (uint32_t owner = 0; owner < n_owners; owner++) {
                CLEANUP(cleanup_plan_free) struct plan *p = NULL;

                cr_assert_eq(plan_new(l, partition, owner, chunk, &p), 0);
                check(l, partition, p);
        }
}

/* Gives every third tensor another optimizer than its group's, in every other layout. */
static void mix_optimizers(layout *l, uint64_t seed)
{
        static const char *const names[] = { "sgd", "lion", "adamw", "adam" };

        for (uint32_t t = (uint32_t)(seed % 3); seed % 2 && t < l->n_tensors; t += 3)
                cr_assert_eq(layout_set_tensor_optimizer(l, t, names[t % 4], NULL), 0);
}

static void for_plans(property *check)
{
        static const uint32_t owners[] = { 1, 2, 3, 5, 16 }, chunks[] = { 128, 1280, 4096 };

        for (uint64_t seed = 0; seed < LAYOUTS; seed++) {
                CLEANUP(cleanup_layout_free) layout *l = layouts_random(seed);

                mix_optimizers(l, seed);
                /* the tables of large layouts would take seconds to touch */
                hold(l, owners[seed % 5], chunks[seed % 3] << (l->elements > 1 << 22 ? 8 : 0),
                     check);
        }
}

static void covers_shard(const layout *l, const struct partition *partition, const struct plan *p)
{
        uint64_t master = 0, moment = 0;

        for (uint32_t g = 0; g < p->n_groups; g++) {
                const struct plan_shard *shard = &p->shards[g];
                const struct plan_segment *s = p->segments + shard->first_segment;
                uint64_t at = shard->range.first;

                if (partition->n_owners == 1) /* trainers map it */
                        master = (master + 1023) / 1024 * 1024;
                cr_assert_eq(shard->master, master);
                cr_assert_eq(shard->moment, moment);
                for (uint32_t i = 0; i < shard->n_segments; i++, s++) {
                        cr_assert_eq(s->group, g);
                        cr_assert_eq(s->in_group, at);
                        cr_assert_eq(s->master, master);
                        cr_assert(s->count > 0 && s->count % LAYOUT_ALIGN == 0);
                        at += s->count;
                        master += s->count;
                        if (l->tensors[s->tensor].frozen) {
                                cr_assert_eq(s->moment, UINT64_MAX);
                        } else {
                                cr_assert_eq(s->moment, moment);
                                moment += s->count;
                        }
                }
                cr_assert_eq(at, shard->range.first + shard->range.count);
                cr_assert_eq(shard->moment_count, moment - shard->moment);
        }
        cr_assert_eq(p->master_elements, master);
        cr_assert_eq(p->moment_elements, moment);
}

Test(plan, segments_cover_the_shard_without_hole_or_overlap)
{
        for_plans(covers_shard);
}

/* Cuts a shard into parts: their elements lie one behind the other in each plane. */
static void parts_follow(const struct plan *p, uint32_t group, uint64_t step)
{
        const struct plan_shard *shard = &p->shards[group];
        uint64_t end = shard->range.first + shard->range.count;
        uint64_t master = shard->master, grad = shard->moment, moments[OPTIMIZER_MOMENTS];

        memcpy(moments, shard->moment_at, sizeof(moments));
        for (uint64_t at = shard->range.first; at < end; at += step) {
                struct range part = { at, end - at < step ? end - at : step };
                struct range m = plan_bytes(p, plane_master, group, part);
                struct range g = plan_bytes(p, plane_grad, group, part);
                struct range s = plan_bytes(p, plane_serve, group, part);

                cr_assert(m.first == 4 * master && m.count == 4 * part.count);
                cr_assert(g.first == 4 * grad || g.count == 0);
                cr_assert_leq(g.count, m.count);
                for (uint32_t k = 0; k < shard->n_moments; k++) {
                        struct range v = plan_bytes(p, plane_updated(1 + k), group, part);

                        cr_assert(v.first == moments[k] || v.count == 0);
                        cr_assert_leq(v.count, g.count);
                        moments[k] += v.count;
                }
                if (shard->serve == UINT64_MAX)
                        cr_assert(s.first == m.first && s.count == m.count);
                else
                        cr_assert(s.first == shard->serve + 2 * (at - shard->range.first) &&
                                  s.count == 2 * part.count);
                master += part.count;
                grad += g.count / 4;
        }
        cr_assert_eq(master, shard->master + shard->range.count);
        cr_assert_eq(grad, shard->moment + shard->moment_count);
        for (uint32_t k = 0; k < shard->n_moments; k++)
                cr_assert_eq(moments[k], shard->moment_at[k] + shard->moment_bytes[k]);
}

static void has_spans(const layout *l, const struct partition *partition, const struct plan *p)
{
        for (uint32_t g = 0; g < p->n_groups; g++) {
                uint64_t units = p->shards[g].range.count / LAYOUT_ALIGN;

                parts_follow(p, g, (1 + units / 7) * LAYOUT_ALIGN);
                parts_follow(p, g, (1 + units) * LAYOUT_ALIGN);
        }
        for (uint32_t i = 0; i < p->n_segments; i++) {
                const struct plan_segment *s = &p->segments[i];
                struct range part = { s->in_group, s->count };
                struct range v = plan_bytes(p, plane_grad, s->group, part);

                cr_assert_eq(plan_bytes(p, plane_master, s->group, part).first, 4 * s->master);
                cr_assert_eq(v.count, s->moment == UINT64_MAX ? 0 : 4 * s->count);
                cr_assert(v.count == 0 || v.first == 4 * s->moment);
        }
}

Test(plan, a_part_of_a_shard_is_one_piece_of_each_plane)
{
        for_plans(has_spans);
}

static void inside_tensor(const layout *l, const struct partition *partition, const struct plan *p)
{
        for (uint32_t i = 0; i < p->n_segments; i++) {
                const struct plan_segment *s = &p->segments[i];
                const struct layout_tensor *t = &l->tensors[s->tensor];

                cr_assert_gt(t->elements, 0);
                cr_assert_eq(t->group, s->group);
                cr_assert_geq(s->in_group, t->offset);
                cr_assert_lt(s->in_group, t->offset + t->elements);
                cr_assert_lt(s->in_group + s->count, t->offset + t->elements + LAYOUT_ALIGN);
        }
}

Test(plan, a_segment_is_a_part_of_its_tensor_and_the_gap_behind)
{
        for_plans(inside_tensor);
}

static void covered_by_chunks(const layout *l, const struct partition *partition,
                              const struct plan *p)
{
        uint64_t moment = 0;

        for (uint32_t g = 0; g < p->n_groups; g++) {
                const struct plan_shard *shard = &p->shards[g];

                for (uint32_t i = 0; i < shard->n_chunks; i++) {
                        const struct plan_chunk c = plan_chunk(p, shard->first_chunk + i);
                        const struct plan_segment *s = &p->segments[c.first_segment];

                        cr_assert_eq(c.group, g);
                        cr_assert_eq(c.moment, moment);
                        cr_assert(c.n > 0 && c.n <= p->chunk_elements);
                        cr_assert(c.in_group >= s->in_group && c.in_group < s->in_group + s->count);
                        cr_assert_eq(c.master - s->master, c.in_group - s->in_group);
                        cr_assert_eq(c.moment - s->moment, c.in_group - s->in_group);
                        moment += c.n;
                }
                cr_assert_eq(moment, shard->moment + shard->moment_count);
        }
}

Test(plan, chunks_cover_the_trainable_elements_once_and_in_order)
{
        for_plans(covered_by_chunks);
}

static void contiguous(const layout *l, const struct partition *partition, const struct plan *p)
{
        for (uint32_t i = 0; i < p->n_chunks; i++) {
                const struct plan_chunk c = plan_chunk(p, i);
                const struct plan_segment *s = &p->segments[c.first_segment];

                const struct plan_shard *shard = &p->shards[c.group];
                const struct plan_segment *end =
                        p->segments + shard->first_segment + shard->n_segments;

                cr_assert_leq(c.in_group + c.n, shard->range.first + shard->range.count);
                for (; s < end && s->in_group < c.in_group + c.n; s++)
                        cr_assert_neq(s->moment, UINT64_MAX);
        }
}

Test(plan, a_chunk_holds_trainable_elements_of_one_shard_alone)
{
        for_plans(contiguous);
}

static void serve_places(const layout *l, const struct partition *partition, const struct plan *p)
{
        uint64_t end = 0;

        for (uint32_t g = 0; g < p->n_groups; g++) {
                const struct plan_shard *shard = &p->shards[g];

                if (l->groups[g].dtype == ZERO_FP32) {
                        cr_assert_eq(shard->serve, UINT64_MAX);
                        continue;
                }
                cr_assert_eq(shard->serve % 4096, 0);
                cr_assert_geq(shard->serve, end);
                end = shard->serve + dtype_bytes(l->groups[g].dtype, shard->range.count);
        }
        cr_assert_geq(p->serve_bytes, end);
        cr_assert_lt(p->serve_bytes, end + 4096);
}

Test(plan, serve_has_a_page_aligned_place_for_every_low_precision_shard)
{
        for_plans(serve_places);
}

Test(plan, the_owners_planes_add_up_to_the_layout)
{
        for (uint64_t seed = 0; seed < LAYOUTS; seed++) {
                CLEANUP(cleanup_layout_free) layout *l = layouts_random(seed);
                CLEANUP(cleanup_partition_free) struct partition *partition = NULL;
                uint64_t master = 0;

                cr_assert_eq(partition_new(l, 3, &partition), 0);
                for (uint32_t owner = 0; owner < 3; owner++) {
                        CLEANUP(cleanup_plan_free) struct plan *p = NULL;

                        cr_assert_eq(plan_new(l, partition, owner, 1 << 20, &p), 0);
                        master += plan_plane_bytes(p, plane_master);
                        cr_assert_eq(plan_plane_bytes(p, plane_grad), 4 * p->moment_elements);
                }
                cr_assert_eq(master, 4 * l->elements);
        }
}

Test(plan, no_short_chunk_is_left_at_the_end_of_a_long_run)
{
        uint64_t elements = 1280 * 7 + 128;
        CLEANUP(cleanup_layout_free) layout *l = layouts_sized(&elements, 1, ZERO_BF16);
        CLEANUP(cleanup_partition_free) struct partition *partition = NULL;
        CLEANUP(cleanup_plan_free) struct plan *p = NULL;

        cr_assert_eq(partition_new(l, 1, &partition), 0);
        cr_assert_eq(plan_new(l, partition, 0, 1280, &p), 0);
        cr_assert_eq(p->n_chunks, 8);
        for (uint32_t c = 0; c < p->n_chunks; c++)
                cr_assert_geq(plan_chunk(p, c).n, 1024);
}

/* An undo slot has room for as many planes of fp32 as the run has. */
static void fits_the_slot(const char *state, const char *master, bool longer)
{
        uint64_t elements = 1 << 20;
        CLEANUP(cleanup_layout_free) layout *l = layouts_sized(&elements, 1, ZERO_BF16);
        CLEANUP(cleanup_partition_free) struct partition *partition = NULL;
        CLEANUP(cleanup_plan_free) struct plan *p = NULL;

        cr_assert_eq(layout_set_state(l, 0, state, master, NULL), 0);
        cr_assert_eq(partition_new(l, 1, &partition), 0);
        cr_assert_eq(plan_new(l, partition, 0, 384, &p), 0);

        const struct plan_run *run = &p->runs[0];
        uint64_t old = format_is_split(run->master_format) ? run->length * sizeof(uint16_t) : 0;

        for (uint32_t k = 0; k <= run->n_moments; k++)
                old += plan_run_bytes(run, k, run->length);
        cr_assert_leq(old, 384 * (1 + run->n_moments) * sizeof(float), "%s and %s", state, master);
        cr_assert_eq(run->length > 384, longer, "%s and %s: %u", state, master, run->length);
}

Test(plan, a_chunk_of_formats_is_longer_where_its_old_values_fit_the_slot)
{
        fits_the_slot("fp32", "fp32", false);
        fits_the_slot("fp32", "bf16+16", false);
        fits_the_slot("bf16", "fp32", true);
        fits_the_slot("8bit", "fp32", true);
        fits_the_slot("bf16", "bf16+16", true);
        fits_the_slot("8bit", "bf16+16", true);
        fits_the_slot("8bit", "bf16+8", true);
}

Test(plan, more_chunks_than_can_be_counted_are_refused_at_once)
{
        enum { GROUPS = 8 };
        uint64_t elements[GROUPS];

        for (int i = 0; i < GROUPS; i++)
                elements[i] = ZERO_GROUP_ELEMENTS_MAX;
        CLEANUP(cleanup_layout_free) layout *l = layouts_sized(elements, GROUPS, ZERO_BF16);
        CLEANUP(cleanup_partition_free) struct partition *partition = NULL;
        struct plan *p = NULL;

        cr_assert_eq(partition_new(l, 1, &partition), 0);
        cr_assert_eq(plan_new(l, partition, 0, 1280, &p), -EOVERFLOW);
        cr_assert_null(p);
}

/* Other releases, checksums and clients have these numbers. */
Test(plan, numbers_of_planes_stay_what_they_are)
{
        static const struct plane planes[] = {
                [1] = { PLANE_MASTER, 0 }, [2] = { PLANE_MOMENT, 0 }, [3] = { PLANE_MOMENT, 1 },
                [4] = { PLANE_MOMENT, 2 }, [5] = { PLANE_SERVE, 0 },  [6] = { PLANE_GRAD, 0 },
                [7] = { PLANE_STEP, 0 },   [8] = { PLANE_SET, 0 },
        };

        for (uint32_t i = 1; i <= 8; i++) {
                cr_assert_eq(plane_number(planes[i]), i);
                cr_assert(plane_from(i).kind == planes[i].kind &&
                          plane_from(i).index == planes[i].index);
        }
        for (uint32_t k = 0; k < UPDATE_PLANES; k++)
                cr_assert_eq(plane_number(plane_updated(k)), 1 + k);
        cr_assert_eq(plane_from(0).kind, PLANE_NONE);
        cr_assert_eq(plane_from(9).kind, PLANE_NONE); /* clients name the moment */
        cr_assert_eq(plane_from(UINT32_MAX).kind, PLANE_NONE);
        cr_assert_eq(plane_number(plane_old), 0);
}

/* Each moment of a tensor has the place that plan_bytes() says, behind that of the tensor before.
 */
static void moments_lie_behind_one_another(const layout *l, const struct partition *partition,
                                           const struct plan *p)
{
        uint64_t at[OPTIMIZER_MOMENTS] = { 0 };

        for (uint32_t i = 0; i < p->n_segments; i++) {
                const struct plan_segment *s = &p->segments[i];
                uint32_t n = s->moment == UINT64_MAX ? 0 : optimizer_moments(l, s->tensor);
                struct range own = { s->in_group, s->count };

                for (uint32_t k = 0; k < p->shards[s->group].n_moments; k++) {
                        struct range bytes = plan_bytes(p, plane_updated(1 + k), s->group, own);

                        cr_assert_eq(bytes.count, k < n ? s->count * sizeof(float) : 0);
                        if (k >= n)
                                continue;
                        cr_assert_eq(bytes.first, at[k]);
                        cr_assert_eq(plan_moment_at(&p->runs[s->run], k, s->moment), at[k]);
                        cr_assert_eq(p->runs[s->run].optimizer, optimizer_of(l, s->tensor));
                        at[k] += bytes.count;
                }
        }
        for (uint32_t k = 0; k < OPTIMIZER_MOMENTS; k++)
                cr_assert_eq(at[k], p->moment_bytes[k]);
}

Test(plan, moments_lie_behind_one_another)
{
        for_plans(moments_lie_behind_one_another);
}
