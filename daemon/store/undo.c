/*
 * The undo slots; see undo.h for the order and what it guarantees.
 *
 * A slot that is held after a crash belongs to a chunk that was being changed.  If that chunk
 * has its new version the process died between the last two stores, and there is nothing to undo.
 *
 * A kill takes effect between two instructions, and what was stored before it reaches the
 * file's memory: what has to be prevented is only that the compiler moves stores.
 */
#include "daemon/store/undo.h"

#include <assert.h>
#include <string.h>

#include "daemon/base/crash.h"
#include "daemon/store/file.h"
#include "daemon/store/seal.h"

static struct undo_slot *slot_at(const struct state *s, uint32_t slot)
{
        assert(slot < s->n_undo);
        return (void *)((uint8_t *)s->undo + slot * file_undo_stride(s->plan->chunk_elements));
}

static struct adamw_undo arrays(const struct state *s, struct undo_slot *slot)
{
        size_t n = s->plan->chunk_elements;

        return (struct adamw_undo){ .p = slot->values,
                                    .m = slot->values + n,
                                    .v = slot->values + 2 * n,
                                    .kept = &slot->kept };
}

/* 0: free; 1 + a chunk: that one may have changed; UINT64_MAX: damaged. */
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
        for (uint32_t i = 0; i < state->n_undo; i++)
                hold(state, i, 0);
}

static void assert_decided(const struct state *s, uint32_t chunk, uint64_t version)
{
        assert(chunk < s->plan->n_chunks && version == s->record->version + 1);
        assert(s->record->phase == ATTEMPT_DECIDED && s->record->commit);
        assert(state_chunk_version(s, chunk) == version - 1);
}

static struct adamw_undo begin(struct state *state, uint32_t slot, uint32_t chunk, uint64_t version)
{
        struct undo_slot *s = slot_at(state, slot);

        assert_decided(state, chunk, version);
        assert(held(state, slot) == 0 && !state->planes);
        s->version = seal(SEAL_UNDO_VERSION, slot, version);
        s->kept = undo_mark(0);
        hold(state, slot, (uint64_t)chunk + 1);
        crash_point(CRASH_UPDATE_VALID);
        return arrays(state, s);
}

/* Tensor by tensor; the slot gets old values of all of the chunk, for kept elements have no gap. */
static void update(struct state *s, const struct plan_chunk *c, const struct device_ops *ops,
                   const struct adamw_scalars *scalars, struct adamw_undo undo)
{
        const struct plan_segment *segment = &s->plan->segments[c->first_segment];

        for (uint32_t done = 0, n; done < c->n; done += n, segment++) {
                uint64_t left = segment->in_group + segment->count - (c->in_group + done);
                float *p = s->master + c->master + done, *m = s->exp_avg + c->moment + done;
                float *v = s->exp_avg_sq + c->moment + done;

                n = left < c->n - done ? (uint32_t)left : c->n - done;
                if (s->present[segment->tensor]) {
                        ops->adamw(&scalars[segment->tensor], n, p, m, v,
                                   s->grad + c->moment + done, &undo);
                        crash_point(CRASH_UPDATE_TORN);
                } else {
                        memcpy(undo.p, p, n * sizeof(float));
                        memcpy(undo.m, m, n * sizeof(float));
                        memcpy(undo.v, v, n * sizeof(float));
                }
                undo = undo_behind(undo, n);
        }
}

struct undo_values undo_update(struct state *state, uint32_t slot, uint32_t chunk, uint64_t version,
                               const struct device_ops *ops, const struct adamw_scalars *scalars)
{
        struct adamw_undo undo = begin(state, slot, chunk, version);

        update(state, &state->plan->chunks[chunk], ops, scalars, undo);
        tables_set_chunk_version(state, chunk, version);
        crash_point(CRASH_UPDATE_COPIED);
        hold(state, slot, 0);
        return (struct undo_values){ undo.p, undo.m, undo.v };
}

void undo_skip(struct state *state, uint32_t chunk, uint64_t version)
{
        assert_decided(state, chunk, version);
        tables_set_chunk_version(state, chunk, version);
}

static void put_back(struct state *s, uint32_t slot, uint32_t to)
{
        const struct plan_chunk *chunk = &s->plan->chunks[to];
        struct adamw_undo from = arrays(s, slot_at(s, slot));
        size_t bytes = undo_kept(*from.kept) * sizeof(float);

        if (state_chunk_version(s, to) == s->record->version) {
                memcpy(s->master + chunk->master, from.p, bytes);
                memcpy(s->exp_avg + chunk->moment, from.m, bytes);
                memcpy(s->exp_avg_sq + chunk->moment, from.v, bytes);
        }
        hold(s, slot, 0);
}

uint32_t undo_all(struct state *state)
{
        uint32_t n = 0;

        for (uint32_t i = 0; i < state->n_undo; i++) {
                uint64_t chunk = held(state, i);

                if (chunk == 0)
                        continue;
                put_back(state, i, (uint32_t)(chunk - 1));
                n++;
        }
        return n;
}

static bool slot_is_wrong(const struct state *s, uint32_t slot, bool updating)
{
        const struct undo_slot *at = slot_at(s, slot);
        uint64_t chunk = held(s, slot);

        if (chunk == 0)
                return false;
        return !updating || s->planes || s->lost || chunk > s->plan->n_chunks ||
               undo_kept(at->kept) > s->plan->chunks[chunk - 1].n ||
               seal_open(SEAL_UNDO_VERSION, slot, at->version) != s->record->version + 1;
}

int undo_check(const struct state *state, struct fault *fault)
{
        const struct state_record *r = state->record;
        bool updating = r->phase == ATTEMPT_DECIDED && r->commit;

        for (uint32_t c = 0; c < state->plan->n_chunks; c++) {
                uint64_t ahead = state_chunk_version(state, c) - r->version;

                if (ahead > 1 || (ahead == 1 && !updating))
                        return file_damaged(fault, state->file, "its chunk table is damaged");
        }
        for (uint32_t i = 0; i < state->n_undo; i++)
                if (slot_is_wrong(state, i, updating))
                        return file_damaged(fault, state->file, "an undo slot is damaged");
        return 0;
}
