/*
 * The redo slots; see redo.h for the order and what it guarantees.
 *
 * A slot that is valid at a crash is copied home again, also if its chunk has the new
 * version already: it still holds the chunk's newest values, since no chunk changes
 * twice before the record does, and the record does not before all slots are free.
 *
 * A kill takes effect between two instructions, and what was stored before it reaches the
 * file's memory: what has to be prevented is only that the compiler moves stores.
 */
#include "daemon/store/redo.h"

#include <assert.h>
#include <string.h>

#include "daemon/base/crash.h"
#include "daemon/store/file.h"
#include "daemon/store/seal.h"

static struct redo_slot *slot_at(const struct state *s, uint32_t slot)
{
        assert(slot < s->n_redo);
        return (void *)((uint8_t *)s->redo + slot * file_redo_stride(s->plan->chunk_elements));
}

static struct redo_view view(const struct state *s, struct redo_slot *slot)
{
        size_t n = s->plan->chunk_elements;

        return (struct redo_view){ slot->values, slot->values + n, slot->values + 2 * n };
}

/* 0: free; 1 + a chunk: it holds that one's newest values; UINT64_MAX: damaged. */
static uint64_t held(const struct state *s, uint32_t slot)
{
        return seal_open(SEAL_REDO, slot,
                         __atomic_load_n(&slot_at(s, slot)->chunk, __ATOMIC_ACQUIRE));
}

/* No store moves over this one, in either direction. */
static void hold(struct state *s, uint32_t slot, uint64_t held)
{
        __atomic_store_n(&slot_at(s, slot)->chunk, seal(SEAL_REDO, slot, held), __ATOMIC_RELEASE);
        __atomic_signal_fence(__ATOMIC_SEQ_CST);
}

void redo_init(struct state *state)
{
        for (uint32_t i = 0; i < state->n_redo; i++)
                hold(state, i, 0);
}

struct redo_view redo_begin(struct state *state, uint32_t slot, uint32_t chunk)
{
        struct redo_slot *s = slot_at(state, slot);

        assert(chunk < state->plan->n_chunks && held(state, slot) == 0 && !state->planes);
        return view(state, s);
}

static void copy_home(struct state *s, uint32_t slot, uint32_t to, uint64_t version)
{
        const struct plan_chunk *chunk = &s->plan->chunks[to];
        struct redo_view from = view(s, slot_at(s, slot));
        size_t bytes = chunk->n * sizeof(float);

        memcpy(s->master + chunk->master, from.p, bytes);
        crash_point(CRASH_UPDATE_TORN);
        memcpy(s->exp_avg + chunk->moment, from.m, bytes);
        memcpy(s->exp_avg_sq + chunk->moment, from.v, bytes);
        tables_set_chunk_version(s, to, version);
        crash_point(CRASH_UPDATE_COPIED);
        hold(s, slot, 0);
}

static void assert_decided(const struct state *s, uint32_t chunk, uint64_t version)
{
        assert(chunk < s->plan->n_chunks);
        assert(s->record->phase == ATTEMPT_DECIDED && s->record->commit);
        assert(version == s->record->version + 1 && state_chunk_version(s, chunk) == version - 1);
}

void redo_commit(struct state *state, uint32_t slot, uint32_t chunk, uint64_t version)
{
        struct redo_slot *s = slot_at(state, slot);

        assert_decided(state, chunk, version);
        s->version = seal(SEAL_REDO_VERSION, slot, version);
        hold(state, slot, (uint64_t)chunk + 1);
        crash_point(CRASH_UPDATE_VALID);
        copy_home(state, slot, chunk, version);
}

void redo_keep(struct state *state, uint32_t chunk, uint64_t version)
{
        assert_decided(state, chunk, version);
        tables_set_chunk_version(state, chunk, version);
}

uint32_t redo_replay(struct state *state)
{
        uint32_t n = 0;

        for (uint32_t i = 0; i < state->n_redo; i++) {
                uint64_t chunk = held(state, i);

                if (chunk == 0)
                        continue;
                copy_home(state, i, (uint32_t)(chunk - 1), state->record->version + 1);
                n++;
        }
        return n;
}

static bool slot_is_wrong(const struct state *s, uint32_t slot, bool updating)
{
        uint64_t chunk = held(s, slot);

        if (chunk == 0)
                return false;
        return !updating || s->planes || s->lost || chunk > s->plan->n_chunks ||
               seal_open(SEAL_REDO_VERSION, slot, slot_at(s, slot)->version) !=
                       s->record->version + 1;
}

int redo_check(const struct state *state, struct fault *fault)
{
        const struct state_record *r = state->record;
        bool updating = r->phase == ATTEMPT_DECIDED && r->commit;

        for (uint32_t c = 0; c < state->plan->n_chunks; c++) {
                uint64_t ahead = state_chunk_version(state, c) - r->version;

                if (ahead > 1 || (ahead == 1 && !updating))
                        return file_damaged(fault, state->file, "its chunk table is damaged");
        }
        for (uint32_t i = 0; i < state->n_redo; i++)
                if (slot_is_wrong(state, i, updating))
                        return file_damaged(fault, state->file, "a redo slot is damaged");
        return 0;
}
