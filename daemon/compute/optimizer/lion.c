/* Lion (Chen and others, arXiv 2302.06675, algorithm 2). */
#include "daemon/compute/optimizer/optimizer.h"

enum { LR, BETA1, BETA2, WEIGHT_DECAY, MAXIMIZE };

static struct update_scalars lion_scalars(const double *x, uint64_t t, double grad_scale)
{
        return (struct update_scalars){
                .grad_scale = (float)(x[MAXIMIZE] != 0 ? -grad_scale : grad_scale),
                .lion = { .decay = (float)(1.0 - x[LR] * x[WEIGHT_DECAY]),
                          .lr = (float)x[LR],
                          .beta1 = (float)x[BETA1],
                          .one_minus_beta1 = (float)(1.0 - x[BETA1]),
                          .beta2 = (float)x[BETA2],
                          .one_minus_beta2 = (float)(1.0 - x[BETA2]) },
        };
}

const struct optimizer optimizer_lion = {
        .name = "lion",
        .rule = UPDATE_LION,
        .moments = { "exp_avg" },
        .values = { [LR] = { "lr", HYPER_FP32 },
                    [BETA1] = { "beta1", HYPER_UNIT },
                    [BETA2] = { "beta2", HYPER_UNIT },
                    [WEIGHT_DECAY] = { "weight_decay", HYPER_DECAY },
                    [MAXIMIZE] = { "maximize", HYPER_FLAG } },
        .scalars = lion_scalars,
};
