/*
 * The trainer against a strict fake of libzero: what each stage holds and pushes.  Stages,
 * accumulation and aborted attempts do not change the result.
 */
#include <criterion/criterion.h>

#include "fake_zero.h"
#include "runs.h"
#include "spec.h"

enum { GROUPS = 4, FETCHES_3 = 2 * (GROUPS - 2) + 2, ABORTED_STEPS = 12 };

static struct options options;

static void setup(void)
{
        options = run_options();
        options.local = false;
        options.init = GPT_INIT_PUT;
        options.lr = 0.3; /* plain gradient descent */
        options.min_lr = 0.3;
        options.clip = 0;
        fake_zero = (struct fake_zero){ 0 };
}

TestSuite(gpt_zero, .init = setup);

static void expect_same(const double *a, const double *b, double tolerance)
{
        for (uint32_t i = 0; i < options.steps; i++)
                cr_assert_float_eq(a[i], b[i], tolerance, "step %u: %.17g, %.17g", i, a[i], b[i]);
}

static void reference(double *ret_losses)
{
        struct options o = options;
        o.stage = 1;
        run(&o, ret_losses);
        cr_assert_lt(ret_losses[RUN_STEPS - 1], ret_losses[0]);
        fake_zero = (struct fake_zero){ 0 };
}

Test(gpt_zero, stage_1_holds_all_and_pushes_after_the_last_fetch)
{
        double losses[RUN_STEPS];
        options.stage = 1;
        run(&options, losses);
        cr_assert_eq(fake_zero.hold_groups, ZERO_ALL);
        cr_assert_eq(fake_zero.push_groups, ZERO_ALL);
        cr_assert_eq(fake_zero.most_held, GROUPS);
        cr_assert_eq(fake_zero.most_open, GROUPS);
        cr_assert_eq(fake_zero.pushes_before_fetch, 0);
        /* one fetch of everything for each version: the validation before the first step shares
         * its views */
        cr_assert_eq(fake_zero.fetches, GROUPS * (RUN_STEPS + 1));
        cr_assert_eq(fake_zero.pushes, GROUPS * RUN_STEPS);
}

Test(gpt_zero, stage_2_keeps_one_gradient_at_a_time)
{
        double losses[RUN_STEPS], expected[RUN_STEPS];
        reference(expected);
        options.stage = 2;
        run(&options, losses);
        cr_assert_eq(fake_zero.most_held, GROUPS);
        cr_assert_eq(fake_zero.most_open, 1);
        expect_same(losses, expected, 0);
}

Test(gpt_zero, stage_3_holds_one_group_at_a_time)
{
        double losses[RUN_STEPS], expected[RUN_STEPS];
        reference(expected);
        options.stage = 3;
        run(&options, losses);
        cr_assert_eq(fake_zero.most_held, 1);
        cr_assert_eq(fake_zero.most_open, 1);
        cr_assert_gt(fake_zero.fetches, FETCHES_3 * RUN_STEPS);
        cr_assert_gt(fake_zero.prefetches, (FETCHES_3 - 2) * RUN_STEPS);
        cr_assert_gt(fake_zero.pushes_before_fetch, 0);
        expect_same(losses, expected, 0);
}

Test(gpt_zero, micro_batches_added_by_the_owner_or_the_trainer_learn_the_same)
{
        double trainer[RUN_STEPS], owner[RUN_STEPS];
        options.lr = options.min_lr = 0.03; /* rounding does not grow */
        options.stage = 3;
        options.micro_batches = 2;
        options.accumulate = GPT_ACCUMULATE_TRAINER;
        run(&options, trainer);
        cr_assert_eq(fake_zero.pushes, GROUPS * RUN_STEPS);
        fake_zero = (struct fake_zero){ 0 };
        options.accumulate = GPT_ACCUMULATE_OWNER;
        run(&options, owner);
        cr_assert_eq(fake_zero.pushes, 2 * GROUPS * RUN_STEPS);
        cr_assert_eq(fake_zero.most_open, 1);
        expect_same(trainer, owner, 1e-3);
}

Test(gpt_zero, layer_by_layer_has_the_bits_of_plain_accumulation_and_fetches_a_block_twice)
{
        double plain[RUN_STEPS], layerwise[RUN_STEPS];
        for (options.micro_batches = 1; options.micro_batches <= 8; options.micro_batches *= 2) {
                options.schedule = GPT_SCHEDULE_PLAIN;
                fake_zero = (struct fake_zero){ 0 };
                run(&options, plain);
                options.schedule = GPT_SCHEDULE_LAYERWISE;
                fake_zero = (struct fake_zero){ 0 };
                run(&options, layerwise);
                expect_same(plain, layerwise, 0);
                cr_assert_eq(fake_zero.pushes, GROUPS * RUN_STEPS);
                cr_assert_eq(fake_zero.most_open, 1);
                /* and the two validations */
                cr_assert_leq(fake_zero.fetches, FETCHES_3 * RUN_STEPS + 2 * GROUPS * 2);
        }
}

