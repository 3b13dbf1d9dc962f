/* Training in one process: AdamW against a double-precision reference, whole runs. */
#include <criterion/criterion.h>

#include <stdlib.h>

#include "backend.h"
#include "random.h"
#include "runs.h"

static const struct gpt_config tiny = { 8, 1, 2, 8 };
static const struct zero_set sets[GPT_SETS] = { { .adamw = { 1e-2, 0.9, 0.95, 1e-8, 0.1 } },
                                                { .adamw = { 1e-2, 0.9, 0.95, 1e-8, 0 } } };

struct reference {
        double p, m, v;
};

static double gradient(uint64_t step, uint64_t i)
{
        return 0.1 * random_normal(step, i);
}

static void reference_step(struct reference *r, const struct zero_adamw *h, uint64_t t, double g)
{
        r->p -= h->lr * h->weight_decay * r->p;
        r->m = h->beta1 * r->m + (1 - h->beta1) * g;
        r->v = h->beta2 * r->v + (1 - h->beta2) * g * g;
        double m = r->m / (1 - pow(h->beta1, (double)t));
        double v = r->v / (1 - pow(h->beta2, (double)t));
        r->p -= h->lr * m / (sqrt(v) + h->eps);
}

/* Writes gradients of one group; the others stay zero. */
static void write_gradients(struct backend *backend, uint32_t group, uint64_t offset, uint64_t n,
                            uint64_t step)
{
        real *grads;
        cr_assert_eq(backend->seam.ops->grad(&backend->seam, group, &grads), 0);
        for (uint64_t i = 0; i < n; i++)
                grads[offset + i] = (real)gradient(step, i);
}

static void compare_with_reference(uint32_t tensor)
{
        struct gpt_spec spec;
        struct backend *backend;
        struct fault fault;
        const real *params;
        cr_assert_eq(gpt_spec_init(&tiny, ZERO_FP32, false, 1, &spec), 0);
        cr_assert_eq(backend_local_new(&spec, 1, &fault, &backend), 0);
        uint32_t group = zero_layout_tensor_group(spec.layout, tensor);
        uint64_t offset = zero_layout_offset(spec.layout, tensor);
        uint64_t n = zero_layout_tensor_elements(spec.layout, tensor);
        struct reference *r = calloc(n, sizeof(*r));
        backend->seam.ops->acquire(&backend->seam, group, GPT_NO_GROUP, &params);
        for (uint64_t i = 0; i < n; i++)
                r[i].p = (double)params[offset + i];
        for (uint64_t t = 1; t <= 20; t++) {
                struct zero_step_options step = { .sets = sets,
                                                  .n_sets = GPT_SETS,
                                                  .clip_norm = 0.5 };
                struct zero_result result;
                write_gradients(backend, group, offset, n, t);
                cr_assert_eq(backend->ops->step(backend, &step, &result), 0);
                double clip = result.grad_norm > 0.5 ? 0.5 / result.grad_norm : 1;
                for (uint64_t i = 0; i < n; i++)
                        reference_step(&r[i], &sets[gpt_spec_set(&spec, tensor)].adamw, t,
                                       clip * gradient(t, i));
        }
        for (uint64_t i = 0; i < n; i++)
                cr_assert_float_eq((double)params[offset + i], r[i].p, 1e-5);
        free(r);
        backend_free(backend);
        gpt_spec_deinit(&spec);
}

Test(gpt_local, adamw_matches_a_double_reference_with_decay)
{
        compare_with_reference(GPT_EMBEDDING_TENSORS + GPT_QKV_W);
}

Test(gpt_local, adamw_matches_a_double_reference_without_decay)
{
        compare_with_reference(GPT_EMBEDDING_TENSORS + GPT_LN1_W);
}

Test(gpt_local, a_step_with_infinite_gradients_is_skipped)
{
        struct gpt_spec spec;
        struct backend *backend;
        struct fault fault;
        const real *params;
        real *grads;
        cr_assert_eq(gpt_spec_init(&tiny, ZERO_FP32, false, 1, &spec), 0);
        cr_assert_eq(backend_local_new(&spec, 1, &fault, &backend), 0);
        backend->seam.ops->acquire(&backend->seam, 0, GPT_NO_GROUP, &params);
        real before = params[0];
        backend->seam.ops->grad(&backend->seam, 0, &grads);
        grads[0] = INFINITY;
        struct zero_step_options step = { .sets = sets, .n_sets = GPT_SETS };
        struct zero_result result;
        cr_assert_eq(backend->ops->step(backend, &step, &result), 0);
        cr_assert(result.skipped && result.version == 0);
        cr_assert_eq(params[0], before);
        cr_assert_eq(grads[0], 0);
        backend_free(backend);
        gpt_spec_deinit(&spec);
}

Test(gpt_local, the_loss_falls_on_a_simple_text)
{
        double losses[RUN_STEPS];
        struct options options = run_options();
        run(&options, losses);
        cr_assert_gt(losses[0], 5);
        cr_assert_lt(losses[RUN_STEPS - 1], 1.5);
}

Test(gpt_local, two_runs_are_equal_to_the_bit)
{
        double first[RUN_STEPS], second[RUN_STEPS];
        struct options options = run_options();
        run(&options, first);
        run(&options, second);
        cr_assert_eq(memcmp(first, second, sizeof(first)), 0);
}

Test(gpt_local, micro_batches_change_only_rounding)
{
        double whole[RUN_STEPS], parts[RUN_STEPS];
        struct options options = run_options();
        run(&options, whole);
        options.micro_batches = 2;
        run(&options, parts);
        for (int i = 0; i < RUN_STEPS; i++)
                cr_assert_float_eq(whole[i], parts[i], 2e-3, "step %d: %g, %g", i, whole[i],
                                   parts[i]);
}
