/* AdamW: equal to a double-precision AdamW within rounding. */
#include <criterion/criterion.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/conformance/device/material.h"
#include "tests/support/adamw.h"

static const struct update_scalars *scalars_for(uint64_t t)
{
        static struct update_scalars s;

        s = adamw_scalars(1e-3, 0.9, 0.999, 1e-8, 0.01, t, 0.37);
        return &s;
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
                struct update_scalars s = adamw_scalars(lr, 0.9, 0.999, 1e-8, decay, t, scale);

                for (int i = 0; i < N; i++) {
                        p[i] = (float)(4 * dice_unit(&d) - 2);
                        m[i] = (float)(2 * dice_unit(&d) - 1);
                        v[i] = (float)dice_unit(&d);
                        g[i] = (float)ldexp(2 * dice_unit(&d) - 1, (int)(dice_bits(&d) % 20) - 15);
                }
                memcpy(op, x, 3 * N * sizeof(float));
                run_adamw(tested_ops(), &s, N, op, om, ov, g, NULL);
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
                run_adamw(tested_ops(), scalars_for(1), N, p, m, v, g, NULL);
                for (int i = 0; i < N; i++) {
                        cr_assert_eq(isnan(p[i]) != 0, i == at);
                        cr_assert_eq(isnan(m[i]) != 0, i == at);
                        cr_assert_eq(isnan(v[i]) != 0, i == at);
                }
        }
}
