/*
 * Crash-consistent in-place update of a chunk at cache cost.
 *
 * Each updating thread owns one undo slot in the state file, small enough to stay in L1.  The
 * thread marks the slot as held by the chunk.  Then it goes on a few elements at a time.  It stores
 * their old values to the slot, raises the slot's mark to cover them, and stores the new values to
 * the planes (device_ops.update).  At the end it raises the chunk's version and frees the slot.
 *
 * The process may die at any instruction: the chunk is at its new version, or the slot has the old
 * values of all that may have changed.  In the second case the old values are put back and the
 * chunk is updated again.
 *
 * The slot keeps old values so that an update walks over memory once, as an update without a slot
 * does.  Slots with new values, copied to the planes afterwards, left memory nearly idle during
 * each copy.  An update then took 1.2 to 1.3 times as long.
 *
 * An update ahead of the decision copies the slot's old values to where they are kept (undo_kept.c)
 * before it raises the chunk's version.  Somebody may want them put back, and the step may be
 * committed meanwhile.  A process that is killed half way would then leave a chunk that counts as
 * updated.  So undo_back() also holds the slot, with the version that the chunk goes back to, and
 * the next process puts the chunk back again.
 *
 * A slot that is held after a crash belongs to a chunk that was being updated or put back.  If an
 * updated chunk has its new version, the process died between the last two stores, and there is
 * nothing to undo.
 *
 * A kill takes effect between two instructions, and every store before it reaches the file's
 * memory.  So only the compiler must be kept from moving stores.
 */
#include <assert.h>
#include <string.h>

#include "daemon/floor/base/crash.h"
#include "daemon/store/planes.h"
#include "daemon/store/seal.h"
#include "proto/dtype.h"

static struct undo_slot *slot_at(const struct state *s, uint32_t slot)
{
        assert(slot < s->in->n_undo);
        return (void *)((uint8_t *)s->in->undo + slot * file_undo_stride(s->plan));
}

/* Where old values of a chunk lie.  What was served of it lies behind its old master.  The release
 * before has fp32 alone, and gives each plane the same room. */
static struct update_undo arrays(const struct state *s, const struct plan_chunk *c,
                                 struct undo_slot *slot)
{
        struct update_undo undo = { .kept = &slot->kept };
        uint8_t *at = (uint8_t *)slot->values;

        for (uint32_t k = 0; k <= c->run->n_moments; k++) {
                undo.old[k] = (float *)at;
                at += plan_run_bytes(c->run, k, c->run->packed ? c->n : s->plan->chunk_elements);
                if (k == 0 && c->run->master_format != FORMAT_FP32)
                        at += c->n * sizeof(uint16_t);
        }
        return undo;
}

static uint16_t *old_served(const struct plan_chunk *c, float *old_master)
{
        return (uint16_t *)((uint8_t *)old_master + plan_run_bytes(c->run, 0, c->n));
}

static struct undo_values values_of(const struct plan_chunk *c, const struct update_undo *in)
{
        struct undo_values values = { .served = NULL };

        memcpy(values.planes, in->old, sizeof(values.planes));
        if (c->run->master_format != FORMAT_FP32)
                values.served = old_served(c, in->old[0]);
        return values;
}

/* 0: free; 1 + a chunk: the chunk may have changed; UINT64_MAX: damaged. */
static uint64_t held(const struct state *s, uint32_t slot)
{
        return seal_open(SEAL_UNDO, slot,
                         __atomic_load_n(&slot_at(s, slot)->chunk, __ATOMIC_ACQUIRE));
}

/* No store moves over this one, in either direction. */
static void hold(struct state *s, uint32_t slot, uint64_t held)
{
        __atomic_store_n(&slot_at(s, slot)->chunk, seal(SEAL_UNDO, slot, held), __ATOMIC_RELEASE);
        __atomic_signal_fence(__ATOMIC_SEQ_CST);
}

void undo_init(struct state *state)
{
        for (uint32_t i = 0; i < state->in->n_undo; i++)
                hold(state, i, 0);
}

/* Holds the slot for a chunk that goes to `version`. */
static struct undo_slot *begin(struct state *state, uint32_t slot, uint32_t chunk, uint64_t version)
{
        struct undo_slot *s = slot_at(state, slot);

