/* The rules of all optimizers: equal to the scalar truth to the bit. */
#include <criterion/criterion.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/compute/optimizer/optimizer.h"
#include "tests/conformance/device/material.h"

/* In double, as the paper or PyTorch has it: x is the master weight and the moments. */
typedef void reference_fn(const double *values, uint64_t t, double g, double *x);

static void adamw_reference(const double *h, uint64_t t, double g, double *x)
{
        g = h[5] != 0 ? -g : g;
        x[1] = h[1] * x[1] + (1 - h[1]) * g;
        x[2] = h[2] * x[2] + (1 - h[2]) * g * g;
        x[0] = x[0] * (1 - h[0] * h[4]) - h[0] * (x[1] / (1 - pow(h[1], (double)t))) /
                                                  (sqrt(x[2] / (1 - pow(h[2], (double)t))) + h[3]);
}

static void adam_reference(const double *h, uint64_t t, double g, double *x)
{
        const double undecayed[] = { h[0], h[1], h[2], h[3], 0, 0 };

        adamw_reference(undecayed, t, (h[5] != 0 ? -g : g) + h[4] * x[0], x);
}

static void lion_reference(const double *h, uint64_t t, double g, double *x)
{
        g = h[4] != 0 ? -g : g;
        double c = h[1] * x[1] + (1 - h[1]) * g;

        x[0] = x[0] * (1 - h[0] * h[3]) - h[0] * ((c > 0) - (c < 0));
        x[1] = h[2] * x[1] + (1 - h[2]) * g;
}

static void sgd_reference(const double *h, uint64_t t, double g, double *x)
{
        double d = (h[5] != 0 ? -g : g) + h[3] * x[0];

        if (h[1] != 0) {
                x[1] = t == 1 ? d : h[1] * x[1] + (1 - h[2]) * d;
                d = h[4] != 0 ? d + h[1] * x[1] : x[1];
        }
        x[0] -= h[0] * d;
}

/* g: of the matrix's direction. */
static void direction_reference(const double *h, uint64_t t, double g, double *x)
{
        x[0] = x[0] * (1 - h[0] * h[2]) - h[0] * g;
}

static void momentum_reference(const double *h, uint64_t t, double g, double *x)
{
        x[0] = h[1] * x[0] + (1 - h[1]) * g;
}

/* One of each rule at least, with every hyperparameter at work, with an average and without. */
static const struct sample {
        const struct optimizer *optimizer;
        reference_fn *reference;
        double values[OPTIMIZER_VALUES];
        double ema_rate; /* 1 - decay; 0: no average */
        bool momentum;   /* the rule of Muon's other plane */
} samples[] = {
        { &optimizer_adamw, adamw_reference, { 1e-3, 0.9, 0.999, 1e-8, 0.01 } },
        { &optimizer_adamw, adamw_reference, { 1e-3, 0.9, 0.999, 1e-8, 0.01, 1 } },
        { &optimizer_adamw, adamw_reference, { 1e-3, 0.9, 0.999, 0.1, 0.01 } },
        { &optimizer_adam, adam_reference, { 1e-3, 0.9, 0.999, 1e-8, 0.01 } },
        { &optimizer_adam, adam_reference, { 1e-3, 0.9, 0.999, 1e-8, 0.1, 1 } },
        { &optimizer_lion, lion_reference, { 1e-3, 0.9, 0.99, 0.01 } },
        { &optimizer_lion, lion_reference, { 1e-3, 0.9, 0.99, 0.01, 1 } },
        { &optimizer_sgd, sgd_reference, { 0.1, 0, 0, 0.01 } },
        { &optimizer_sgd, sgd_reference, { 0.1, 0, 0, 0.01, 0, 1 } },
        { &optimizer_sgd_momentum, sgd_reference, { 0.1, 0.9, 0.1, 0.01 } },
        { &optimizer_sgd_momentum, sgd_reference, { 0.1, 0.9, 0, 0.01, 1 } },
        { &optimizer_sgd_momentum, sgd_reference, { 0.1, 0.9, 0, 0.01, 1, 1 } },
        { &optimizer_adamw, adamw_reference, { 1e-3, 0.9, 0.999, 1e-8, 0.01, 1 }, 0.001 },
        { &optimizer_adamw, adamw_reference, { 1e-3, 0.9, 0.999, 0.1, 0.01 }, 1 },
        { &optimizer_adam, adam_reference, { 1e-3, 0.9, 0.999, 1e-8, 0.1 }, 0.1 },
        { &optimizer_lion, lion_reference, { 1e-3, 0.9, 0.99, 0.01 }, 0.01 },
        { &optimizer_sgd, sgd_reference, { 0.1, 0, 0, 0.01 }, 0.01 },
        { &optimizer_sgd_momentum, sgd_reference, { 0.1, 0.9, 0.1, 0.01 }, 0.5 },
        { &optimizer_muon, direction_reference, { 0.02, 0.95, 0.1 } },
        { &optimizer_muon, direction_reference, { 0.02, 0.95, 0.1 }, 0.01 },
        { &optimizer_muon, momentum_reference, { 0.02, 0.95, 0.1 }, .momentum = true },
};
enum { N_SAMPLES = sizeof(samples) / sizeof(samples[0]) };

