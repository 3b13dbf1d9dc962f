/* AdamW: equal to the scalar truth to the bit, and to a double-precision AdamW within rounding. */
#include <criterion/criterion.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/conformance/device/material.h"

enum { P, M, V, PLANES };

static const struct adamw_scalars *scalars_for(uint64_t t)
{
        static struct adamw_scalars s;

        s = adamw_scalars(1e-3, 0.9, 0.999, 1e-8, 0.01, t, 0.37);
        return &s;
}

struct planes {
        struct plate in[PLANES], out[PLANES], grad;
};

static struct planes planes_new(size_t n, size_t offset, struct dice *d)
{
        struct planes s;

        for (int i = 0; i < PLANES; i++) {
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
        for (int i = 0; i < PLANES; i++) {
                plate_free(&s->in[i]);
                plate_free(&s->out[i]);
        }
        plate_free(&s->grad);
}

/* In place in `out`, of what x->in has. */
static void run(const struct device_ops *ops, const struct adamw_scalars *s, size_t n,
                const struct planes *x, const struct plate *out)
{
        for (int k = 0; k < PLANES; k++)
                memcpy(out[k].data, x->in[k].data, n * sizeof(float));
        ops->adamw(s, n, out[P].data, out[M].data, out[V].data, x->grad.data, NULL);
}

Test(adamw, equals_the_scalar_truth)
{
        struct dice d = { 1 };

        for (size_t i = 0; i < n_awkward_sizes; i++)
                for (size_t j = 0; j < n_awkward_offsets; j++) {
                        size_t n = awkward_sizes[i], offset = awkward_offsets[j];
                        struct planes a = planes_new(n, offset, &d);
                        struct plate truth[PLANES];

                        for (int k = 0; k < PLANES; k++)
                                truth[k] = plate_new(ZERO_FP32, n, offset);
                        run(tested_ops(), scalars_for(i + 1), n, &a, a.out);
                        run(truth_ops(), scalars_for(i + 1), n, &a, truth);
                        for (int k = 0; k < PLANES; k++) {
                                cr_assert(plate_same(&a.out[k], &truth[k], ZERO_FP32, n),
                                          "plane %d, n %zu, offset %zu", k, n, offset);
                                plate_free(&truth[k]);
                        }
                        planes_free(&a);
                }
}

Test(adamw, does_not_depend_on_where_a_range_is_cut)
{
        enum { N = 5003 };
        struct dice d = { 3 };
        struct planes a = planes_new(N, 0, &d);
        const struct device_ops *ops = tested_ops();

        run(ops, scalars_for(9), N, &a, a.out);
        for (size_t i = 0, n; i < N; i += n) {
                float *p = (float *)a.in[P].data + i, *m = (float *)a.in[M].data + i;
                float *v = (float *)a.in[V].data + i;

                n = dice_bits(&d) % 300;
                n = n < N - i ? n : N - i;
                ops->adamw(scalars_for(9), n, p, m, v, (float *)a.grad.data + i, NULL);
        }
        for (int k = 0; k < PLANES; k++)
                cr_assert(plate_same(&a.out[k], &a.in[k], ZERO_FP32, N), "plane %d", k);
        planes_free(&a);
}

struct element {
        double p, m, v, change;
};

/* AdamW (Loshchilov and Hutter, arXiv 1711.05101, algorithm 2) in double. */
static struct element reference(double p, double m, double v, double g, double lr, double decay,
                                double t)
{
        const double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
        struct element e;

        e.m = beta1 * m + (1 - beta1) * g;
        e.v = beta2 * v + (1 - beta2) * g * g;
        e.change = lr * (e.m / (1 - pow(beta1, t))) / (sqrt(e.v / (1 - pow(beta2, t))) + eps);
        e.p = p * (1 - lr * decay) - e.change;
        return e;
}

Test(adamw, agrees_with_a_double_precision_reference)
{
        enum { N = 20000 };
        struct dice d = { 4 };
        float *x = malloc(7 * N * sizeof(float)), *p = x, *m = x + N, *v = x + 2 * N;
        float *g = x + 3 * N, *op = x + 4 * N, *om = x + 5 * N, *ov = x + 6 * N;

        for (uint64_t t = 1; t <= 100000; t *= 10) {
                double scale = dice_unit(&d), lr = dice_unit(&d) * 0.1, decay = dice_unit(&d);
                struct adamw_scalars s = adamw_scalars(lr, 0.9, 0.999, 1e-8, decay, t, scale);

                for (int i = 0; i < N; i++) {
                        p[i] = (float)(4 * dice_unit(&d) - 2);
                        m[i] = (float)(2 * dice_unit(&d) - 1);
                        v[i] = (float)dice_unit(&d);
                        g[i] = (float)ldexp(2 * dice_unit(&d) - 1, (int)(dice_bits(&d) % 20) - 15);
                }
                memcpy(op, x, 3 * N * sizeof(float));
                tested_ops()->adamw(&s, N, op, om, ov, g, NULL);
                for (int i = 0; i < N; i++) {
                        double gi = g[i] * (double)s.grad_scale;
                        struct element e = reference(p[i], m[i], v[i], gi, lr, decay, (double)t);
                        /* the scalars' own rounding counts: 1 - beta1 is exact to half an ulp */
                        double m_error = 4 * FLT_EPSILON * (fabs((double)m[i]) + fabs(gi));
                        double relative = m_error / (fabs(e.m) + m_error) + 8 * FLT_EPSILON;

                        cr_assert(fabs(om[i] - e.m) <= m_error);
                        cr_assert(fabs(ov[i] - e.v) <= 4 * FLT_EPSILON * e.v + FLT_MIN);
                        cr_assert(fabs(op[i] - e.p) <= 2 * FLT_EPSILON * fabs((double)p[i]) +
                                                               2 * relative * fabs(e.change) +
                                                               FLT_EPSILON * fabs(e.p));
                }
        }
        free(x);
}

Test(adamw, nan_gradient_gives_nan_and_touches_no_neighbour)
{
        enum { N = 100 };

        for (int at = 0; at < N; at++) {
                float p[N], m[N] = { 0 }, v[N] = { 0 }, g[N] = { 0 };

                for (int i = 0; i < N; i++)
                        p[i] = 1.0f;
                g[at] = NAN;
                tested_ops()->adamw(scalars_for(1), N, p, m, v, g, NULL);
                for (int i = 0; i < N; i++) {
                        cr_assert_eq(isnan(p[i]) != 0, i == at);
                        cr_assert_eq(isnan(m[i]) != 0, i == at);
                        cr_assert_eq(isnan(v[i]) != 0, i == at);
                }
        }
}
