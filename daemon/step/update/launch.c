/*
 * Updates on a device other than the host.
 *
 * A piece is a contiguous range of one tensor that is still at the old version.  Its served
 * parameters are written with it, but not before the decision.  A piece is a whole segment, except
 * in a state that came to the device in the middle of an update.  Pieces are launched together and
 * waited for together. The unit is the shard, so the work here grows with tensors.
 *
 * The momentum of Muon's matrices comes with the other pieces, because two matrices may share a
 * record of its format.  Then each matrix goes through four launches or more: what is to become its
 * direction, Newton-Schulz (compute/matrix), the direction.  They follow each other on one stream,
 * and all matrices of a shard use the same memory beside the state.
 */
#include "daemon/step/update/launch.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>

#include "daemon/floor/base/log.h"
#include "daemon/step/update/matrices.h"
#include "proto/cleanup.h"

enum { PIECES = 64 }; /* that are launched together */

/* The elements of one piece. */
struct run {
        uint32_t tensor;
        uint64_t in_group, master, moment, count; /* count 0: none yet */
        const struct plan_run *of;
};

struct launch {
        const struct replica *replica;
        const struct unit_update *update;
        const struct node_gradient *node_gradient; /* NULL: the gradient is in the state */
        uint32_t group;
        struct mapping planes[UPDATE_PLANES], grad, served; /* of the shard */
        struct run run;
        struct update_piece pieces[PIECES]; /* of one rule */
        uint32_t n_pieces;
        bool mixed;   /* chunks may be at the new version already */
        void *memory; /* for the largest matrix; NULL: none is updated */
};

static void pieces_end(struct launch *l)
{
        place_update(l->pieces, l->n_pieces);
        l->n_pieces = 0;
}

static void piece_add(struct launch *l, const struct update_piece *piece)
{
        if (l->n_pieces == PIECES || (l->n_pieces > 0 && l->pieces[0].rule != piece->rule))
                pieces_end(l);
        l->pieces[l->n_pieces++] = *piece;
}

/* The gap behind a tensor stays as it is. */
static uint64_t run_elements(const struct launch *l)
{
        const struct layout_tensor *t = &l->replica->job->layout->tensors[l->run.tensor];
        uint64_t first = l->run.in_group - t->offset, count = l->run.count;

        if (first >= t->elements)
                return 0;
        return count < t->elements - first ? count : t->elements - first;
}

static const struct plan_shard *run_shard(const struct launch *l)
{
        return &l->replica->state->plan->shards[l->group];
}

static void run_gradient(const struct launch *l, const struct run *r, struct update_piece *update)
{
        if (!l->node_gradient) {
                update->grad[0] = (float *)l->grad.at + (r->moment - run_shard(l)->moment);
                update->k = 1;
                update->from = update->wire = ZERO_FP32;
                return;
        }
        assert(node_gradient_sources_max(l->node_gradient) <= UPDATE_SOURCES);
        update->k = (uint32_t)node_gradient_sources(l->node_gradient, r->tensor, r->in_group,
                                                    update->grad);
        update->from = node_gradient_dtype(l->node_gradient);
        update->wire = l->replica->job->reduce_dtype;
}

/* Points plane k of the piece to the run's elements in a plane of the state, to be updated there.
 */
static void run_plane(const struct launch *l, const struct run *r, struct plane plane,
                      struct update_piece *piece, uint32_t k)
{
        const struct plan_shard *shard = run_shard(l);
        uint32_t seed = plane.kind == PLANE_MASTER ? 0 : 1 + plane.index;
        enum format format = seed ? r->of->formats[plane.index] : r->of->master_format;
        uint64_t skip = format == FORMAT_FP32 ? 0 : r->in_group % FORMAT_STEP;
        uint8_t *at = l->planes[seed].at;

        at += seed ? plan_moment_at(r->of, plane.index, r->moment - skip) -
                              shard->moment_at[plane.index]
                   : plan_master_bytes(shard, r->master - skip - shard->master);
        piece->in[k] = piece->out[k] = (float *)at;
        piece->format[k] = format;
        piece->dither[k] =
                dither_at(seed, l->replica->state->tensor_step[r->tensor], r->in_group - skip);
        piece->skip = skip ? (uint32_t)skip : piece->skip;
}