static enum update_rule rule_of(const struct sample *s)
{
        return s->momentum ? UPDATE_MOMENTUM : s->optimizer->rule;
}

static struct update_scalars scalars_for(const struct sample *s, uint64_t t)
{
        struct update_scalars ret = s->optimizer->scalars(s->values, t, 0.37);

        ret.ema_rate = (float)s->ema_rate;
        return ret;
}

struct planes {
        uint32_t n_planes;
        struct plate in[UPDATE_PLANES], out[UPDATE_PLANES], grad;
};

static struct planes planes_new(const struct sample *sample, size_t n, size_t offset,
                                struct dice *d)
{
        struct planes s = { .n_planes = rule_planes(rule_of(sample)) + (sample->ema_rate > 0) };

        for (uint32_t i = 0; i < s.n_planes; i++) {
                s.in[i] = plate_new(ZERO_FP32, n, offset);
                s.out[i] = plate_new(ZERO_FP32, n, offset);
                plate_fill(&s.in[i], ZERO_FP32, n, d);
        }
        s.grad = plate_new(ZERO_FP32, n, (offset + 3) % 16);
        plate_fill(&s.grad, ZERO_FP32, n, d);
        return s;
}

static void planes_free(struct planes *s)
{
        for (uint32_t i = 0; i < s->n_planes; i++) {
                plate_free(&s->in[i]);
                plate_free(&s->out[i]);
        }
        plate_free(&s->grad);
}

/* In place in `out`, of what x->in has. */
static void run(const struct device_ops *ops, const struct sample *sample, uint64_t t, size_t n,
                const struct planes *x, const struct plate *out)
{
        struct update_scalars s = scalars_for(sample, t);
        float *planes[UPDATE_PLANES] = { NULL };

        for (uint32_t k = 0; k < x->n_planes; k++) {
                memcpy(out[k].data, x->in[k].data, n * sizeof(float));
                planes[k] = out[k].data;
        }
        ops->update(rule_of(sample), &s, n, planes, x->grad.data, NULL);
}

static void check(const struct sample *sample, uint64_t t, size_t n, size_t offset, struct dice *d)
{
        struct planes a = planes_new(sample, n, offset, d);
        struct plate truth[UPDATE_PLANES];

        for (uint32_t k = 0; k < a.n_planes; k++)
                truth[k] = plate_new(ZERO_FP32, n, offset);
        run(tested_ops(), sample, t, n, &a, a.out);
        run(truth_ops(), sample, t, n, &a, truth);
        for (uint32_t k = 0; k < a.n_planes; k++) {
                cr_assert(plate_same(&a.out[k], &truth[k], ZERO_FP32, n),
                          "%s, plane %u, n %zu, offset %zu", sample->optimizer->name, k, n, offset);
                plate_free(&truth[k]);
        }
        planes_free(&a);
}

Test(rules, equal_the_scalar_truth)
{
        struct dice d = { 1 };

        for (size_t s = 0; s < N_SAMPLES; s++)
                for (size_t i = 0; i < n_awkward_sizes; i++)
                        for (size_t j = 0; j < n_awkward_offsets; j++)
                                check(&samples[s], i + 1, awkward_sizes[i], awkward_offsets[j], &d);
}