        assert(chunk < state->plan->n_chunks && held(state, slot) == 0 &&
               state->in->home->survives);
        s->version = seal(SEAL_UNDO_VERSION, slot, version);
        s->kept = undo_mark(0);
        hold(state, slot, (uint64_t)chunk + 1);
        return s;
}

enum { WIDENED = 2 * LAYOUT_ALIGN }; /* elements of a gradient that L1 has in fp32 */

/* n elements of the gradient, at most WIDENED; they are at `wide` unless the plane has fp32. */
static const float *gradient(const struct state *s, uint64_t moment, uint32_t n, float *wide,
                             const struct device_ops *ops)
{
        enum zero_dtype dtype = s->plan->grad_dtype;
        const uint8_t *at = (const uint8_t *)s->in->grad + dtype_bytes(dtype, moment);

        if (dtype == ZERO_FP32)
                return (const float *)(const void *)at;
        ops->cast(ZERO_FP32, wide, dtype, at, n);
        return wide;
}

/* Elements of a tensor, a piece of a chunk, whose values L1 has in fp32. */
struct piece {
        uint64_t first; /* of the tensor */
        uint32_t n;     /* at most WIDENED */
        float *planes[UPDATE_PLANES];
        const float *grad;
        const uint16_t *direction;
};

/* The matrix that pieces of a tensor are in, and what its elements are changed by. */
struct in_matrix {
        uint64_t end; /* first element of the tensor behind the matrix */
        struct update_scalars scalars;
};

static void enter_matrix(struct in_matrix *m, const struct layout_tensor *t, uint64_t element,
                         const struct update_scalars *s)
{
        const struct layout_matrix matrix = layout_matrix(t, layout_matrix_at(t, element));

        m->end = matrix.first + matrix.rows * matrix.cols;
        m->scalars = muon_direction(s, matrix.rows, matrix.cols);
}

/* Planes: master, the momentum buffer, the average. */
static void update_matrices(const struct layout_tensor *t, const struct piece *p,
                            const struct update_scalars *s, struct in_matrix *in,
                            const struct device_ops *ops)
{
        struct update_scalars buffered = *s;
        float direction[WIDENED];

        buffered.ema_rate = 0; /* of the weights alone */
        ops->update(UPDATE_MOMENTUM, &buffered, p->n, &p->planes[1], p->grad, NULL);
        ops->cast(ZERO_FP32, direction, ZERO_BF16, p->direction, p->n);
        for (uint32_t i = 0, n; i < p->n; i += n) {
                float *const planes[] = { p->planes[0] + i,
                                          p->planes[2] ? p->planes[2] + i : NULL };

                if (p->first + i >= in->end)
                        enter_matrix(in, t, p->first + i, s);
                n = in->end - (p->first + i) < p->n - i ? (uint32_t)(in->end - (p->first + i))
                                                        : p->n - i;
                ops->update(UPDATE_DIRECTION, &in->scalars, n, planes, direction + i, NULL);
        }
}

/* Part of a chunk that is of one tensor, from element `first` of the chunk on. */
struct stretch {
        const struct plan_chunk *chunk;
        const struct plan_segment *segment;
        uint32_t first, n;
        uint8_t *planes[UPDATE_PLANES]; /* of the chunk */
        uint16_t *served;               /* likewise; NULL: master is in fp32 */
};

static enum format format_of(const struct plan_run *run, uint32_t k)
{
        return k ? run->formats[k - 1] : run->master_format;
}

/* Points the piece to `room` elements from element `at` of the chunk on.  A plane that is not in
 * fp32 is unpacked to `values`. */
static void piece_load(struct piece *p, const struct stretch *of, uint32_t at, uint32_t room,
                       float values[UPDATE_PLANES][WIDENED], const struct device_ops *ops)
{
        const struct plan_run *run = of->chunk->run;
        const uint16_t *served = of->served ? of->served + at : NULL;

        for (uint32_t k = 0; k <= run->n_moments; k++) {
                uint8_t *from = of->planes[k] + plan_run_bytes(run, k, at);

                p->planes[k] = (float *)from;
                if (format_of(run, k) == FORMAT_FP32)
                        continue;
                p->planes[k] = values[k];
                ops->unpack(format_of(run, k), values[k], served, from, room);
        }
}

