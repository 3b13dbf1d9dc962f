/* Which puts are in a state. */
#include <criterion/criterion.h>
#include <stdlib.h>

#include "daemon/store/file.h"
#include "daemon/store/seal.h"
#include "fixture.h"

static char *directory;
static struct store *store;
static layout *l;

static void begin(void)
{
        directory = fixture_directory();
        store = fixture_store(directory);
        l = fixture_layout();
}

static void end(void)
{
        layout_free(l);
        store_close(store);
        fixture_remove(directory);
}

TestSuite(puts, .init = begin, .fini = end);

static void put(struct state *s, uint64_t what)
{
        state_put_begin(s);
        state_put_end(s, what);
}

static struct state *again(struct state *s)
{
        layout *stored = NULL;

        state_close(s);
        s = fixture_reopen(store, &stored);
        layout_free(stored);
        return s;
}

Test(puts, are_found_again)
{
        struct state *s = fixture_state(store, "job", l, 1, 0, 1);

        cr_assert_eq(s->puts, 0);
        put(s, 1);
        uint64_t number = s->puts;
        cr_assert_neq(number, 0);
        s = again(s);
        cr_assert_eq(s->puts, number);
        state_close(s);
}

Test(puts, of_two_copies_are_equal_in_any_order)
{
        struct state *a = fixture_state(store, "a", l, 1, 0, 1);
        struct state *b = fixture_state(store, "b", l, 1, 0, 1);

        for (uint64_t i = 0; i < 100; i++)
                put(a, i);
        for (uint64_t i = 100; i-- > 0;)
                put(b, i);
        cr_assert_eq(a->puts, b->puts);
        state_close(a);
        state_close(b);
}

Test(puts, as_many_but_others_are_told_apart)
{
        struct state *a = fixture_state(store, "a", l, 1, 0, 1);
        struct state *b = fixture_state(store, "b", l, 1, 0, 1);

        for (uint64_t i = 0; i < 100; i++) {
                put(a, 2 * i);
                put(b, 2 * i + 1);
                cr_assert_neq(a->puts, b->puts);
        }
        state_close(a);
        state_close(b);
}

Test(puts, that_the_process_died_in_are_like_no_other)
{
        struct state *s = fixture_state(store, "job", l, 1, 0, 1);

        put(s, 1);
        uint64_t before = s->puts;
        state_put_begin(s);
        s = again(s);
        uint64_t first = s->puts;
        cr_assert(!state_putting(s));
        cr_assert_neq(first, before);
        put(s, 2);
        state_put_begin(s);
        put(s, 3); /* another one that ended */
        s = again(s);
        cr_assert_neq(s->puts, first);
        uint64_t second = s->puts;
        s = again(s);
        cr_assert_eq(s->puts, second, "it is told once");
        state_close(s);
}

Test(puts, that_died_between_its_two_words_are_like_no_other)
{
        struct state *s = fixture_state(store, "job", l, 1, 0, 1);

        put(s, 1);
        uint64_t ended = s->puts;
        s->in->puts_words[0] = seal(SEAL_PUTS, 0, 1);
        s = again(s);
        cr_assert_neq(s->puts, ended);
        state_close(s);
}

Test(puts, are_taken_over_by_a_draft)
{
        struct state *s = fixture_state(store, "job", l, 1, 0, 1), *draft;
        struct state_identity id = s->id;
        struct fault fault;

        put(s, 7);
        cr_assert_eq(
                state_draft(store, &id, l, fixture_plan(l, 1, 0, LAYOUT_ALIGN), 1, &draft, &fault),
                0);
        state_set_puts(draft, s->puts);
        cr_assert_eq(draft->puts, s->puts);
        state_drop(draft);
        state_close(s);
}
