/*
 * The memory of planes.
 *
 * Today a plane has an address while the state is open, in the file's mapping or on the GPU, so
 * state_map() only computes it.  The count of mappings finds a caller that keeps an address too
 * long.  A plane that lies elsewhere one day, on a disk for example, would no longer have it.
 */
#include <assert.h>
#include <stdatomic.h>

#include "daemon/store/file.h"
#include "proto/dtype.h"

static struct mapping map(const struct state *state, void *at)
{
        atomic_fetch_add_explicit(&state->in->mapped, 1, memory_order_relaxed);
        return (struct mapping){ state, at };
}

static float *plane_of(const struct state *state, enum zero_plane plane)
{
        const struct state_inside *in = state->in;

        if (plane == ZERO_PLANE_MASTER)
                return in->master;
        return plane == ZERO_PLANE_GRAD ? in->grad : in->moments[plane - ZERO_PLANE_MOMENT1];
}

struct mapping state_map(const struct state *state, enum zero_plane plane, struct range elements)
{
        uint64_t n = plan_plane_bytes(state->plan, plane) / sizeof(float);

        if (elements.count == 0)
                return map(state, NULL);
        assert(plane != ZERO_PLANE_SERVE && range_within(elements, (struct range){ 0, n }));
        return map(state, plane_of(state, plane) + elements.first);
}

struct mapping state_map_shard(const struct state *state, const layout *l, uint32_t group,
                               struct range part)
{
        const struct plan_shard *shard = &state->plan->shards[group];
        uint64_t first = part.first - shard->range.first;

        if (part.count == 0)
                return map(state, NULL);
        assert(range_within(part, shard->range));
        if (shard->serve == UINT64_MAX)
                return map(state, state->in->master + shard->master + first);
        return map(state,
                   state->in->serve + shard->serve + layout_group_bytes(&l->groups[group], first));
}

void state_unmap(struct mapping *m)
{
        if (m->state)
                atomic_fetch_sub_explicit(&m->state->in->mapped, 1, memory_order_relaxed);
        *m = (struct mapping){ NULL, NULL };
}
