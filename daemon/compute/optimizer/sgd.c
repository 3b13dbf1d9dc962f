/* Stochastic gradient descent as torch.optim.SGD computes it: plain, which keeps no plane, and with
 * momentum, Nesterov's or ordinary (Sutskever and others, ICML 2013). */
#include "daemon/compute/optimizer/optimizer.h"

enum { LR, MOMENTUM, DAMPENING, WEIGHT_DECAY, NESTEROV, MAXIMIZE };

/* The first gradient becomes the momentum, without dampening. */
static struct update_scalars sgd_scalars(const double *x, uint64_t t, double grad_scale)
{
        bool first = t == 1, nesterov = x[NESTEROV] != 0;

        return (struct update_scalars){
                .grad_scale = (float)(x[MAXIMIZE] != 0 ? -grad_scale : grad_scale),
                .sgd = { .weight_decay = (float)x[WEIGHT_DECAY],
                         .lr = (float)x[LR],
                         .momentum = first ? 0 : (float)x[MOMENTUM],
                         .one_minus_dampening = first ? 1 : (float)(1.0 - x[DAMPENING]),
                         .g_part = nesterov ? 1 : 0,
                         .b_part = nesterov ? (float)x[MOMENTUM] : 1 },
        };
}

/* Without momentum its hyperparameters are 0. */
#define SGD(row, label, of, number, flag, moment)                                             \
        const struct optimizer row = { .name = label,                                         \
                                       .rule = of,                                            \
                                       .moments = { moment },                                 \
                                       .values = { [LR] = { "lr", HYPER_FP32 },               \
                                                   [MOMENTUM] = { "momentum", number },       \
                                                   [DAMPENING] = { "dampening", number },     \
                                                   [WEIGHT_DECAY] = { "weight_decay",         \
                                                                      HYPER_FP32 },           \
                                                   [NESTEROV] = { "nesterov", flag },         \
                                                   [MAXIMIZE] = { "maximize", HYPER_FLAG } }, \
                                       .scalars = sgd_scalars }

SGD(optimizer_sgd, "sgd", UPDATE_SGD, HYPER_NONE, HYPER_NONE, NULL);
SGD(optimizer_sgd_momentum, "sgd-momentum", UPDATE_SGD_MOMENTUM, HYPER_FP32, HYPER_FLAG,
    "momentum_buffer");
