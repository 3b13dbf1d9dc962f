/*
 * The tables of a state: tensor steps, presence marks and sets, chunk versions.  The file has them
 * as words (seal.h).
 *
 * Rule: one store changes a word, so a killed process leaves it old or new.  All steps of an
 * attempt change together, and so do all presence marks.  They are written to the side that does
 * not count, and the record that names that side makes them count (record.c).
 *
 * The state keeps working copies of tensor steps and sets in its own memory.  A put writes to both.
 * Steps are read from the file once the record has named their side.
 */
#include "daemon/store/file.h"
#include "daemon/store/seal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(STATE_STEP_MAX <= ((UINT64_C(1) << SEAL_NUMBER_BITS) - 1) / 2,
               "a step that was put, and a step for every version, fit into a word");

static uint32_t side(const struct state *s)
{
        return record_current(s)->side;
}

static uint64_t *step(const struct state *s)
{
        return s->in->numbers;
}

static uint64_t *set(const struct state *s)
{
        return s->in->numbers + s->n_tensors;
}

static void write_word(uint64_t *words, uint32_t table, uint32_t index, uint64_t number)
{
        __atomic_store_n(&words[index], seal(table, index, number), __ATOMIC_RELEASE);
}

/* ---- lifetime ---- */

int tables_new(struct state *state)
{
        state->in->numbers = calloc(2 * (size_t)state->n_tensors + 1, sizeof(*state->in->numbers));
        state->in->mixed = calloc((size_t)state->plan->n_groups + 1, sizeof(*state->in->mixed));
        state->present = calloc((size_t)state->n_tensors + 1, 1);
        if (!state->in->numbers || !state->in->mixed || !state->present)
                return -ENOMEM;
        state->tensor_step = step(state);
        state->tensor_set = set(state);
        return 0;
}

void tables_free(struct state *state)
{
        free(state->in->numbers);
        free(state->in->mixed);
        free(state->present);
}

void tables_init(struct state *state, const layout *l)
{
        for (uint32_t t = 0; t < state->n_tensors; t++) {
                write_word(state->in->steps[0], SEAL_STEPS, t, 0);
                write_word(state->in->presents[0], SEAL_PRESENTS, t, 0);
                state_put_set(state, t, l->tensors[t].set);
        }
        tables_set_versions(state, 0);
}

/* ---- loading ---- */

static const char *load_tensor(struct state *s, uint32_t t)
{
        const struct record_copy *copy = record_current(s);
        uint32_t marks = copy->present_side;

        step(s)[t] = seal_open(SEAL_STEPS + copy->side, t, s->in->steps[copy->side][t]);
        if (step(s)[t] > STATE_STEP_MAX + s->record->version)
                return "its table of tensor steps is damaged";
        set(s)[t] = seal_open(SEAL_SETS, t, s->in->sets[t]);
        if (set(s)[t] >= ZERO_SET_MAX)
                return "its table of hyperparameter sets is damaged";
        if (s->record->phase == ATTEMPT_OPEN)
                return NULL; /* no marks count */
        uint64_t mark = seal_open(SEAL_PRESENTS + marks, t, s->in->presents[marks][t]);
        if (mark > 1)
                return "its presence marks are damaged";
        s->present[t] = (uint8_t)mark;
        return NULL;
}

int tables_load(struct state *state, struct fault *fault)
{
        for (uint32_t t = 0; t < state->n_tensors; t++) {
                const char *flaw = load_tensor(state, t);

                if (flaw)
                        return file_damaged(fault, state->in->file, flaw);
        }
        return 0;
}

/* ---- tensors ---- */

void state_put_step(struct state *state, uint32_t tensor, uint64_t number)
{
        assert(tensor < state->n_tensors && number <= STATE_STEP_MAX);
        write_word(state->in->steps[side(state)], SEAL_STEPS + side(state), tensor, number);
        step(state)[tensor] = number;
}

void state_put_set(struct state *state, uint32_t tensor, uint64_t number)
{
        assert(tensor < state->n_tensors && number < ZERO_SET_MAX);
        write_word(state->in->sets, SEAL_SETS, tensor, number);
        set(state)[tensor] = number;
}

