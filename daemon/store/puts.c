/*
 * A fingerprint of the puts applied to a state: each put adds to it.
 *
 * What a put adds follows from its `what` alone, so the order of puts makes no difference.  While
 * puts run the file counts them.  If the process dies then, the planes may or may not have those
 * puts, and the state gets a random fingerprint when it is opened.
 *
 * The file has the fingerprint and the count in two words, and one store changes each.  The
 * fingerprint changes before the count falls: a process that dies in between counts as one that
 * died in the put.
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

/* Every bit of the result depends on every bit of n (the finalizer of MurmurHash3). */
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
