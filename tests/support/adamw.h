/* adamw.h - AdamW by name, for tests and benchmarks of what every optimizer has. */
#pragma once

#include "daemon/compute/device/device.h"
#include "daemon/compute/optimizer/optimizer.h"

static inline struct update_scalars adamw_scalars(double lr, double beta1, double beta2, double eps,
                                                  double weight_decay, uint64_t t,
                                                  double grad_scale)
{
        const double x[OPTIMIZER_VALUES] = { lr, beta1, beta2, eps, weight_decay };

        return optimizer_adamw.scalars(x, t, grad_scale);
}

static inline void run_adamw(const struct device_ops *ops, const struct update_scalars *s, size_t n,
                             float *p, float *m, float *v, const float *grad,
                             const struct update_undo *undo)
{
        ops->update(UPDATE_ADAMW, s, n, (float *const[]){ p, m, v }, grad, undo);
}
