/*
 * The memory of planes.
 *
 * Today a plane has an address while the state is open, in the file's mapping or on the GPU, so
 * state_map() only computes it.  The count of mappings finds a caller that keeps an address too
 * long.  A plane that lies elsewhere one day, on a disk for example, would no longer have it.
 */
#include <stdatomic.h>

#include "daemon/store/file.h"

static void *plane_at(const struct state_inside *in, struct plane plane)
{
        switch (plane.kind) {
        case PLANE_SERVE:
                return in->serve;
        case PLANE_MASTER:
                return in->master;
        case PLANE_MOMENT:
                return in->moments[plane.index];
        default:
                return in->grad;
        }
}

struct mapping state_map(const struct state *state, struct plane plane, uint32_t group,
                         struct range part)
{
        const struct plan_shard *shard = &state->plan->shards[group];
        struct range bytes = plan_bytes(state->plan, plane, group, part);
        uint8_t *at = plane_at(state->in, plan_stored(shard, plane));

        atomic_fetch_add_explicit(&state->in->mapped, 1, memory_order_relaxed);
        return (struct mapping){ state, bytes.count ? at + bytes.first : NULL, bytes.count };
}

void state_want(struct mapping *m, const struct state *state, struct plane plane, uint32_t group,
                struct range part, void (*done)(struct mapping *m))
{
        *m = state_map(state, plane, group, part);
        done(m);
}

void state_unmap(struct mapping *m)
{
        if (m->state)
                atomic_fetch_sub_explicit(&m->state->in->mapped, 1, memory_order_relaxed);
        *m = (struct mapping){ NULL };
}

/* Elements before the part in the first record that is mapped. */
static uint64_t in_record(enum format format, struct range part)
{
        return format == FORMAT_FP32 ? 0 : part.first % FORMAT_STEP;
}

static uint16_t *served_of(const struct state *state, struct plane plane, uint32_t group,
                           uint64_t first)
{
        return plane.kind == PLANE_MASTER ? served_at(state, group, first) : NULL;
}

void state_read(const struct state *state, struct plane plane, uint32_t group, struct range part,
                const struct device_ops *ops, void *to)
{
        enum format format = plan_format(state->plan, plane, group, part.first);
        struct mapping m = state_map(state, plane, group, part);
        uint64_t skip = in_record(format, part);

        if (format == FORMAT_FP32) /* bytes, if they are what is served */
                ops->copy(to, m.at, m.bytes);
        else
                format_read(ops, format, m.at, served_of(state, plane, group, part.first - skip),
                            skip, part.count, to);
        state_unmap(&m);
}

/* Copies of the state may be at different steps, so the dither is that of no step. */
void state_write(const struct state *state, struct plane plane, uint32_t group, struct range part,
                 const struct device_ops *ops, const float *from)
{
        enum format format = plan_format(state->plan, plane, group, part.first);
        struct mapping m = state_map(state, plane, group, part);
        uint64_t skip = in_record(format, part);
        uint32_t seed = plane.kind == PLANE_MOMENT ? 1 + plane.index : 0;

        format_write(ops, format, m.at, served_of(state, plane, group, part.first - skip), skip,
                     part.count, from, seed, part.first - skip);
        state_unmap(&m);
}