Test(gpt_zero, an_attempt_aborted_layer_by_layer_is_computed_again)
{
        double losses[RUN_STEPS], expected[RUN_STEPS];
        options.schedule = GPT_SCHEDULE_LAYERWISE;
        options.micro_batches = 2;
        options.steps = ABORTED_STEPS;
        run(&options, expected);
        for (uint32_t call = 30; call < 30 + FETCHES_3 + 2 * 2 * 2 + 1; call++) {
                fake_zero = (struct fake_zero){ .abort_at = call };
                run(&options, losses);
                expect_same(losses, expected, 0);
        }
}

Test(gpt_zero, micro_batches_work_at_every_stage_and_dtype)
{
        double losses[RUN_STEPS];
        options.micro_batches = 2;
        for (options.stage = 1; options.stage <= 3; options.stage++)
                for (options.dtype = ZERO_FP32; options.dtype <= ZERO_FP16; options.dtype++)
                        for (options.accumulate = 0; options.accumulate < 2; options.accumulate++) {
                                run(&options, losses);
                                cr_assert_lt(losses[RUN_STEPS - 1], losses[0] - 1);
                        }
}

Test(gpt_zero, bf16_stays_close_to_fp32)
{
        double losses[RUN_STEPS], expected[RUN_STEPS];
        options.lr = options.min_lr = 0.03; /* rounding does not grow */
        reference(expected);
        options.dtype = ZERO_BF16;
        run(&options, losses);
        expect_same(losses, expected, 0.1);
}

Test(gpt_zero, fp16_lowers_a_loss_scale_that_overflows)
{
        double losses[RUN_STEPS];
        options.dtype = ZERO_FP16;
        options.loss_scale = 1e8;
        run(&options, losses);
        cr_assert_gt(fake_zero.skipped, 0);
        cr_assert_lt(fake_zero.skipped, RUN_STEPS / 2);
        cr_assert_lt(losses[RUN_STEPS - 1], losses[0] - 1);
}

Test(gpt_zero, an_aborted_attempt_is_computed_again)
{
        double losses[RUN_STEPS], expected[RUN_STEPS];
        reference(expected);
        options.steps = ABORTED_STEPS;
        for (uint32_t stage = 1; stage <= 3; stage++) {
                for (uint32_t call = 20; call < 20 + FETCHES_3 + 1; call++) {
                        options.stage = stage;
                        fake_zero = (struct fake_zero){ .abort_at = call };
                        run(&options, losses);
                        expect_same(losses, expected, 0);
                }
        }
}

Test(gpt_zero, put_writes_every_tensor_once)
{
        double losses[RUN_STEPS];
        run(&options, losses);
        cr_assert_eq(fake_zero.puts,
                     GPT_EMBEDDING_TENSORS + 2 * GPT_BLOCK_TENSORS + GPT_FINAL_TENSORS);
}

/* Trainers that end after some steps, and their successors. */
Test(gpt_zero, a_successor_goes_on_where_the_job_stands)
{
        static const uint32_t ends[] = { 0, 1, 20, RUN_STEPS };
        double losses[RUN_STEPS], expected[RUN_STEPS];
        uint32_t first = 0, puts;
        reference(expected);
        fake_zero.outlives = true;
        for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
                options.steps = ends[i];
                run_from(&options, first, losses);
                first = ends[i];
                puts = i == 0 ? fake_zero.puts : puts;
        }
        cr_assert_eq(fake_zero.puts, puts, "a job's first values are put once");
        expect_same(losses, expected, 0);
}

Test(gpt_zero, a_successor_uses_the_loss_scale_that_the_job_has_found)
{
        double losses[RUN_STEPS];
        uint32_t skipped;
        options.dtype = ZERO_FP16;
        options.loss_scale = 1e8;
        options.steps = 5;
        fake_zero.outlives = true;
        run(&options, losses);
        skipped = fake_zero.skipped;
        cr_assert_gt(skipped, 0);
        options.steps = 10;
        run_from(&options, 5, losses);
        cr_assert_eq(fake_zero.skipped, skipped);
}