uint32_t tables_raise_steps(struct state *state)
{
        uint32_t other = !side(state);

        for (uint32_t t = 0; t < state->n_tensors; t++)
                write_word(state->in->steps[other], SEAL_STEPS + other, t,
                           step(state)[t] + (state->present[t] != 0));
        return other;
}

void tables_take_steps(struct state *state)
{
        uint32_t now = side(state);

        for (uint32_t t = 0; t < state->n_tensors; t++) {
                uint64_t number = seal_open(SEAL_STEPS + now, t, state->in->steps[now][t]);

                assert(number != UINT64_MAX);
                step(state)[t] = number;
        }
}

uint32_t tables_write_present(struct state *state)
{
        uint32_t other = !record_current(state)->present_side;

        for (uint32_t t = 0; t < state->n_tensors; t++)
                write_word(state->in->presents[other], SEAL_PRESENTS + other, t,
                           state->present[t] != 0);
        return other;
}

uint32_t state_check_sets(const struct state *state, const struct hyper_set *sets, uint32_t n_sets)
{
        const struct plan *plan = state->plan;

        for (uint32_t i = 0; i < plan->n_segments; i++) {
                const struct plan_segment *s = &plan->segments[i];
                uint64_t set = state->tensor_set[s->tensor];

                if (s->moment != UINT64_MAX &&
                    (set >= n_sets ||
                     (sets && !hyper_fits(&sets[set], plan->runs[s->run].optimizer))))
                        return s->tensor;
        }
        return state->n_tensors;
}

/* ---- chunks ---- */

uint64_t state_chunk_version(const struct state *state, uint32_t chunk)
{
        return seal_open(SEAL_VERSIONS, chunk,
                         __atomic_load_n(&state->in->versions[chunk], __ATOMIC_ACQUIRE));
}

void tables_set_chunk_version(struct state *state, uint32_t chunk, uint64_t version)
{
        write_word(state->in->versions, SEAL_VERSIONS, chunk, version);
}

uint32_t state_chunks(const struct state *state, uint32_t group)
{
        const struct plan_shard *shard = &state->plan->shards[group];

        return shard->n_chunks && shard->unit == UNIT_SHARD && !state->in->mixed[group]
                       ? 1
                       : shard->n_chunks;
}

void tables_set_versions(struct state *state, uint64_t version)
{
        for (uint32_t g = 0; g < state->plan->n_groups; g++)
                for (uint32_t i = 0; i < state_chunks(state, g); i++)
                        tables_set_chunk_version(state, state->plan->shards[g].first_chunk + i,
                                                 version);
}

bool undo_reached(const struct state *state, uint32_t unit, uint64_t version)
{
        return state_chunk_version(state, unit) == version &&
               !state->in->mixed[plan_chunk(state->plan, unit).group];
}

void undo_done(struct state *state, uint32_t unit, uint64_t version)
{
        if (plan_unit(state->plan, unit) == UNIT_SHARD)
                state->in->mixed[plan_chunk(state->plan, unit).group] = false;
        tables_set_chunk_version(state, unit, version);
}

static bool is_mixed(const struct state *s, const struct plan_shard *shard)
{
        uint32_t end = shard->first_chunk + shard->n_chunks;

        for (uint32_t c = shard->first_chunk + 1; c < end; c++)
                if (state_chunk_version(s, c) != state_chunk_version(s, c - 1))
                        return true;
        return false;
}

void tables_join_units(struct state *state)
{
        for (uint32_t g = 0; g < state->plan->n_groups; g++) {
                state->plan->shards[g].unit = UNIT_SHARD;
                state->in->mixed[g] = is_mixed(state, &state->plan->shards[g]);
        }
}

void tables_spread_versions(struct state *state)
{
        for (uint32_t g = 0; g < state->plan->n_groups; g++) {
                const struct plan_shard *shard = &state->plan->shards[g];

                for (uint32_t i = state_chunks(state, g); i < shard->n_chunks; i++)
                        tables_set_chunk_version(state, shard->first_chunk + i,
                                                 state_chunk_version(state, shard->first_chunk));
        }
}
