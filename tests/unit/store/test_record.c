/* The step record: phases, tensor steps, and copies of which one is torn. */
#include <criterion/criterion.h>
#include <stddef.h>
#include <string.h>

#include "daemon/store/file.h"
#include "daemon/store/seal.h"
#include "fixture.h"
#include "toy.h"

static char *directory;
static struct store *store;
static layout *l;
static struct state *s;

static void begin(void)
{
        directory = fixture_directory();
        store = fixture_store(directory);
        l = fixture_layout();
        fixture_old_format = true; /* keeps no times at first */
        s = fixture_state(store, "j", l, 1, 0, 1);
        toy_init(s);
}

static void end(void)
{
        state_close(s);
        store_close(store);
        layout_free(l);
        fixture_remove(directory);
}

TestSuite(record, .init = begin, .fini = end);

static void reopen(void)
{
        layout *stored = NULL;

        state_close(s);
        s = fixture_reopen(store, &stored);
        layout_free(stored);
}

Test(record, a_vote_outlives_the_process_with_its_presence_marks)
{
        struct state_record vote = *s->record;

        s->present[0] = 1;
        vote.finite = 1;
        vote.n_sets = 1;
        vote.sets[0].value[0] = 0.25;
        vote.norm.bin[3] = -17;
        state_prepare(s, &vote);
        reopen();
        cr_assert_eq(s->record->phase, ATTEMPT_PREPARED);
        cr_assert_eq(s->record->finite, 1);
        cr_assert_eq(s->record->sets[0].value[0], 0.25);
        cr_assert_eq(s->record->norm.bin[3], -17);
        cr_assert_eq(s->present[0], 1);
}

Test(record, marks_of_an_attempt_without_a_vote_do_not_outlive_the_process)
{
        s->present[0] = 1;
        reopen();
        cr_assert_eq(s->record->phase, ATTEMPT_OPEN);
        cr_assert_eq(s->present[0], 0);
}

Test(record, finish_raises_the_steps_of_present_tensors_alone)
{
        uint8_t present[16];

        for (uint64_t step = 0; step < 3; step++) {
                uint64_t before[16];

                toy_push(s, l);
                toy_decide(s);
                memcpy(present, s->present, l->n_tensors);
                memcpy(before, s->tensor_step, l->n_tensors * sizeof(*before));
                toy_update(s, 0, 0, 1);
                state_finish(s);
                cr_assert_eq(s->record->version, step + 1);
                for (uint32_t t = 0; t < l->n_tensors; t++) {
                        cr_assert_eq(s->tensor_step[t], before[t] + present[t]);
                        cr_assert_eq(s->present[t], 0);
                }
        }
        cr_assert_gt(s->tensor_step[0] + s->tensor_step[1], 0);
}

Test(record, a_skipped_attempt_changes_neither_version_nor_steps)
{
        struct state_record r = *s->record;

        s->present[0] = 1;
        state_prepare(s, &r);
        r.commit = 0;
        r.loss_scale = 512;
        state_decide(s, &r, 0);
        state_finish(s);
        cr_assert_eq(s->record->version, 0);
        cr_assert_eq(s->record->attempt, 1);
        cr_assert_eq(s->record->loss_scale, 512);
        cr_assert_eq(s->tensor_step[0], 0);
        cr_assert_eq(s->present[0], 0);
}

Test(record, an_aborted_attempt_counts_for_nothing)
{
        struct state_record r = *s->record;

        s->present[0] = 1;
        state_prepare(s, &r);
        state_abort(s, 5);
        cr_assert_eq(s->record->phase, ATTEMPT_OPEN);
        cr_assert_eq(s->record->attempt, 5);
        cr_assert_eq(s->record->version, 0);
        cr_assert_eq(s->present[0], 0);
}

static void check_decision(uint64_t attempt)
{
        cr_assert_eq(s->record->decided_attempt, attempt);
        cr_assert_eq(s->record->commit, 0);
        cr_assert_eq(s->record->grad_scale, 0.5);
        cr_assert_eq(s->record->loss_scale, 512);
        cr_assert_eq(s->record->good_steps, 7);
        cr_assert_eq(s->record->skipped, 3);
        cr_assert_eq(s->record->grad_norm, 1.5);
}

Test(record, a_decision_stays_until_the_next_one)
{
        struct state_record r, none = { 0 };

        state_abort(s, 5);
        cr_assert_eq(s->record->decided_attempt, 0);
        state_prepare(s, s->record);
        r = *s->record;
        r.grad_scale = 0.5;
        r.loss_scale = 512;
        r.good_steps = 7;
        r.skipped = 3;
        r.grad_norm = 1.5;
        state_decide(s, &r, 0);
        check_decision(5);
        state_finish(s);
        check_decision(5);
        none.attempt = 6;
        none.commit = 1;
        none.finite = 1;
        state_prepare(s, &none);
        check_decision(5);
        cr_assert_eq(s->record->finite, 1);
        reopen();
        check_decision(5);
        state_abort(s, 9);
        check_decision(5);
}

