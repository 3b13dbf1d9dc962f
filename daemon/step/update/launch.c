/*
 * Updates on a device other than the host.
 *
 * A piece is a contiguous range of one tensor that is still at the old version.  Its served
 * parameters are written with it, but not before the decision.  A piece is a whole segment, except
 * in a state that came to the device in the middle of an update.  Pieces are launched together and
 * waited for together. The unit is the shard, so the work here grows with tensors.
 */
#include "daemon/step/update/launch.h"

#include <assert.h>

enum { PIECES = 64 }; /* that are launched together */

/* The elements of one piece. */
struct run {
        uint32_t tensor;
        uint64_t in_group, master, moment, count; /* count 0: none yet */
};

struct launch {
        const struct replica *replica;
        const struct unit_update *update;
        const struct node_gradient *node_gradient; /* NULL: the gradient is in the state */
        uint32_t group;
        struct mapping planes[UPDATE_PLANES], grad, served; /* of the shard */
        struct run run;
        struct update_piece pieces[PIECES];
        uint32_t n_pieces;
};

static void pieces_end(struct launch *l)
{
        place_update(l->pieces, l->n_pieces);
        l->n_pieces = 0;
}

/* The gap behind a tensor has no contributions: it stays as it is. */
static uint64_t run_elements(const struct launch *l)
{
        const struct layout_tensor *t = &l->replica->job->layout->tensors[l->run.tensor];
        uint64_t first = l->run.in_group - t->offset, count = l->run.count;

        if (!l->node_gradient || count == 0)
                return count;
        if (first >= t->elements)
                return 0;
        return count < t->elements - first ? count : t->elements - first;
}

static const struct plan_shard *run_shard(const struct launch *l)
{
        return &l->replica->state->plan->shards[l->group];
}

static void run_gradient(const struct launch *l, struct update_piece *update)
{
        if (!l->node_gradient) {
                update->grad[0] = (float *)l->grad.at + (l->run.moment - run_shard(l)->moment);
                update->k = 1;
                update->from = update->wire = ZERO_FP32;
                return;
        }
        assert(node_gradient_sources_max(l->node_gradient) <= UPDATE_SOURCES);
        update->k = (uint32_t)node_gradient_sources(l->node_gradient, l->run.tensor,
                                                    l->run.in_group, update->grad);
        update->from = node_gradient_dtype(l->node_gradient);
        update->wire = l->replica->job->reduce_dtype;
}

static void run_end(struct launch *l)
{
        const struct job *job = l->replica->job;
        const struct plan_shard *shard = run_shard(l);
        const struct layout_group *g = &job->layout->groups[l->group];
        struct run r = l->run;
        struct update_piece update = { .rule = shard->optimizer->rule,
                                       .scalars = l->update->scalars[r.tensor],
                                       .n = run_elements(l),
                                       .serve_dtype = g->dtype };

        update.in[0] = update.out[0] = (float *)l->planes[0].at + (r.master - shard->master);
        for (uint32_t i = 0; i < shard->n_moments; i++)
                update.in[1 + i] = update.out[1 + i] =
                        (float *)l->planes[1 + i].at + (r.moment - shard->moment);
        if (update.n && l->update->present[r.tensor])
                run_gradient(l, &update);
        l->run.count = 0;
        if (update.k == 0)
                return;
        if (!l->update->ahead && shard->serve != UINT64_MAX)
                update.serve =
                        (char *)l->served.at + layout_group_bytes(g, r.master - shard->master);
        if (l->n_pieces == PIECES)
                pieces_end(l);
        l->pieces[l->n_pieces++] = update;
}

static void run_add(struct launch *l, struct run part)
{
        struct run *r = &l->run;

        if (r->count && r->tensor == part.tensor && r->master + r->count == part.master &&
            r->moment + r->count == part.moment) {
                r->count += part.count;
                return;
        }
        run_end(l);
        *r = part;
}

static void shard_add(struct launch *l)
{
        const struct plan_shard *shard = run_shard(l);
        const struct plan_segment *s = &l->replica->state->plan->segments[shard->first_segment];

        for (uint32_t i = 0; i < shard->n_segments; i++, s++)
                if (s->moment != UINT64_MAX)
                        run_add(l, (struct run){ s->tensor, s->in_group, s->master, s->moment,
                                                 s->count });
}

/* Adds the chunk's elements, tensor by tensor. */
static void chunk_add(struct launch *l, struct plan_chunk c)
{
        const struct plan_segment *s = &l->replica->state->plan->segments[c.first_segment];

        for (uint64_t done = 0, n; done < c.n; done += n, s++) {
                uint64_t left = s->in_group + s->count - (c.in_group + done);

                n = left < c.n - done ? left : c.n - done;
                run_add(l, (struct run){ s->tensor, c.in_group + done, c.master + done,
                                         c.moment + done, n });
        }
}

static void shard_map(struct launch *l)
{
        const struct state *s = l->replica->state;
        const struct plan_shard *shard = run_shard(l);

        for (uint32_t k = 0; k <= shard->n_moments; k++)
                l->planes[k] = state_map(s, plane_updated(k), l->group, shard->range);
        l->grad = state_map(s, plane_grad, l->group, shard->range);
        l->served = state_map(s, plane_serve, l->group, shard->range);
}

static void shard_unmap(struct launch *l)
{
        for (uint32_t k = 0; k < UPDATE_PLANES; k++)
                state_unmap(&l->planes[k]);
        state_unmap(&l->grad);
        state_unmap(&l->served);
}

void launch_shard(const struct replica *h, const struct unit_update *update,
                  const struct node_gradient *node_gradient, uint32_t group)
{
        const struct plan *plan = h->state->plan;
        uint32_t first = plan->shards[group].first_chunk, chunks = state_chunks(h->state, group);
        struct launch l = {
                .replica = h, .update = update, .node_gradient = node_gradient, .group = group
        };

        if (update->ahead)
                undo_keep(h->state, first);
        shard_map(&l);
        if (chunks == 1)
                shard_add(&l);
        for (uint32_t c = first; chunks > 1 && c < first + chunks; c++)
                if (state_chunk_version(h->state, c) != update->version)
                        chunk_add(&l, plan_chunk(plan, c));
        run_end(&l);
        pieces_end(&l);
        place_updated(h->state->id.place);
        shard_unmap(&l);
        undo_done(h->state, first, update->version);
}
