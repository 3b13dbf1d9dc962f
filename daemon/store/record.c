/*
 * The step record and the tensor steps, consistent at every instruction.
 *
 * There are two copies of the record.  A change is written to the one that does not
 * count, with the next sequence number and then a checksum over all; it counts from the
 * instruction at which the checksum is complete.  A process killed before leaves the
 * other copy the newest valid one.
 *
 * There are two arrays of tensor steps, and the record says which one counts.
 * state_finish() writes the other one in full, then publishes one record that has the
 * new version, is open and names that array.  Killed before that, it starts from the same
 * steps again; killed after, the attempt is over.  Presence marks are read before
 * and cleared after; for an open attempt state_open() clears them once more.
 *
 * The fences order the stores of this thread as written here: a process's death keeps
 * that order, as all of them go to memory that outlives it.
 */
#include "daemon/store/file.h"

#include <assert.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#include "daemon/base/crash.h"

static const struct record_copy *current(const struct state *s)
{
        for (int i = 0; i < 2; i++)
                if (s->record == &s->copies[i]->record)
                        return s->copies[i];
        assert(!"the record is one of the copies");
        return NULL;
}

static void point_to(struct state *s, const struct record_copy *copy)
{
        s->record = &copy->record;
        s->tensor_step = s->steps[copy->side];
}

void record_hash(const struct record_copy *c, uint8_t ret[static FILE_HASH])
{
        size_t end = offsetof(struct record_copy, record.sets) +
                     c->record.n_sets * sizeof(struct state_set);

        file_hash(ret, &c->sequence, end - offsetof(struct record_copy, sequence));
}

static void publish(struct state *s, const struct state_record *record, uint32_t side)
{
        const struct record_copy *now = current(s);
        struct record_copy *next = s->copies[now == s->copies[0]];

        atomic_thread_fence(memory_order_seq_cst);
        next->sequence = now->sequence + 1;
        next->arithmetic = FILE_ARITHMETIC;
        next->side = side;
        next->record = *record;
        crash_point(CRASH_RECORD_TORN);
        record_hash(next, next->hash);
        atomic_thread_fence(memory_order_seq_cst);
        point_to(s, next);
}

static uint32_t side(const struct state *s)
{
        return current(s)->side;
}

void record_init(struct state *state)
{
        struct record_copy *copy = state->copies[0];

        copy->arithmetic = FILE_ARITHMETIC;
        record_hash(copy, copy->hash);
        point_to(state, copy);
}

/* ---- loading ---- */

static bool intact(const struct record_copy *c)
{
        uint8_t hash[FILE_HASH];

        if (c->record.n_sets > ZERO_SET_MAX)
                return false;
        record_hash(c, hash);
        return memcmp(hash, c->hash, FILE_HASH) == 0;
}

static const char *record_flaw(const struct record_copy *c)
{
        const struct state_record *r = &c->record;

        if (c->side > 1 || r->phase > ATTEMPT_DECIDED || r->commit > 1)
                return "its record makes no sense";
        if (r->phase != ATTEMPT_OPEN && c->arithmetic != FILE_ARITHMETIC)
                return "another version of zerod was in the middle of a step: let that one "
                       "finish it";
        return NULL;
}

int record_load(struct state *state, struct fault *fault)
{
        const struct record_copy *best = NULL;

        for (int i = 0; i < 2; i++) {
                const struct record_copy *c = state->copies[i];

                if (intact(c) && (!best || c->sequence > best->sequence))
                        best = c;
        }
        if (!best)
                return file_damaged(fault, state->file, "no copy of its step record is intact");
        const char *flaw = record_flaw(best);
        if (flaw)
                return file_damaged(fault, state->file, flaw);
        point_to(state, best);
        return 0;
}

/* ---- changes ---- */

static void set_phase(struct state *s, const struct state_record *record, enum attempt_phase phase)
{
        struct state_record r = *record;

        assert(r.version == s->record->version && r.attempt == s->record->attempt);
        assert(r.n_sets <= ZERO_SET_MAX);
        r.phase = phase;
        publish(s, &r, side(s));
}

void state_prepare(struct state *state, const struct state_record *vote)
{
        assert(state->record->phase != ATTEMPT_DECIDED);
        set_phase(state, vote, ATTEMPT_PREPARED);
}

void state_decide(struct state *state, const struct state_record *decision)
{
        assert(state->record->phase == ATTEMPT_PREPARED && decision->commit <= 1);
        set_phase(state, decision, ATTEMPT_DECIDED);
}

static void clear_present(struct state *s)
{
        memset(s->present, 0, s->n_tensors);
}

/* The steps after the commit, in the array that does not count yet. */
static uint32_t raise_steps(struct state *s)
{
        uint32_t other = !side(s);

        for (uint32_t t = 0; t < s->n_tensors; t++)
                s->steps[other][t] = s->tensor_step[t] + (s->present[t] != 0);
        return other;
}

static void assert_updated(const struct state *s)
{
        for (uint32_t c = 0; c < s->plan->n_chunks; c++)
                assert(__atomic_load_n(&s->chunk_version[c], __ATOMIC_ACQUIRE) ==
                       s->record->version + 1);
}

void state_finish(struct state *state)
{
        struct state_record r = *state->record;
        uint32_t steps = side(state);

        assert(r.phase == ATTEMPT_DECIDED);
        if (r.commit) {
                assert_updated(state);
                steps = raise_steps(state);
                r.version++;
        }
        r.attempt++;
        r.phase = ATTEMPT_OPEN;
        crash_point(CRASH_RECORD_STEPS);
        publish(state, &r, steps);
        crash_point(CRASH_RECORD_FINISHED);
        clear_present(state);
}

void state_abort(struct state *state, uint64_t next_attempt)
{
        struct state_record r = *state->record;

        assert(r.phase != ATTEMPT_DECIDED && next_attempt > r.attempt);
        r.attempt = next_attempt;
        r.phase = ATTEMPT_OPEN;
        publish(state, &r, side(state));
        clear_present(state);
}
