/*
 * The model in double precision: gradients against finite differences, causality, accumulation.
 *
 * The context is no multiple of the attention's band, and the last band is short.
 */
#include <criterion/criterion.h>

#include "block.h"
#include "memory_seam.h"
#include "model.h"
#include "random.h"

enum { CONTEXT = ATTENTION_ROWS + 5, SEQUENCES = 2, TOKENS = CONTEXT * SEQUENCES };

static struct gpt_spec spec;
static struct gpt *gpt;
static struct memory_seam memory;
static uint8_t inputs[TOKENS], targets[TOKENS];
static const struct gpt_batch batch = { SEQUENCES, inputs, targets };

static void setup(void)
{
        struct gpt_config config = { CONTEXT, 2, 2, 6 };
        cr_assert_eq(gpt_spec_init(&config, ZERO_FP32, false, 1, &spec), 0);
        cr_assert_eq(gpt_new(&spec, SEQUENCES, 0, &gpt), 0);
        memory_seam_init(&memory, &spec, 7);
        for (int i = 0; i < TOKENS; i++) {
                inputs[i] = (uint8_t)random_below(3, (uint64_t)i, 256);
                targets[i] = (uint8_t)random_below(4, (uint64_t)i, 256);
        }
}

static void teardown(void)
{
        memory_seam_deinit(&memory);
        gpt_free(gpt);
        gpt_spec_deinit(&spec);
}

TestSuite(gpt_model, .init = setup, .fini = teardown);

static double loss_of(const struct gpt_batch *of)
{
        double loss;
        cr_assert_eq(gpt_evaluate(gpt, &memory.seam, of, &loss), 0);
        return loss;
}

static double train_on(const struct gpt_batch *of, double scale)
{
        double loss;
        cr_assert_eq(gpt_train(gpt, &memory.seam, of, scale, true, &loss), 0);
        return loss;
}

/* Central difference in one parameter. */
static double slope(real *parameter)
{
        const double h = 1e-5;
        real value = *parameter;
        *parameter = value + h;
        double up = loss_of(&batch);
        *parameter = value - h;
        double down = loss_of(&batch);
        *parameter = value;
        return (up - down) / (2 * h);
}

/* Elements whose gradient is worth checking: rows of wte that occur are few. */
static uint64_t pick(uint32_t tensor, uint64_t k)
{
        uint64_t n = zero_layout_tensor_elements(spec.layout, tensor);
        if (tensor == GPT_WTE)
                return inputs[k % TOKENS] * (uint64_t)spec.config.width + k % spec.config.width;
        return random_below(tensor, k, n);
}

Test(gpt_model, gradient_of_every_tensor_matches_finite_differences)
{
        train_on(&batch, 1);
        for (uint32_t tensor = 0; tensor < spec.n_tensors; tensor++) {
                uint32_t group = zero_layout_tensor_group(spec.layout, tensor);
                for (uint64_t k = 0; k < 6; k++) {
                        uint64_t at = zero_layout_offset(spec.layout, tensor) + pick(tensor, k);
                        double expected = slope(&memory.params[group][at]);
                        double found = memory.grads[group][at];
                        cr_assert(fabs(found - expected) < 1e-7 + 1e-5 * fabs(expected),
                                  "%s: %.10g, by differences %.10g",
                                  zero_layout_tensor_name(spec.layout, tensor), found, expected);
                }
        }
}

Test(gpt_model, gradient_scales_with_the_loss_scale)
{
        uint32_t group = 1;
        train_on(&batch, 1);
        double once = memory.grads[group][0];
        memory_seam_clear(&memory);
        train_on(&batch, 1024);
        cr_assert_float_eq(memory.grads[group][0], 1024 * once, 1e-12);
}

Test(gpt_model, micro_batches_add_up_to_the_batch)
{
        struct gpt_batch first = { 1, inputs, targets };
        struct gpt_batch second = { 1, inputs + CONTEXT, targets + CONTEXT };
        struct memory_seam whole;
        memory_seam_init(&whole, &spec, 7);
        double loss, a = train_on(&first, 0.5), b = train_on(&second, 0.5);
        cr_assert_eq(gpt_train(gpt, &whole.seam, &batch, 1, true, &loss), 0);
        cr_assert_float_eq(loss, (a + b) / 2, 1e-12);
        for (uint32_t group = 0; group < spec.n_groups; group++)
                for (uint64_t i = 0; i < zero_layout_group_elements(spec.layout, group); i++)
                        cr_assert_float_eq(memory.grads[group][i], whole.grads[group][i], 1e-12);
        memory_seam_deinit(&whole);
}

Test(gpt_model, a_later_byte_does_not_change_earlier_logits)
{
        static real before[TOKENS * GPT_VOCABULARY];
        loss_of(&batch);
        memcpy(before, gpt_logits(gpt), sizeof(before));
        size_t changed = CONTEXT - 3;
        inputs[changed] ^= 1;
        loss_of(&batch);
        const real *after = gpt_logits(gpt);
        size_t earlier = changed * GPT_VOCABULARY;
        cr_assert_eq(memcmp(before, after, earlier * sizeof(real)), 0);
        cr_assert_neq(memcmp(before + earlier, after + earlier, GPT_VOCABULARY * sizeof(real)), 0);
}

Test(gpt_model, sequences_do_not_see_each_other)
{
        struct gpt_batch second = { 1, inputs + CONTEXT, targets + CONTEXT };
        static real alone[CONTEXT * GPT_VOCABULARY];
        loss_of(&second);
        memcpy(alone, gpt_logits(gpt), sizeof(alone));
        loss_of(&batch);
        const real *together = gpt_logits(gpt) + CONTEXT * GPT_VOCABULARY;
        for (int i = 0; i < CONTEXT * GPT_VOCABULARY; i++)
                cr_assert_float_eq(together[i], alone[i], 1e-12);
}

Test(gpt_model, blocks_are_acquired_for_each_direction_and_ends_once)
{
        train_on(&batch, 1);
        cr_assert_eq(memory.acquired, 2 * spec.config.layers + 2);
        cr_assert_eq(memory.held, 0);
        cr_assert_eq(memory.micro_batches, 1);
}

Test(gpt_model, alignment_gaps_keep_a_zero_gradient)
{
        train_on(&batch, 1);
        uint32_t tensor = zero_layout_tensors(spec.layout) - 1, next;
        do {
                next = tensor--;
        } while (zero_layout_tensor_group(spec.layout, tensor) !=
                 zero_layout_tensor_group(spec.layout, next));
        uint64_t end = zero_layout_offset(spec.layout, tensor) +
                       zero_layout_tensor_elements(spec.layout, tensor);
        cr_assert_lt(end, zero_layout_offset(spec.layout, next));
        const real *grads = memory.grads[zero_layout_tensor_group(spec.layout, tensor)];
        for (uint64_t i = end; i < zero_layout_offset(spec.layout, next); i++)
                cr_assert_eq(grads[i], 0);
}
