/*
 * Which puts of clients are in a state: a number that each of them adds to.
 *
 * What a put adds follows from its name alone, so the order does not count.  While one is under way
 * the file says so; a process that dies then leaves planes of which nobody knows whether the
 * put is in them, and the state takes a number at random when it is opened.
 *
 * Two words, each changed by one store.  The number is changed before the mark goes: whoever
 * dies in between is taken for one that died in the put.
 */
#include <assert.h>
#include <sodium.h>

#include "daemon/store/file.h"
#include "daemon/store/seal.h"

enum { UNDER_WAY, NUMBER };

_Static_assert(STATE_PUTS_MAX == (UINT64_C(1) << SEAL_NUMBER_BITS) - 1, "a word holds it");

static void write_word(struct state *s, uint32_t word, uint64_t number)
{
        __atomic_store_n(&s->in->puts_words[word], seal(SEAL_PUTS, word, number), __ATOMIC_SEQ_CST);
}

static void set_number(struct state *s, uint64_t number)
{
        s->puts = number;
        write_word(s, NUMBER, number);
}

/* Every bit of what comes out depends on every one of what goes in (the finalizer of MurmurHash3).
 */
static uint64_t mix(uint64_t n)
{
        n = (n ^ n >> 33) * UINT64_C(0xff51afd7ed558ccd);
        n = (n ^ n >> 33) * UINT64_C(0xc4ceb9fe1a85ec53);
        return n ^ n >> 33;
}

void state_put_begin(struct state *state)
{
        write_word(state, UNDER_WAY, ++state->in->putting);
}

void state_put_end(struct state *state, uint64_t what)
{
        assert(state->in->putting > 0);
        set_number(state, (state->puts + mix(what)) & STATE_PUTS_MAX);
        write_word(state, UNDER_WAY, --state->in->putting);
}

bool state_putting(const struct state *state)
{
        return state->in->putting > 0;
}

void state_set_puts(struct state *state, uint64_t puts)
{
        assert(state->in->putting == 0 && puts <= STATE_PUTS_MAX);
        set_number(state, puts);
}

void puts_init(struct state *state)
{
        write_word(state, UNDER_WAY, 0);
        set_number(state, 0);
}

int puts_load(struct state *state, struct fault *fault)
{
        state->puts = seal_open(SEAL_PUTS, NUMBER, state->in->puts_words[NUMBER]);
        if (state->puts == UINT64_MAX ||
            seal_open(SEAL_PUTS, UNDER_WAY, state->in->puts_words[UNDER_WAY]) == UINT64_MAX)
                return file_damaged(fault, state->in->file, "its number of puts is damaged");
        return 0;
}

void puts_settle(struct state *state)
{
        uint64_t number;

        if (seal_open(SEAL_PUTS, UNDER_WAY, state->in->puts_words[UNDER_WAY]) == 0)
                return;
        randombytes_buf(&number, sizeof(number));
        set_number(state, number & STATE_PUTS_MAX);
        write_word(state, UNDER_WAY, 0);
}
