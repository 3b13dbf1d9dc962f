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
 * An eager group is updated before its step is decided.  Before a thread raises the chunk's
 * version, it also copies the slot's old values to the chunk's place for them (plan.h), where they
 * stay.  So a chunk whose version is ahead of the recorded decision has its old values there.
 * undo_ahead() or the next process puts them back.
 *
 * A reader may want the old values put back, and the step may be committed meanwhile.  A process
 * that is killed half way would then leave a chunk that counts as updated.  So undo_ahead() also
 * holds the slot, with the version that the chunk goes back to, and the next process puts the chunk
 * back again.
 *
 * States on a GPU use no slots: their planes do not survive the process.
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
#include "daemon/store/file.h"
#include "daemon/store/seal.h"

enum { KEEP_MOST = 1 << 30 }; /* elements in one copy */

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

/* Points ret to the chunk's values in the planes of its group, and returns the number of planes. */
static uint32_t chunk_planes(const struct state *s, const struct plan_chunk *c,
                             float *ret[static UPDATE_PLANES])
{
        const struct plan_shard *shard = &s->plan->shards[c->group];
        uint32_t n = 1 + shard->n_moments;

        ret[0] = s->in->master + c->master;
        for (uint32_t k = 1; k < n; k++)
                ret[k] = s->in->moments[k - 1] + plan_moment(shard, k - 1, c->moment);
        return n;
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

static void assert_decided(const struct state *s, uint32_t chunk, uint64_t version)
{
        assert(chunk < s->plan->n_chunks && version == s->record->version + 1);
        assert(s->record->phase == ATTEMPT_DECIDED && s->record->commit);
        assert(state_chunk_version(s, chunk) == version - 1);
}

/* Holds the slot for a chunk that goes to `version`. */
static struct undo_slot *begin(struct state *state, uint32_t slot, uint32_t chunk, uint64_t version)
{
        struct undo_slot *s = slot_at(state, slot);

        assert(chunk < state->plan->n_chunks && held(state, slot) == 0 && !state->in->planes);
        s->version = seal(SEAL_UNDO_VERSION, slot, version);
        s->kept = undo_mark(0);
        hold(state, slot, (uint64_t)chunk + 1);
        return s;
}

/* Updates the chunk tensor by tensor.  The slot also gets the old values of tensors without a
 * gradient, because the kept elements of a chunk have no gaps. */
static void update(struct state *s, const struct plan_chunk *c, const uint8_t *present,
                   const struct device_ops *ops, const struct update_scalars *scalars,
                   struct update_undo undo)
{
        const struct plan_segment *segment = &s->plan->segments[c->first_segment];
        enum update_rule rule = s->plan->shards[c->group].optimizer->rule;
        float *planes[UPDATE_PLANES] = { NULL };
        uint32_t n_planes = chunk_planes(s, c, planes);

        for (uint32_t done = 0, n; done < c->n; done += n, segment++) {
                uint64_t left = segment->in_group + segment->count - (c->in_group + done);

                n = left < c->n - done ? (uint32_t)left : c->n - done;
                if (present[segment->tensor]) {
                        ops->update(rule, &scalars[segment->tensor], n, planes,
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

/* The place for a chunk's old values of plane k. */
static float *old_at(const struct state *s, const struct plan_chunk *c, uint32_t k)
{
        const struct plan_shard *shard = &s->plan->shards[c->group];

        assert(shard->old != UINT64_MAX);
        return s->in->old + shard->old + k * shard->moment_count + (c->moment - shard->moment);
}

static struct undo_values update_chunk(struct state *state, uint32_t slot, uint32_t chunk,
                                       uint64_t version, const uint8_t *present,
                                       const struct device_ops *ops,
                                       const struct update_scalars *scalars, bool ahead)
{
        const struct plan_chunk c = plan_chunk(state->plan, chunk);
        struct update_undo undo = arrays(state, begin(state, slot, chunk, version));
        struct undo_values old;

        assert(state_chunk_version(state, chunk) == version - 1);
        crash_point(CRASH_UPDATE_VALID);
        update(state, &c, present, ops, scalars, undo);
        for (uint32_t k = 0; ahead && k <= state->plan->shards[c.group].n_moments; k++)
                memcpy(old_at(state, &c, k), undo.old[k], c.n * sizeof(float));
        tables_set_chunk_version(state, chunk, version);
        crash_point(ahead ? CRASH_AHEAD_KEPT : CRASH_UPDATE_COPIED);
        hold(state, slot, 0);
        memcpy(old.planes, undo.old, sizeof(old.planes));
        return old;
}

struct undo_values undo_update(struct state *state, uint32_t slot, uint32_t chunk, uint64_t version,
                               const struct device_ops *ops, const struct update_scalars *scalars)
{
        assert_decided(state, chunk, version);
        return update_chunk(state, slot, chunk, version, state->present, ops, scalars, false);
}

struct undo_values undo_update_ahead(struct state *state, uint32_t slot, uint32_t chunk,
                                     uint64_t version, const uint8_t *present,
                                     const struct device_ops *ops,
                                     const struct update_scalars *scalars)
{
        return update_chunk(state, slot, chunk, version, present, ops, scalars, true);
}

/* Copies part of a shard to the place for its old values, or back; c: the part, as a chunk. */
static void copy_old(const struct state *s, const struct plan_chunk *c, bool back)
{
        float *planes[UPDATE_PLANES] = { NULL };
        uint32_t n = chunk_planes(s, c, planes);

        for (uint32_t k = 0; k < n; k++) {
                float *old = old_at(s, c, k), *to = back ? planes[k] : old;
                const float *from = back ? old : planes[k];

                if (s->in->planes)
                        place_ops()->copy(to, from, c->n * sizeof(float));
                else
                        memcpy(to, from, c->n * sizeof(float));
        }
}

static void go_back(struct state *state, uint32_t chunk, uint64_t version)
{
        const struct plan_chunk c = plan_chunk(state->plan, chunk);

        assert(state_chunk_version(state, chunk) == version + 1);
        copy_old(state, &c, true);
        crash_point(CRASH_AHEAD_UNDONE);
        tables_set_chunk_version(state, chunk, version);
}

void undo_ahead(struct state *state, uint32_t slot, uint32_t chunk, uint64_t version)
{
        begin(state, slot, chunk, version);
        go_back(state, chunk, version);
        hold(state, slot, 0);
}

static void copy_old_shard(const struct state *state, uint32_t group, bool back)
{
        const struct plan_shard *shard = &state->plan->shards[group];
        const struct plan_segment *s = &state->plan->segments[shard->first_segment];

        for (uint32_t i = 0; i < shard->n_segments; i++, s++)
                for (uint64_t done = 0; s->moment != UINT64_MAX && done < s->count;) {
                        uint64_t left = s->count - done;
                        struct plan_chunk part = { .group = group,
                                                   .n = left < KEEP_MOST ? (uint32_t)left
                                                                         : KEEP_MOST,
                                                   .master = s->master + done,
                                                   .moment = s->moment + done };

                        copy_old(state, &part, back);
                        done += part.n;
                }
}

void undo_keep(const struct state *state, uint32_t group)
{
        copy_old_shard(state, group, false);
}

void undo_back(struct state *state, uint32_t group, uint64_t version)
{
        /* an update ahead of its decision leaves no shard mixed */
        assert(state_chunks(state, group) == 1);
        copy_old_shard(state, group, true);
        crash_point(CRASH_AHEAD_UNDONE);
        state_updated(state, group, version);
}

void undo_skip(struct state *state, uint32_t chunk, uint64_t version)
{
        assert(state_chunk_version(state, chunk) == version - 1);
        tables_set_chunk_version(state, chunk, version);
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
                go_back(s, to, s->record->version);
        hold(s, slot, 0);
}

/* Puts all chunks back that are ahead: the record has not decided to update. */
static void put_back_ahead(struct state *s)
{
        uint64_t version = s->record->version;

        for (uint32_t g = 0; g < s->plan->n_groups; g++)
                for (uint32_t i = 0; i < state_chunks(s, g); i++) {
                        uint32_t chunk = s->plan->shards[g].first_chunk + i;

                        if (state_chunk_version(s, chunk) == version)
                                continue;
                        if (s->in->planes)
                                undo_back(s, g, version);
                        else
                                go_back(s, chunk, version);
                }
}

static bool is_updating(const struct state *s)
{
        return s->record->phase == ATTEMPT_DECIDED && s->record->commit;
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
                put_back_ahead(state);
        return n;
}

static bool slot_is_wrong(const struct state *s, uint32_t slot)
{
        const struct undo_slot *at = slot_at(s, slot);
        uint64_t chunk = held(s, slot);

        if (chunk == 0)
                return false;
        return s->in->planes || s->in->lost || chunk > s->plan->n_chunks ||
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
