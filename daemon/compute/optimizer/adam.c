/* Adam (arXiv 1412.6980), whose weight decay is part of the gradient, and AdamW (arXiv 1711.05101),
 * whose decay is decoupled, as torch.optim computes them. */
#include "daemon/compute/optimizer/optimizer.h"

#include <math.h>

enum { LR, BETA1, BETA2, EPS, WEIGHT_DECAY, MAXIMIZE };

/* base^n by squaring.  pow() may differ by an ulp between C libraries and CPUs, and owners on
 * different machines must agree to the bit. */
static double power(double base, uint64_t n)
{
        double result = 1.0;

        for (; n; n >>= 1) {
                if (n & 1)
                        result *= base;
                base *= base;
        }
        return result;
}

/* The relative error of beta^t grows with t, but beta^t shrinks faster: 1 - beta^t is accurate to a
 * few ulp of 1 / (1 - beta). */
static struct update_scalars scalars(const double *x, uint64_t t, double grad_scale, double decay)
{
        return (struct update_scalars){
                .grad_scale = (float)(x[MAXIMIZE] != 0 ? -grad_scale : grad_scale),
                .adam = { .decay = (float)decay,
                          .one_minus_beta1 = (float)(1.0 - x[BETA1]),
                          .beta2 = (float)x[BETA2],
                          .one_minus_beta2 = (float)(1.0 - x[BETA2]),
                          .step_size = (float)(x[LR] / (1.0 - power(x[BETA1], t))),
                          .sqrt_bias2 = (float)sqrt(1.0 - power(x[BETA2], t)),
                          .eps = (float)x[EPS] },
        };
}

static struct update_scalars adam_scalars(const double *x, uint64_t t, double grad_scale)
{
        return scalars(x, t, grad_scale, x[WEIGHT_DECAY]);
}

static struct update_scalars adamw_scalars(const double *x, uint64_t t, double grad_scale)
{
        return scalars(x, t, grad_scale, 1.0 - x[LR] * x[WEIGHT_DECAY]);
}

#define ADAM(row, label, of, function, bound)                                                  \
        const struct optimizer row = { .name = label,                                          \
                                       .rule = of,                                             \
                                       .moments = { "exp_avg", "exp_avg_sq" },                 \
                                       .squares = true,                                        \
                                       .values = { [LR] = { "lr", HYPER_FP32 },                \
                                                   [BETA1] = { "beta1", HYPER_UNIT },          \
                                                   [BETA2] = { "beta2", HYPER_UNIT },          \
                                                   [EPS] = { "eps", HYPER_DIVISOR },           \
                                                   [WEIGHT_DECAY] = { "weight_decay", bound }, \
                                                   [MAXIMIZE] = { "maximize", HYPER_FLAG } },  \
                                       .scalars = function }

ADAM(optimizer_adam, "adam", UPDATE_ADAM, adam_scalars, HYPER_FP32);
ADAM(optimizer_adamw, "adamw", UPDATE_ADAMW, adamw_scalars, HYPER_DECAY);