/* What the run serves; NULL: not before the decision, or trainers get the master weights. */
static void *run_served(const struct launch *l, const struct run *r)
{
        const struct plan_shard *shard = run_shard(l);
        const struct layout_group *g = &l->replica->job->layout->groups[l->group];
        uint64_t skip = shard->format == FORMAT_FP32 ? 0 : r->in_group % FORMAT_STEP;

        if (l->update->ahead || shard->serve == UINT64_MAX)
                return NULL;
        return (char *)l->served.at + layout_group_bytes(g, r->master - skip - shard->master);
}

/* A step of the momentum of matrices, which the run has as its first moment. */
static struct update_piece momentum_piece(const struct launch *l, const struct run *r)
{
        struct update_piece piece = { .rule = UPDATE_MOMENTUM,
                                      .scalars = l->update->scalars[r->tensor] };

        piece.scalars.ema_rate = 0;
        run_plane(l, r, plane_updated(1), &piece, 0);
        return piece;
}

static struct update_piece elements_piece(const struct launch *l, const struct run *r)
{
        struct update_piece piece = {
                .rule = r->of->optimizer->rule,
                .scalars = l->update->scalars[r->tensor],
                .serve = run_served(l, r),
                .serve_dtype = l->replica->job->layout->groups[l->group].dtype,
        };

        for (uint32_t k = 0; k <= r->of->n_moments; k++)
                run_plane(l, r, plane_updated(k), &piece, k);
        return piece;
}

static void run_end(struct launch *l)
{
        struct run r = l->run;
        uint64_t n = run_elements(l);
        struct update_piece piece;

        l->run.count = 0;
        if (n == 0 || !l->update->present[r.tensor])
                return;
        piece = r.of->optimizer->matrices ? momentum_piece(l, &r) : elements_piece(l, &r);
        piece.n = n;
        run_gradient(l, &r, &piece);
        if (piece.k)
                piece_add(l, &piece);
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
        const struct plan *plan = l->replica->state->plan;
        const struct plan_segment *s = &plan->segments[shard->first_segment];

        for (uint32_t i = 0; i < shard->n_segments; i++, s++)
                if (s->moment != UINT64_MAX)
                        run_add(l, (struct run){ s->tensor, s->in_group, s->master, s->moment,
                                                 s->count, &plan->runs[s->run] });
}

/* Adds the chunk's elements, tensor by tensor. */
static void chunk_add(struct launch *l, struct plan_chunk c)
{
        const struct plan_segment *s = &l->replica->state->plan->segments[c.first_segment];

        for (uint64_t done = 0, n; done < c.n; done += n, s++) {
                uint64_t left = s->in_group + s->count - (c.in_group + done);

                n = left < c.n - done ? left : c.n - done;
                run_add(l, (struct run){ s->tensor, c.in_group + done, c.master + done,
                                         c.moment + done, n, c.run });
        }
}

/* ---- matrices ------------------------------------------------------------------------- */

/* How many elements from *first on are at the old version, or behind those that are not; 0: none.
 */
static uint64_t old_elements(const struct launch *l, const struct shard_matrix *m, uint64_t *first)
{
        uint32_t chunk;

        if (!l->mixed)
                return matrix_elements(m) - *first;
        for (uint64_t n; *first < matrix_elements(m); *first += n) {
                n = matrix_in_chunk(m, *first, matrix_elements(m) - *first, &chunk);
                if (state_chunk_version(l->replica->state, chunk) != l->update->version)
                        return n;
        }
        return 0;
}

/* Elements of the matrix from `first` on. */
static struct run matrix_run(const struct launch *l, const struct shard_matrix *m, uint64_t first)
{
        const struct layout_tensor *t = &l->replica->job->layout->tensors[m->tensor];

        return (struct run){ .tensor = m->tensor,
                             .in_group = t->offset + m->matrix.first + first,
                             .master = m->master + first,
                             .moment = m->moment + first,
                             .of = m->run };
}

static struct update_piece direction_piece(const struct launch *l, const struct shard_matrix *m,
                                           uint64_t first, uint64_t n, const uint16_t *direction)
{
        struct run r = matrix_run(l, m, first);
        struct update_piece piece = {
                .rule = UPDATE_DIRECTION,
                .scalars = muon_direction(&l->update->scalars[m->tensor], m->matrix.rows,
                                          m->matrix.cols),
                .n = n,
                .grad = { direction + first },
                .k = 1,
                .from = ZERO_BF16,
                .wire = ZERO_BF16,
                .serve = run_served(l, &r),
                .serve_dtype = l->replica->job->layout->groups[l->group].dtype,
        };

        run_plane(l, &r, plane_master, &piece, 0);
        if (update_has_ema(&piece.scalars))
                run_plane(l, &r, plane_updated(2), &piece, 1);
        return piece;
}

