/*
 * The step record and the tensor steps, consistent at every instruction.
 *
 * There are two copies of the record, and each says whether it counts.  A change goes to the copy
 * that does not count, with the next sequence number and a checksum over all of it.  One store then
 * publishes that copy by marking it as counting, and another voids the old copy.  A process killed
 * before the first store leaves the old copy as the only one that counts.  A process killed between
 * the two stores leaves two whole copies that count.  Then the higher sequence number wins, and the
 * next change begins by voiding the other copy.
 *
 * So a copy that counts is never half-written.  If its checksum is wrong it is damaged, and the
 * file is refused: the other copy would be a decision or a step too old.  The contents of a copy
 * that does not count mean nothing.
 *
 * There are two tables of tensor steps, and the record says which one counts.  state_finish()
 * writes the other table in full, then publishes one record that has the new version, is open and
 * names that table.  If the process is killed before that, state_finish() starts from the same
 * steps again; if it is killed after that, the attempt is over.  Presence marks work the same way:
 * state_prepare() writes the table that does not count, then publishes the record that names it.
 *
 * The fences keep the stores of this thread in the order written here.  The death of the process
 * keeps that order too, because the stores go to memory that outlives the process.
 */
#include "daemon/store/file.h"

#include <assert.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#include "daemon/floor/base/crash.h"
#include "daemon/store/seal.h"
#include "proto/cleanup.h"

static enum copy_use use_of(const struct state *s, uint32_t i)
{
        return (enum copy_use)seal_open(SEAL_COPY, i, s->in->copies[i]->use);
}

/* No store moves over this one, in either direction. */
static void set_use(struct state *s, uint32_t i, enum copy_use use)
{
        atomic_thread_fence(memory_order_seq_cst);
        __atomic_store_n(&s->in->copies[i]->use, seal(SEAL_COPY, i, use), __ATOMIC_RELEASE);
        atomic_thread_fence(memory_order_seq_cst);
}

void record_hash(const struct record_copy *c, uint8_t ret[static FILE_HASH])
{
        size_t end = offsetof(struct record_copy, record.sets) +
                     c->record.n_sets * sizeof(struct hyper_set);

        file_hash(ret, &c->sequence, end - offsetof(struct record_copy, sequence));
}

static void publish_decided(struct state *s, const struct state_record *record, uint32_t side,
                            uint32_t present_side, uint32_t decided_s)
{
        const struct record_copy *now = record_current(s);
        uint32_t other = now == s->in->copies[0];
        struct record_copy *next = s->in->copies[other];

        set_use(s, other, COPY_VOID);
        next->sequence = now->sequence + 1;
        next->arithmetic = FILE_ARITHMETIC;
        next->side = side;
        next->present_side = present_side;
        next->decided_s = decided_s;
        next->record = *record;
        crash_point(CRASH_RECORD_TORN);
        record_hash(next, next->hash);
        set_use(s, other, COPY_COUNTS);
        crash_point(CRASH_RECORD_BOTH);
        set_use(s, !other, COPY_VOID);
        s->record = &next->record;
}

static void publish(struct state *s, const struct state_record *record, uint32_t side,
                    uint32_t present_side)
{
        publish_decided(s, record, side, present_side, record_current(s)->decided_s);
}

void record_init(struct state *state)
{
        struct record_copy *copy = state->in->copies[0];

        copy->arithmetic = FILE_ARITHMETIC;
        record_hash(copy, copy->hash);
        set_use(state, 0, COPY_COUNTS);
        set_use(state, 1, COPY_VOID);
        state->record = &copy->record;
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

        if (c->side > 1 || c->present_side > 1 || r->phase > ATTEMPT_DECIDED || r->commit > 1 ||
            r->finite > 1 || r->version > STATE_STEP_MAX || r->decided_attempt > r->attempt ||
            (r->phase == ATTEMPT_DECIDED && r->decided_attempt != r->attempt) ||
            (r->phase != ATTEMPT_DECIDED && r->attempt && r->decided_attempt == r->attempt))
                return "its step record makes no sense";
        for (uint32_t i = 0; i < r->n_sets; i++)
                if (!hyper_known(&r->sets[i]))
                        return "its last step used an optimizer that this zerod does not have";
        if (r->phase != ATTEMPT_OPEN && c->arithmetic != FILE_ARITHMETIC)
                return "another version of zerod was in the middle of a step: run that version "
                       "once more to finish the step";
        return NULL;
}