static void decide_at(uint32_t now_s)
{
        struct state_record r;

        state_prepare(s, s->record);
        r = *s->record;
        state_decide(s, &r, now_s);
}

Test(record, when_the_last_step_was_decided_is_kept_once_it_may_be)
{
        decide_at(77);
        cr_assert_eq(state_decided_s(s), 0);
        state_finish(s);
        cr_assert_eq(state_keep_times(s), 0);
        reopen();
        cr_assert_eq(state_decided_s(s), 0);
        decide_at(88);
        cr_assert_eq(state_decided_s(s), 88);
        reopen();
        cr_assert_eq(state_decided_s(s), 88);
        state_finish(s);
        state_prepare(s, s->record);
        state_abort(s, 9);
        cr_assert_eq(state_decided_s(s), 88);
        decide_at(99);
        reopen();
        cr_assert_eq(state_decided_s(s), 99);
}

Test(record, a_vote_may_be_prepared_anew_with_other_marks)
{
        s->present[0] = 1;
        state_prepare(s, s->record);
        s->present[0] = 0;
        s->present[1] = 1;
        state_prepare(s, s->record);
        reopen();
        cr_assert_eq(s->present[0], 0);
        cr_assert_eq(s->present[1], 1);
}

Test(record, steps_that_were_put_are_counted_on)
{
        state_put_step(s, 1, 1000);
        toy_attempt(s, l); /* tensor 1 has a gradient at version 0 */
        cr_assert_eq(s->tensor_step[1], 1001);
        reopen();
        cr_assert_eq(s->tensor_step[1], 1001);
}

static struct record_copy *newest(void)
{
        return s->in->copies[s->record == &s->in->copies[1]->record];
}

static struct record_copy *older(void)
{
        return s->in->copies[newest() == s->in->copies[0]];
}

static void set_use(struct record_copy *copy, enum copy_use use)
{
        copy->use = seal(SEAL_COPY, copy == s->in->copies[1], use);
}

static void decide(uint32_t n_sets)
{
        struct state_record r = *s->record;

        r.n_sets = n_sets;
        state_prepare(s, &r);
        r = *s->record;
        r.commit = 1;
        state_decide(s, &r, 0);
}

Test(record, a_torn_copy_leaves_the_one_before)
{
        decide(3);
        set_use(newest(), COPY_VOID);
        set_use(older(), COPY_COUNTS);
        memset(newest()->hash, 0x5a, 300);
        cr_assert_eq(record_load(s, NULL), 0);
        cr_assert_eq(s->record->phase, ATTEMPT_PREPARED);
}

Test(record, of_two_that_count_the_newer_is_taken)
{
        decide(3);
        set_use(older(), COPY_COUNTS);
        cr_assert_eq(record_load(s, NULL), 0);
        cr_assert_eq(s->record->phase, ATTEMPT_DECIDED);
}

Test(record, a_damaged_copy_that_counts_is_refused_though_the_one_before_is_whole)
{
        decide(3);
        for (size_t at = 0; at < offsetof(struct record_copy, record.sets[3]); at++) {
                uint8_t *byte = (uint8_t *)newest() + at;

                *byte ^= 0x40;
                cr_assert_eq(record_load(s, NULL), ZERO_EIO, "%zu", at);
                *byte ^= 0x40;
        }
        cr_assert_eq(record_load(s, NULL), 0);
}

Test(record, whatever_is_in_a_copy_that_does_not_count_means_nothing)
{
        decide(3);
        memset(older()->hash, 0xa5,
               sizeof(struct record_copy) - offsetof(struct record_copy, hash));
        cr_assert_eq(record_load(s, NULL), 0);
        cr_assert_eq(s->record->phase, ATTEMPT_DECIDED);
}

Test(record, two_torn_copies_are_refused)
{
        struct state *other = NULL;
        layout *stored = NULL;
        struct fault fault;

        toy_push(s, l);
        toy_decide(s);
        s->in->copies[0]->record.attempt ^= 1;
        s->in->copies[1]->record.attempt ^= 1;
        cr_assert_eq(state_open(store, fixture_only_file(store), &other, &stored, &fault),
                     ZERO_EIO);
        cr_assert(strstr(fault.text, "step record"));
}

static void set_arithmetic(uint32_t arithmetic)
{
        struct record_copy *copy = newest();

        copy->arithmetic = arithmetic;
        record_hash(copy, copy->hash);
}

Test(record, another_arithmetic_is_accepted_between_steps_only)
{
        set_arithmetic(FILE_ARITHMETIC + 1);
        cr_assert_eq(record_load(s, NULL), 0);
        toy_push(s, l);
        toy_decide(s);
        set_arithmetic(FILE_ARITHMETIC + 1);
        cr_assert_eq(record_load(s, NULL), ZERO_EIO);
        set_arithmetic(FILE_ARITHMETIC);
        cr_assert_eq(record_load(s, NULL), 0);
}
