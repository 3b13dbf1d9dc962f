/* The bytes that a rank sees, the parts of the text, and the bigram baseline. */
#include <criterion/criterion.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "random.h"
#include "corpus.h"

enum { CONTEXT = 16 };

static struct corpus text;

static void fill(size_t size, unsigned symbols)
{
        text = (struct corpus){ malloc(size), size, size - size / 10 };
        for (size_t i = 0; i < size; i++)
                text.bytes[i] = (uint8_t)random_below(5, i, symbols);
}

static void teardown(void)
{
        corpus_deinit(&text);
}

TestSuite(gpt_corpus, .fini = teardown);

Test(gpt_corpus, samples_lie_in_the_training_part)
{
        fill(1000, 200);
        memset(text.bytes + text.n_train, 255, text.size - text.n_train);
        uint8_t inputs[CONTEXT], targets[CONTEXT];
        for (uint64_t i = 0; i < 5000; i++) {
                corpus_sample(&text, (struct corpus_sequence){ 1, i / 8, i % 8 }, CONTEXT, inputs,
                              targets);
                for (int k = 0; k < CONTEXT; k++)
                        cr_assert(inputs[k] < 200 && targets[k] < 200);
        }
}

Test(gpt_corpus, targets_are_the_inputs_one_further_on)
{
        fill(1000, 256);
        uint8_t inputs[CONTEXT], targets[CONTEXT];
        corpus_sample(&text, (struct corpus_sequence){ 1, 2, 3 }, CONTEXT, inputs, targets);
        cr_assert_eq(memcmp(inputs + 1, targets, CONTEXT - 1), 0);
}

Test(gpt_corpus, sequences_differ_by_seed_step_and_index)
{
        fill(100000, 256);
        struct corpus_sequence which[] = { { 1, 1, 1 }, { 2, 1, 1 }, { 1, 2, 1 }, { 1, 1, 2 } };
        uint8_t inputs[4][CONTEXT], targets[CONTEXT];
        for (int i = 0; i < 4; i++)
                corpus_sample(&text, which[i], CONTEXT, inputs[i], targets);
        for (int i = 0; i < 4; i++)
                for (int k = 0; k < i; k++)
                        cr_assert_neq(memcmp(inputs[i], inputs[k], CONTEXT), 0);
}

Test(gpt_corpus, windows_lie_in_the_validation_part)
{
        fill(1000, 256);
        for (uint32_t i = 0; i < 50; i++) {
                size_t at = corpus_window(&text, CONTEXT, i, 50);
                cr_assert(at >= text.n_train && at + CONTEXT < text.size);
        }
}

Test(gpt_corpus, bigram_learns_a_cycle)
{
        fill(20000, 256);
        for (size_t i = 0; i < text.size; i++)
                text.bytes[i] = (uint8_t)(i % 7);
        cr_assert_lt(corpus_bigram_loss(&text, CONTEXT, 20), 0.01);
}

Test(gpt_corpus, bigram_cannot_beat_the_entropy_of_noise)
{
        fill(200000, 16);
        double loss = corpus_bigram_loss(&text, CONTEXT, 500);
        cr_assert_float_eq(loss, log(16), 0.02);
        cr_assert_eq(loss, corpus_bigram_loss(&text, CONTEXT, 500));
}

static char path[] = "/tmp/gpt-text-XXXXXX";

static void write_file(size_t size)
{
        int fd = mkstemp(path);
        cr_assert_geq(fd, 0);
        cr_assert_eq(ftruncate(fd, (off_t)size), 0);
        close(fd);
}

Test(gpt_corpus, nine_tenths_are_for_training)
{
        struct fault fault;
        write_file(3000000);
        cr_assert_eq(corpus_load(path, CONTEXT, &fault, &text), 0);
        unlink(path);
        cr_assert_eq(text.size, 3000000);
        cr_assert_eq(text.n_train, 2700000);
}

Test(gpt_corpus, a_text_too_short_for_the_context_is_refused)
{
        struct fault fault;
        write_file(10 * CONTEXT);
        int r = corpus_load(path, CONTEXT, &fault, &text);
        unlink(path);
        cr_assert_eq(r, ZERO_EINVAL);
        cr_assert(strstr(fault.text, "at least 170"));
}

Test(gpt_corpus, a_missing_file_is_named)
{
        struct fault fault;
        cr_assert_gt(corpus_load("/nonexistent/text", CONTEXT, &fault, &text), 0);
        cr_assert(strstr(fault.text, "/nonexistent/text"));
}
