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

static uint32_t is_valid(const struct redo_slot *slot)
{
        return __atomic_load_n(&slot->valid, __ATOMIC_ACQUIRE);
}

/* No store moves over this one, in either direction. */
static void set_valid(struct redo_slot *slot, uint32_t valid)
{
        __atomic_store_n(&slot->valid, valid, __ATOMIC_RELEASE);
        __atomic_signal_fence(__ATOMIC_SEQ_CST);
}

static uint64_t version_of(const struct state *s, uint32_t chunk)
{
        return __atomic_load_n(&s->chunk_version[chunk], __ATOMIC_ACQUIRE);
}

struct redo_view redo_begin(struct state *state, uint32_t slot)
{
        struct redo_slot *s = slot_at(state, slot);

        assert(!is_valid(s));
        return view(state, s);
}

static void copy_home(struct state *s, struct redo_slot *slot)
{
        const struct plan_chunk *chunk = &s->plan->chunks[slot->chunk];
        struct redo_view from = view(s, slot);
        size_t bytes = chunk->n * sizeof(float);

        memcpy(s->master + chunk->master, from.p, bytes);
        crash_point(CRASH_UPDATE_TORN);
        memcpy(s->exp_avg + chunk->moment, from.m, bytes);
        memcpy(s->exp_avg_sq + chunk->moment, from.v, bytes);
        __atomic_store_n(&s->chunk_version[slot->chunk], slot->version, __ATOMIC_RELEASE);
        crash_point(CRASH_UPDATE_COPIED);
        set_valid(slot, 0);
}

static void assert_decided(const struct state *s, uint32_t chunk, uint64_t version)
{
        assert(chunk < s->plan->n_chunks);
        assert(s->record->phase == ATTEMPT_DECIDED && s->record->commit);
        assert(version == s->record->version + 1 && version_of(s, chunk) == version - 1);
}

void redo_commit(struct state *state, uint32_t slot, uint32_t chunk, uint64_t version)
{
        struct redo_slot *s = slot_at(state, slot);

        assert_decided(state, chunk, version);
        s->chunk = chunk;
        s->version = version;
        set_valid(s, 1);
        crash_point(CRASH_UPDATE_VALID);
        copy_home(state, s);
}

void redo_keep(struct state *state, uint32_t chunk, uint64_t version)
{
        assert_decided(state, chunk, version);
        __atomic_store_n(&state->chunk_version[chunk], version, __ATOMIC_RELEASE);
}

uint32_t redo_replay(struct state *state)
{
        uint32_t n = 0;

        for (uint32_t i = 0; i < state->n_redo; i++) {
                struct redo_slot *slot = slot_at(state, i);

                if (!is_valid(slot))
                        continue;
                copy_home(state, slot);
                n++;
        }
        return n;
}

int redo_check(const struct state *state, struct fault *fault)
{
        const struct state_record *r = state->record;
        bool updating = r->phase == ATTEMPT_DECIDED && r->commit;

        for (uint32_t c = 0; c < state->plan->n_chunks; c++) {
                uint64_t ahead = version_of(state, c) - r->version;

                if (ahead > 1 || (ahead == 1 && !updating))
                        return file_damaged(fault, state->file, "a chunk's version is wrong");
        }
        for (uint32_t i = 0; i < state->n_redo; i++) {
                const struct redo_slot *slot = slot_at(state, i);
                uint32_t valid = is_valid(slot);

                if (valid > 1 || (valid && (!updating || slot->chunk >= state->plan->n_chunks ||
                                            slot->version != r->version + 1)))
                        return file_damaged(fault, state->file, "a redo slot is wrong");
        }
        return 0;
}