static void check_cut(const struct sample *sample, struct dice *d)
{
        enum { N = 5003 };
        struct planes a = planes_new(sample, N, 0, d);
        struct update_scalars s = scalars_for(sample, 9);

        run(tested_ops(), sample, 9, N, &a, a.out);
        for (size_t i = 0, n; i < N; i += n) {
                float *planes[UPDATE_PLANES] = { NULL };

                for (uint32_t k = 0; k < a.n_planes; k++)
                        planes[k] = (float *)a.in[k].data + i;
                n = dice_bits(d) % 300;
                n = n < N - i ? n : N - i;
                tested_ops()->update(rule_of(sample), &s, n, planes, (float *)a.grad.data + i,
                                     NULL);
        }
        for (uint32_t k = 0; k < a.n_planes; k++)
                cr_assert(plate_same(&a.out[k], &a.in[k], ZERO_FP32, N), "%s, plane %u",
                          sample->optimizer->name, k);
        planes_free(&a);
}

Test(rules, do_not_depend_on_where_a_range_is_cut)
{
        struct dice d = { 3 };

        for (size_t s = 0; s < N_SAMPLES; s++)
                check_cut(&samples[s], &d);
}

static void check_reference(const struct sample *sample, uint64_t t, struct dice *d)
{
        enum { N = 1000 };
        struct update_scalars s = scalars_for(sample, t);
        uint32_t own = rule_planes(rule_of(sample)), n_planes = own + (s.ema_rate > 0);
        float in[UPDATE_PLANES][N], out[UPDATE_PLANES][N], g[N];
        float *planes[] = { out[0], out[1], out[2], out[3] };

        for (int i = 0; i < N; i++) {
                g[i] = (float)(2 * dice_unit(d) - 1);
                in[0][i] = (float)(4 * dice_unit(d) - 2);
                in[1][i] = (float)(2 * dice_unit(d) - 1);
                in[2][i] = (float)(0.1 + dice_unit(d));
                in[3][i] = (float)(4 * dice_unit(d) - 2);
        }
        memcpy(out, in, sizeof out);
        tested_ops()->update(rule_of(sample), &s, N, planes, g, NULL);
        for (int i = 0; i < N; i++) {
                double x[UPDATE_PLANES] = { (double)in[0][i], (double)in[1][i], (double)in[2][i],
                                            (double)in[3][i] };

                sample->reference(sample->values, t, 0.37 * (double)g[i], x);
                if (n_planes > own)
                        x[own] += sample->ema_rate * (x[0] - x[own]);
                for (uint32_t k = 0; k < n_planes; k++)
                        cr_assert(fabs((double)out[k][i] - x[k]) <= 8 * (double)FLT_EPSILON,
                                  "%s, plane %u: %.9g is not %.9g", sample->optimizer->name, k,
                                  (double)out[k][i], x[k]);
        }
}

Test(rules, agree_with_a_reference_in_double)
{
        struct dice d = { 7 };

        for (size_t s = 0; s < N_SAMPLES; s++)
                for (uint64_t t = 1; t <= 1000; t *= 10)
                        check_reference(&samples[s], t, &d);
}

/* What is kept before an element changes is what the planes held. */
Test(rules, keep_the_old_values)
{
        enum { N = 333 };
        struct dice d = { 5 };

        if (gpus_tested()) /* nothing is kept of what lies there */
                return;
        for (size_t s = 0; s < N_SAMPLES; s++) {
                struct planes a = planes_new(&samples[s], N, 0, &d);
                struct update_scalars scalars = scalars_for(&samples[s], 3);
                uint64_t kept = undo_mark(0);
                struct update_undo undo = { .kept = &kept };
                float *planes[UPDATE_PLANES] = { NULL };

                for (uint32_t k = 0; k < a.n_planes; k++) {
                        planes[k] =
                                memcpy(malloc(N * sizeof(float)), a.in[k].data, N * sizeof(float));
                        undo.old[k] = a.out[k].data;
                }
                tested_ops()->update(rule_of(&samples[s]), &scalars, N, planes, a.grad.data, &undo);
                cr_assert_eq(undo_kept(kept), N);
                for (uint32_t k = 0; k < a.n_planes; k++) {
                        cr_assert(plate_same(&a.out[k], &a.in[k], ZERO_FP32, N), "%s, plane %u",
                                  samples[s].optimizer->name, k);
                        free(planes[k]);
                }
                planes_free(&a);
        }
}
