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

static struct undo_slot *slot_at(const struct state *s, uint32_t slot)
{
        assert(slot < s->in->n_undo);
        return (void *)((uint8_t *)s->in->undo + slot * file_undo_stride(s->plan));
}

static struct update_undo arrays(const struct state *s, struct undo_slot *slot)
{
        struct update_undo undo = { .kept = &slot->kept };

        for (uint32_t k = 0; k < s->plan->n_planes; k++)
                undo.old[k] = slot->values + k * s->plan->chunk_elements;
        return undo;
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

/* Updates the chunk tensor by tensor.  The slot also gets the old values of tensors without a
 * gradient, because the kept elements of a chunk have no gaps. */
static void update(struct state *s, const struct plan_chunk *c, const struct unit_update *u,
                   const struct device_ops *ops, struct update_undo undo)
{
        const struct plan_segment *segment = &s->plan->segments[c->first_segment];
        enum update_rule rule = s->plan->shards[c->group].optimizer->rule;
        float *planes[UPDATE_PLANES] = { NULL };
        uint32_t n_planes = chunk_planes(s, c, planes);

        for (uint32_t done = 0, n; done < c->n; done += n, segment++) {
                uint64_t left = segment->in_group + segment->count - (c->in_group + done);

                n = left < c->n - done ? (uint32_t)left : c->n - done;
                if (u->present[segment->tensor]) {
                        ops->update(rule, &u->scalars[segment->tensor], n, planes,
                                    s->in->grad + c->moment + done, &undo);
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
        struct update_undo undo = arrays(state, begin(state, slot, chunk, u->version));
        struct undo_values old;

        assert(u->ahead || (is_updating(state) && u->version == state->record->version + 1));
        assert(state_chunk_version(state, chunk) == u->version - 1);
        crash_point(CRASH_UPDATE_VALID);
        update(state, &c, u, ops, undo);
        for (uint32_t k = 0; u->ahead && k <= state->plan->shards[c.group].n_moments; k++)
                memcpy(kept_at(state, &c, k), undo.old[k], c.n * sizeof(float));
        tables_set_chunk_version(state, chunk, u->version);
        crash_point(u->ahead ? CRASH_AHEAD_KEPT : CRASH_UPDATE_COPIED);
        hold(state, slot, 0);
        memcpy(old.planes, undo.old, sizeof(old.planes));
        return old;
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
        struct update_undo copy = arrays(state, slot_at(state, slot));
        float *planes[UPDATE_PLANES] = { NULL };
        uint32_t n = chunk_planes(state, &c, planes);
        struct undo_values values;

        assert(held(state, slot) == 0);
        for (uint32_t k = 0; k < n; k++)
                memcpy(copy.old[k], planes[k], c.n * sizeof(float));
        memcpy(values.planes, copy.old, sizeof(values.planes));
        return values;
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
        struct update_undo from = arrays(s, slot_at(s, slot));
        size_t bytes = undo_kept(*from.kept) * sizeof(float);
        float *planes[UPDATE_PLANES] = { NULL };
        uint32_t n = chunk_planes(s, &c, planes);

        if (is_old)
                for (uint32_t k = 0; k < n; k++)
                        memcpy(planes[k], from.old[k], bytes);
        else if (slot_version(s, slot) == s->record->version)
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