/* The dither depends on the step before, which is in the file, and on the place in the group: it
 * is the same for all owners, and for a process that takes the update up. */
static void piece_store(const struct state *s, const struct piece *p, const struct stretch *of,
                        uint32_t at, uint32_t room, const struct device_ops *ops)
{
        const struct plan_run *run = of->chunk->run;
        uint64_t step = s->tensor_step[of->segment->tensor], element = of->chunk->in_group + at;

        uint16_t *served = of->served ? of->served + at : NULL;

        for (uint32_t k = 0; k <= run->n_moments; k++)
                if (format_of(run, k) != FORMAT_FP32)
                        ops->pack(format_of(run, k), of->planes[k] + plan_run_bytes(run, k, at),
                                  served, p->planes[k], room, dither_at(k, step, element));
}

/* Updates a stretch of matrices. */
static void update_pieces(const struct state *s, const struct stretch *of,
                          const struct unit_update *u, const struct device_ops *ops)
{
        const struct plan_chunk *c = of->chunk;
        const struct layout_tensor *t = &u->layout->tensors[of->segment->tensor];
        float values[UPDATE_PLANES][WIDENED], wide[WIDENED];
        struct in_matrix in = { .end = 0 };
        uint64_t before = c->moment - s->plan->shards[c->group].moment;

        for (uint32_t at = of->first, room; at < of->first + of->n; at += room) {
                struct piece p = { .first = c->in_group + at - t->offset };
                uint64_t left = p.first < t->elements ? t->elements - p.first : 0;

                room = of->first + of->n - at < WIDENED ? of->first + of->n - at : WIDENED;
                p.n = left < room ? (uint32_t)left : room; /* the gap behind a tensor stays 0 */
                if (p.n == 0)
                        continue;
                p.grad = gradient(s, c->moment + at, p.n, wide, ops);
                p.direction = u->directions + before + at;
                piece_load(&p, of, at, room, values, ops);
                update_matrices(t, &p, &u->scalars[of->segment->tensor], &in, ops);
                piece_store(s, &p, of, at, room, ops);
        }
}

/* The dither is that of piece_store(). */
static void update_stretch(const struct state *s, const struct stretch *of,
                           const struct unit_update *u, const struct device_ops *ops)
{
        const struct plan_chunk *c = of->chunk;
        const struct layout_tensor *t = &u->layout->tensors[of->segment->tensor];
        uint64_t first = c->in_group + of->first - t->offset;
        uint64_t left = first < t->elements ? t->elements - first : 0;
        uint32_t n = left < of->n ? (uint32_t)left : of->n;
        uint32_t most = s->plan->grad_dtype == ZERO_FP32 ? n : WIDENED;
        float wide[WIDENED];

        for (uint32_t at = of->first, part; n > 0; at += part, n -= part) {
                part = n < most ? n : most;
                struct packed_update p = { .rule = c->run->optimizer->rule,
                                           .scalars = &u->scalars[of->segment->tensor],
                                           .n = part,
                                           .served = of->served ? of->served + at : NULL,
                                           .grad = gradient(s, c->moment + at, part, wide, ops),
                                           .step = s->tensor_step[of->segment->tensor],
                                           .element = c->in_group + at };

                for (uint32_t k = 0; k <= c->run->n_moments; k++) {
                        p.formats[k] = format_of(c->run, k);
                        p.planes[k] = of->planes[k] + plan_run_bytes(c->run, k, at);
                }
                ops->update_packed(&p);
        }
}

/* Saves all of the chunk, and then updates it in pieces: its elements depend on their matrix, or
 * its moments on the whole record. */
static void update_saved(struct state *s, const struct plan_chunk *c, const struct unit_update *u,
                         const struct device_ops *ops, struct update_undo undo)
{
        struct stretch of = { .chunk = c, .segment = &s->plan->segments[c->first_segment] };
        uint32_t n_planes = chunk_planes(s, c, of.planes);

        of.served = served_at(s, c->group, c->in_group);
        for (uint32_t k = 0; k < n_planes; k++)
                memcpy(undo.old[k], of.planes[k], plan_run_bytes(c->run, k, c->n));
        if (of.served)
                memcpy(old_served(c, undo.old[0]), of.served, c->n * sizeof(*of.served));
        undo_raise(&undo, c->n);
        for (; of.first < c->n; of.first += of.n, of.segment++) {
                uint64_t left = of.segment->in_group + of.segment->count - (c->in_group + of.first);

                of.n = left < c->n - of.first ? (uint32_t)left : c->n - of.first;
                if (u->present[of.segment->tensor])
                        (c->run->optimizer->matrices ? update_pieces : update_stretch)(s, &of, u,
                                                                                       ops);
                crash_point(CRASH_UPDATE_TORN);
        }
}

