/*
 * The scalars of an AdamW update: in double, each rounded once to fp32.
 *
 * Powers are taken by squaring and not by pow(), which may differ by an ulp between
 * C libraries and CPUs: owners on different machines must agree to the bit.
 */
#include "daemon/device/device.h"

#include <math.h>

/* The relative error grows with t and the power shrinks faster: 1 - beta^t is good to
 * a few ulp of 1 / (1 - beta). */
static double power(double base, uint64_t t)
{
        double result = 1.0;

        for (; t; t >>= 1) {
                if (t & 1)
                        result *= base;
                base *= base;
        }
        return result;
}

struct adamw_scalars adamw_scalars(double lr, double beta1, double beta2, double eps,
                                   double weight_decay, uint64_t t, double grad_scale)
{
        return (struct adamw_scalars){
                .grad_scale = (float)grad_scale,
                .decay = (float)(1.0 - lr * weight_decay),
                .one_minus_beta1 = (float)(1.0 - beta1),
                .beta2 = (float)beta2,
                .one_minus_beta2 = (float)(1.0 - beta2),
                .step_size = (float)(lr / (1.0 - power(beta1, t))),
                .sqrt_bias2 = (float)sqrt(1.0 - power(beta2, t)),
                .eps = (float)eps,
        };
}