/* The new momentum, or with Nesterov what is one step ahead of it, in bf16. */
static void look_ahead(struct launch *l, const struct shard_matrix *m, const struct ortho *o,
                       bool nesterov)
{
        struct run r = matrix_run(l, m, 0);
        struct update_piece piece = momentum_piece(l, &r);

        piece.n = matrix_elements(m);
        if (!nesterov) {
                place_unpack(piece.format[0], ZERO_BF16, ortho_values(o), piece.in[0], piece.skip,
                             piece.n);
                return;
        }
        piece.out[0] = ortho_launch_room(o);
        piece.serve = ortho_values(o);
        piece.serve_dtype = ZERO_BF16;
        run_gradient(l, &r, &piece);
        piece_add(l, &piece);
        pieces_end(l);
}

/* After the momentum. */
static void matrix_update(struct launch *l, const struct shard_matrix *m)
{
        const struct state *state = l->replica->state;
        struct muon muon = muon_of(&state->record->sets[state->tensor_set[m->tensor]]);
        struct ortho o;
        uint64_t first = 0, n;

        if (old_elements(l, m, &first) == 0)
                return;
        ortho_begin(&o, m->matrix.rows, m->matrix.cols, &muon.ns, l->memory,
                    l->replica->job->x->ops);
        look_ahead(l, m, &o, muon.nesterov);
        ortho_launch(&o);
        for (first = 0; (n = old_elements(l, m, &first)); first += n) {
                struct update_piece piece = direction_piece(l, m, first, n, ortho_values(&o));

                piece_add(l, &piece);
        }
        pieces_end(l); /* before the next matrix takes the memory */
}

/* Has the matrices updated, if there is memory for the largest one. */
static int room_grow(struct launch *l, struct launch_room *room)
{
        const struct job *job = l->replica->job;
        struct matrix_walk walk = { 0 };
        struct shard_matrix m;
        struct fault fault;
        char what[ZERO_NAME_MAX + 32];
        size_t most = 0;

        while (room && matrix_next(l->replica, l->group, &walk, &m)) {
                size_t bytes = ortho_launch_bytes(m.matrix.rows, m.matrix.cols);

                most = bytes > most ? bytes : most;
        }
        if (most == 0)
                return 0;
        if (room->bytes < most) {
                place_free(STEAL(room->memory));
                room->bytes = 0;
                snprintf(what, sizeof what, "directions of job %s", job->name);
                if (place_alloc(l->replica->state->id.place, most, what, &room->memory, &fault)) {
                        log_warning_for(job->uid,
                                        "job %s: the update of group '%s' waits for memory: %s",
                                        job->name, job->layout->groups[l->group].name, fault.text);
                        return -ENOMEM;
                }
                room->bytes = most;
        }
        l->memory = room->memory;
        return 0;
}

/* ---- shards ------------------------------------------------------------------------------ */

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

int launch_shard(const struct replica *h, const struct unit_update *update,
                 const struct node_gradient *node_gradient, uint32_t group,
                 struct launch_room *room)
{
        const struct plan *plan = h->state->plan;
        uint32_t first = plan->shards[group].first_chunk, chunks = state_chunks(h->state, group);
        struct launch l = { .replica = h,
                            .update = update,
                            .node_gradient = node_gradient,
                            .group = group,
                            .mixed = chunks > 1 };
        struct matrix_walk walk = { 0 };
        struct shard_matrix m;

        if (room_grow(&l, room))
                return -ENOMEM;
        if (update->ahead)
                undo_keep(h->state, first);
        shard_map(&l);
        if (!l.mixed)
                shard_add(&l);
        for (uint32_t c = first; l.mixed && c < first + chunks; c++)
                if (state_chunk_version(h->state, c) != update->version)
                        chunk_add(&l, plan_chunk(plan, c));
        run_end(&l);
        pieces_end(&l);
        while (l.memory && matrix_next(h, group, &walk, &m))
                matrix_update(&l, &m);
        place_updated(h->state->id.place);
        shard_unmap(&l);
        undo_done(h->state, first, update->version);
        return 0;
}