/* Updates n elements of a tensor, whose first gradient is at index `moment` of its plane. */
static void update_run(const struct state *s, enum update_rule rule,
                       const struct update_scalars *scalars, uint32_t n, float *const *planes,
                       uint64_t moment, const struct device_ops *ops, struct update_undo undo)
{
        float wide[WIDENED], *at[UPDATE_PLANES];

        if (s->plan->grad_dtype == ZERO_FP32) {
                ops->update(rule, scalars, n, planes, (const float *)s->in->grad + moment, &undo);
                return;
        }
        memcpy(at, planes, sizeof(at));
        for (uint32_t done = 0, part; done < n; done += part) {
                part = n - done < WIDENED ? n - done : WIDENED;
                ops->update(rule, scalars, part, at, gradient(s, moment + done, part, wide, ops),
                            &undo);
                undo = undo_behind(undo, part);
                for (int k = 0; k < UPDATE_PLANES; k++)
                        at[k] += at[k] ? part : 0;
        }
}

/* Updates the chunk tensor by tensor.  The slot also gets the old values of tensors without a
 * gradient, because the kept elements of a chunk have no gaps. */
static void update(struct state *s, const struct plan_chunk *c, const struct unit_update *u,
                   const struct device_ops *ops, struct update_undo undo)
{
        const struct plan_segment *segment = &s->plan->segments[c->first_segment];
        enum update_rule rule = c->run->optimizer->rule;
        uint8_t *bytes[UPDATE_PLANES] = { NULL };
        float *planes[UPDATE_PLANES] = { NULL };
        uint32_t n_planes = chunk_planes(s, c, bytes);

        for (uint32_t k = 0; k < n_planes; k++)
                planes[k] = (float *)bytes[k];

        for (uint32_t done = 0, n; done < c->n; done += n, segment++) {
                uint64_t left = segment->in_group + segment->count - (c->in_group + done);

                n = left < c->n - done ? (uint32_t)left : c->n - done;
                if (u->present[segment->tensor]) {
                        update_run(s, rule, &u->scalars[segment->tensor], n, planes,
                                   c->moment + done, ops, undo);
                        crash_point(CRASH_UPDATE_TORN);
                } else {
                        for (uint32_t k = 0; k < n_planes; k++)
                                memcpy(undo.old[k], planes[k], n * sizeof(float));
                }
                undo = undo_behind(undo, n);
                for (uint32_t k = 0; k < n_planes; k++)
                        planes[k] += n;
        }
}

static bool is_updating(const struct state *s)
{
        return s->record->phase == ATTEMPT_DECIDED && s->record->commit;
}

struct undo_values undo_update(struct state *state, uint32_t slot, uint32_t chunk,
                               const struct unit_update *u, const struct device_ops *ops)
{
        const struct plan_chunk c = plan_chunk(state->plan, chunk);
        struct update_undo undo = arrays(state, &c, begin(state, slot, chunk, u->version));

        assert(u->ahead || (is_updating(state) && u->version == state->record->version + 1));
        assert(state_chunk_version(state, chunk) == u->version - 1);
        crash_point(CRASH_UPDATE_VALID);
        (c.run->optimizer->matrices || c.run->packed ? update_saved : update)(state, &c, u, ops,
                                                                              undo);
        for (uint32_t k = 0; u->ahead && k <= c.run->n_moments; k++)
                memcpy(kept_at(state, &c, k), undo.old[k], plan_run_bytes(c.run, k, c.n));
        tables_set_chunk_version(state, chunk, u->version);
        crash_point(u->ahead ? CRASH_AHEAD_KEPT : CRASH_UPDATE_COPIED);
        hold(state, slot, 0);
        return values_of(&c, &undo);
}