/* The copy that counts; NULL, or a flaw, if the record cannot be used. */
static const struct record_copy *choose(const struct state *s, const char **ret_flaw)
{
        const struct record_copy *best = NULL;

        for (uint32_t i = 0; i < 2; i++) {
                const struct record_copy *c = s->in->copies[i];
                enum copy_use use = use_of(s, i);

                *ret_flaw = "its step record is damaged";
                if (use > COPY_COUNTS || (use == COPY_COUNTS && !intact(c)))
                        return NULL;
                if (use == COPY_COUNTS && (!best || c->sequence > best->sequence))
                        best = c;
        }
        *ret_flaw = best ? record_flaw(best) : "it has no step record";
        return best;
}

int record_load(struct state *state, struct fault *fault)
{
        const char *flaw = NULL;
        const struct record_copy *copy = choose(state, &flaw);

        if (flaw)
                return file_damaged(fault, state->in->file, flaw);
        state->record = &copy->record;
        return 0;
}

/* ---- changes ---- */

static void check_change(const struct state *s, const struct state_record *r)
{
        assert(r->version == s->record->version && r->attempt == s->record->attempt);
        assert(r->n_sets <= ZERO_SET_MAX && r->finite <= 1 && r->commit <= 1);
}

void state_prepare(struct state *state, const struct state_record *vote)
{
        struct state_record r = *vote;

        check_change(state, vote);
        assert(state->record->phase != ATTEMPT_DECIDED);
        DECISION_COPY(&r, state->record); /* a vote leaves it as it is */
        r.decided_attempt = state->record->decided_attempt;
        r.phase = ATTEMPT_PREPARED;
        publish(state, &r, record_current(state)->side, tables_write_present(state));
}

uint32_t state_decided_s(const struct state *state)
{
        return record_current(state)->decided_s;
}

void state_decide(struct state *state, const struct state_record *decision, uint32_t now_s)
{
        const struct record_copy *now = record_current(state);
        struct state_record r = *decision;

        check_change(state, decision);
        assert(state->record->phase == ATTEMPT_PREPARED);
        assert(r.version < STATE_STEP_MAX);
        r.phase = ATTEMPT_DECIDED;
        r.decided_attempt = r.attempt;
        publish_decided(state, &r, now->side, now->present_side,
                        state_keeps_times(state) ? now_s : 0);
}

static void clear_present(struct state *s)
{
        memset(s->present, 0, s->n_tensors);
}

/* The ends of each shard: all chunks would keep the loop for milliseconds. */
static void assert_updated(const struct state *s)
{
        for (uint32_t g = 0; g < s->plan->n_groups; g++) {
                uint32_t first = s->plan->shards[g].first_chunk, n = state_chunks(s, g);

                assert(n == 0 || state_chunk_version(s, first) == s->record->version + 1);
                assert(n == 0 || state_chunk_version(s, first + n - 1) == s->record->version + 1);
        }
}

void state_finish(struct state *state)
{
        const struct record_copy *now = record_current(state);
        struct state_record r = *state->record;
        uint32_t steps = now->side;

        assert(r.phase == ATTEMPT_DECIDED);
        if (r.commit) {
                assert_updated(state);
                steps = tables_raise_steps(state);
                r.version++;
        }
        r.attempt++;
        r.phase = ATTEMPT_OPEN;
        crash_point(CRASH_RECORD_STEPS);
        publish(state, &r, steps, now->present_side);
        crash_point(CRASH_RECORD_FINISHED);
        tables_take_steps(state);
        clear_present(state);
}

void state_abort(struct state *state, uint64_t next_attempt)
{
        const struct record_copy *now = record_current(state);
        struct state_record r = *state->record;

        assert(r.phase != ATTEMPT_DECIDED && next_attempt > r.attempt);
        r.attempt = next_attempt;
        r.phase = ATTEMPT_OPEN;
        publish(state, &r, now->side, now->present_side);
        clear_present(state);
}

void state_restore(struct state *state, const struct state_record *record)
{
        const struct record_copy *now = record_current(state);

        assert(record->phase == ATTEMPT_OPEN && record->n_sets == 0);
        tables_set_versions(state, record->version);
        publish(state, record, now->side, now->present_side);
        clear_present(state);
}
