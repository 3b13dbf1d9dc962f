/*
 * The first values of a state's planes, and the served parameters.
 *
 * The CPU computes first values.  For planes away from the host it computes a piece at a time and
 * copies it there.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "daemon/store/planes.h"
#include "daemon/store/init.h"
#include "proto/cleanup.h"
#include "proto/dtype.h"

enum { PIECE = 1 << 20 }; /* elements */

/* Touches pages now, so that the first step does not pay for zeroing them. */
static void prefault(const struct state *s, struct plane plane, uint32_t group)
{
        struct mapping m = state_map(s, plane, group, s->plan->shards[group].range);
        uintptr_t page = FILE_ALIGN - 1, start = (uintptr_t)m.at & ~page;
        uintptr_t end = ((uintptr_t)m.at + m.bytes + page) & ~page;

        /* a hint, which kernels before 5.14 do not know */
        (void)madvise((void *)start, end - start, MADV_POPULATE_WRITE);
        state_unmap(&m);
}

static int fill_in_pieces(float *dst, const struct layout_tensor *t, uint64_t first, uint64_t count,
                          const struct device_ops *ops)
{
        CLEANUP(cleanup_free) float *piece = malloc(PIECE * sizeof(*piece));

        for (uint64_t n; piece && count > 0; first += n, dst += n, count -= n) {
                n = count < PIECE ? count : PIECE;
                init_fill(piece, t, first, n);
                ops->copy(dst, piece, n * sizeof(*piece));
        }
        return piece ? 0 : -ENOMEM;
}

/* Averages are in fp32. */
static uint8_t *ema_at(const struct state *state, const struct plan_segment *s)
{
        const struct plan_run *run = &state->plan->runs[s->run];
        uint32_t ema = run->n_moments - 1;

        return state->in->moments[ema] + plan_moment_at(run, ema, s->moment);
}

/* Of a tensor whose master is not in fp32. */
static int fill_packed(const struct state *state, const struct layout_tensor *t,
                       const struct plan_segment *s, const struct device_ops *ops)
{
        bool ema = !t->frozen && state->plan->shards[s->group].ema;
        CLEANUP(cleanup_free) float *piece = malloc(PIECE * sizeof(*piece));

        for (uint64_t done = 0; piece && done < s->count;) {
                struct range part = { s->in_group + done, s->count - done };

                part.count = part.count < PIECE ? part.count : PIECE;
                init_fill(piece, t, part.first - t->offset, part.count);
                state_write(state, plane_master, s->group, part, ops, piece);
                if (ema)
                        state_write(state, plane_updated(state->plan->runs[s->run].n_moments),
                                    s->group, part, ops, piece);
                done += part.count;
        }
        return piece ? 0 : -ENOMEM;
}

int state_init_group(struct state *state, const layout *l, uint32_t group,
                     const struct device_ops *ops)
{
        const struct plan_shard *shard = &state->plan->shards[group];
        const struct plan_segment *segment = state->plan->segments + shard->first_segment;
        int r = 0;

        for (uint32_t i = 0; r == 0 && i < shard->n_segments; i++, segment++) {
                const struct layout_tensor *t = &l->tensors[segment->tensor];
                uint64_t first = segment->in_group - t->offset;
                float *dst = (float *)master_at(state, group, segment->master);

                if (shard->format != FORMAT_FP32) {
                        r = fill_packed(state, t, segment, ops);
                        continue;
                }

                if (state->in->home->for_cpu)
                        init_fill(dst, t, first, segment->count);
                else
                        r = fill_in_pieces(dst, t, first, segment->count, ops);
                if (r == 0 && !t->frozen && shard->ema)
                        ops->copy(ema_at(state, segment), dst, segment->count * sizeof(*dst));
        }
        if (r)
                return r;
        if (shard->moment_count && state->in->home->for_cpu) {
                for (uint32_t k = 0; k < shard->n_moments; k++)
                        prefault(state, plane_updated(1 + k), group);
                prefault(state, plane_grad, group);
        }
        state_serve_group(state, l, group, ops);
        return 0;
}

void state_serve_group(struct state *state, const layout *l, uint32_t group,
                       const struct device_ops *ops)
{
        const struct plan_shard *shard = &state->plan->shards[group];

        if (shard->serve != UINT64_MAX && shard->range.count && shard->format == FORMAT_FP32)
                ops->serve(l->groups[group].dtype, state->in->serve + shard->serve,
                           (float *)master_at(state, group, shard->master), shard->range.count);
}

static uint8_t *serve_at(const struct state *state, const layout *l, const struct plan_chunk *c)
{
        const struct plan_shard *shard = &state->plan->shards[c->group];

        return state->in->serve + shard->serve +
               layout_group_bytes(&l->groups[c->group], c->in_group - shard->range.first);
}

void state_was(const struct state *state, const layout *l, uint32_t chunk,
               const struct undo_values *old, const struct device_ops *ops, void *to)
{
        const struct plan_chunk c = plan_chunk(state->plan, chunk);
        const struct layout_group *g = &l->groups[c.group];
        uint64_t bytes = layout_group_bytes(g, c.n);

        if (!old)
                ops->copy(to, serve_at(state, l, &c), bytes);
        else if (old->served)
                ops->copy(to, old->served, bytes);
        else /* master is in a cache, where the serve plane is not */
                ops->serve(g->dtype, to, old->planes[0], c.n);
}

void state_serve_unit(struct state *state, const layout *l, uint32_t unit,
                      const struct device_ops *ops)
{
        const struct plan_chunk c = plan_chunk(state->plan, unit);
        const struct plan_shard *shard = &state->plan->shards[c.group];

        if (shard->unit == UNIT_SHARD)
                state_serve_group(state, l, c.group, ops);
        else if (shard->serve != UINT64_MAX && shard->format == FORMAT_FP32)
                ops->serve(l->groups[c.group].dtype, serve_at(state, l, &c),
                           (float *)master_at(state, c.group, c.master), c.n);
}
