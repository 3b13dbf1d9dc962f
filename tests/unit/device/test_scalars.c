/* The scalars of AdamW against long double, over the values people train with. */
#include <criterion/criterion.h>
#include <float.h>
#include <math.h>

#include "daemon/compute/device/device.h"
#include "tests/support/adamw.h"

static const double betas[] = { 0.0, 0.5, 0.9, 0.95, 0.98, 0.999, 0.9999, 0.999999 };
static const uint64_t steps[] = { 1, 2, 3, 10, 1000, 123457, 10000000, UINT64_C(1) << 40 };

enum {
        N_BETAS = sizeof(betas) / sizeof(betas[0]),
        N_STEPS = sizeof(steps) / sizeof(steps[0]),
};

/* Rounded to fp32 once, from a double that is good to a few parts in 10^10. */
static bool close_to(float got, long double expected)
{
        return fabsl(got - expected) <= 0.51L * FLT_EPSILON * fabsl(expected);
}

Test(adamw_scalars, are_within_half_an_ulp)
{
        for (int i = 0; i < N_BETAS; i++)
                for (int j = 0; j < N_STEPS; j++) {
                        double beta1 = betas[i], beta2 = betas[N_BETAS - 1 - i];
                        uint64_t t = steps[j];
                        struct update_scalars s =
                                adamw_scalars(3e-4, beta1, beta2, 1e-8, 0.1, t, 1.0 / 3.0);

                        cr_assert(close_to(s.grad_scale, 1.0 / 3.0));
                        cr_assert(close_to(s.adam.decay, 1.0L - 3e-4L * 0.1L));
                        cr_assert(close_to(s.adam.one_minus_beta1, 1.0L - beta1));
                        cr_assert(close_to(s.adam.beta2, beta2));
                        cr_assert(close_to(s.adam.one_minus_beta2, 1.0L - beta2));
                        cr_assert(close_to(s.adam.step_size, 3e-4L / (1.0L - powl(beta1, t))),
                                  "beta1 %g, t %llu", beta1, (unsigned long long)t);
                        cr_assert(close_to(s.adam.sqrt_bias2, sqrtl(1.0L - powl(beta2, t))),
                                  "beta2 %g, t %llu", beta2, (unsigned long long)t);
                        cr_assert(close_to(s.adam.eps, 1e-8L));
                }
}

Test(adamw_scalars, bias_corrections_vanish)
{
        struct update_scalars s = adamw_scalars(0.5, 0.9, 0.999, 1e-8, 0.0, UINT64_MAX, 1.0);

        cr_assert_eq(s.adam.step_size, 0.5f);
        cr_assert_eq(s.adam.sqrt_bias2, 1.0f);
        cr_assert_eq(s.adam.decay, 1.0f);
}

Test(adamw_scalars, first_step_moves_by_the_learning_rate)
{
        struct update_scalars s = adamw_scalars(0.25, 0.9, 0.999, 0.0, 0.0, 1, 1.0);
        float p = 1.0f, m = 0.0f, v = 0.0f, g = 7.0f;

        run_adamw(device_host("scalar"), &s, 1, &p, &m, &v, &g, NULL);
        cr_assert_float_eq(p, 0.75f, 1e-6f);
}