void undo_back(struct state *state, uint32_t slot, uint32_t unit, uint64_t version)
{
        bool holds = plan_unit(state->plan, unit) == UNIT_CHUNK;

        if (holds)
                begin(state, slot, unit, version);
        kept_back(state, unit, version);
        if (holds)
                hold(state, slot, 0);
}

struct undo_values undo_values(const struct state *state, uint32_t slot, uint32_t chunk)
{
        const struct plan_chunk c = plan_chunk(state->plan, chunk);
        struct update_undo copy = arrays(state, &c, slot_at(state, slot));
        uint8_t *planes[UPDATE_PLANES] = { NULL };
        uint32_t n = chunk_planes(state, &c, planes);
        const uint16_t *served = served_at(state, c.group, c.in_group);

        assert(held(state, slot) == 0);
        for (uint32_t k = 0; k < n; k++)
                memcpy(copy.old[k], planes[k], plan_run_bytes(c.run, k, c.n));
        if (served)
                memcpy(old_served(&c, copy.old[0]), served, c.n * sizeof(*served));
        return values_of(&c, &copy);
}

/* The version that the chunk which holds the slot was going to. */
static uint64_t slot_version(const struct state *s, uint32_t slot)
{
        return seal_open(SEAL_UNDO_VERSION, slot, slot_at(s, slot)->version);
}

static void put_back(struct state *s, uint32_t slot, uint32_t to)
{
        bool is_old = state_chunk_version(s, to) == s->record->version;
        const struct plan_chunk c = plan_chunk(s->plan, to);
        struct update_undo from = arrays(s, &c, slot_at(s, slot));
        uint8_t *planes[UPDATE_PLANES] = { NULL };
        uint32_t n = chunk_planes(s, &c, planes);

        uint16_t *served = served_at(s, c.group, c.in_group);
        uint32_t kept = undo_kept(*from.kept);

        for (uint32_t k = 0; is_old && k < n; k++)
                memcpy(planes[k], from.old[k], plan_run_bytes(c.run, k, kept));
        if (is_old && served)
                memcpy(served, old_served(&c, from.old[0]), kept * sizeof(*served));
        if (!is_old && slot_version(s, slot) == s->record->version)
                kept_back(s, to, s->record->version);
        hold(s, slot, 0);
}

static bool may_be_ahead(const struct state *s, uint32_t chunk)
{
        return s->plan->shards[plan_chunk(s->plan, chunk).group].old != UINT64_MAX;
}

/* True if the record allows that the chunk was on its way to `version`, ahead or back. */
static bool may_change(const struct state *s, uint32_t chunk, uint64_t version)
{
        return version == s->record->version + 1
                       ? is_updating(s) || may_be_ahead(s, chunk)
                       : version == s->record->version && may_be_ahead(s, chunk);
}

uint32_t undo_all(struct state *state)
{
        uint32_t n = 0;

        for (uint32_t i = 0; i < state->in->n_undo; i++) {
                uint64_t chunk = held(state, i);

                if (chunk == 0)
                        continue;
                put_back(state, i, (uint32_t)(chunk - 1));
                n++;
        }
        if (!is_updating(state) && !state->in->lost)
                kept_back_all(state);
        return n;
}

static bool slot_is_wrong(const struct state *s, uint32_t slot)
{
        const struct undo_slot *at = slot_at(s, slot);
        uint64_t chunk = held(s, slot);

        if (chunk == 0)
                return false;
        return !s->in->home->survives || chunk > s->plan->n_chunks ||
               !may_change(s, (uint32_t)(chunk - 1), slot_version(s, slot)) ||
               undo_kept(at->kept) > plan_chunk(s->plan, (uint32_t)(chunk - 1)).n;
}

int undo_check(const struct state *state, struct fault *fault)
{
        /* the version table of a lost state means nothing */
        for (uint32_t c = 0; c < state->plan->n_chunks && !state->in->lost; c++) {
                uint64_t ahead = state_chunk_version(state, c) - state->record->version;

                if (ahead > 1 || (ahead == 1 && !may_change(state, c, state->record->version + 1)))
                        return file_damaged(fault, state->in->file, "its chunk table is damaged");
        }
        for (uint32_t i = 0; i < state->in->n_undo; i++)
                if (slot_is_wrong(state, i))
                        return file_damaged(fault, state->in->file, "an undo slot is damaged");
        return 0;
}
