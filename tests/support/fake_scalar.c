/* The operations by the scalar host kernels, the truth. */
#include <math.h>
#include <string.h>

#include "cuda/kernels.h"
#include "daemon/device/host.h"

int cuda_adamw(const struct zero_cuda_adamw *update, void *stream)
{
        const struct zero_cuda_adamw *u = update;
        struct adamw_scalars scalars = u->scalars;

        if (u->skip && *u->skip)
                return 0;
        if (u->grad_scale)
                scalars.grad_scale = *u->grad_scale;
        host_scalar_ops.adamw(&scalars, u->n, u->p, u->m, u->v, u->grad, u->out_p, u->out_m,
                              u->out_v);
        if (u->serve)
                host_scalar_ops.serve(u->serve_dtype, u->serve, u->out_p, u->n);
        return 0;
}

int cuda_cast(enum zero_dtype to, void *dst, enum zero_dtype from, const void *src, size_t n,
              void *stream)
{
        host_scalar_ops.cast(to, dst, from, src, n);
        return 0;
}

int cuda_accumulate(float *acc, enum zero_dtype from, const void *src, size_t n, bool first,
                    void *stream)
{
        host_scalar_ops.accumulate(acc, from, src, n, first);
        return 0;
}

int cuda_sum(enum zero_dtype to, void *dst, enum zero_dtype from, const void *const *src, size_t k,
             size_t n, void *stream)
{
        host_scalar_ops.sum(to, dst, from, src, k, n);
        return 0;
}

int cuda_norm(const float *x, size_t n, double scale, struct zero_cuda_norm *acc, void *stream)
{
        struct exact_sum sum;
        bool finite = true;

        exact_sum_init(&sum);
        host_scalar_ops.norm(x, n, scale, &sum, &finite);
        for (int i = 0; i < EXACT_SUM_BINS; i++)
                acc->bin[i] += sum.bin[i];
        if (!finite)
                acc->nonfinite = 1;
        return 0;
}

int cuda_nonfinite(enum zero_dtype dtype, const void *x, size_t n, uint32_t *flag, void *stream)
{
        for (size_t i = 0; i < n; i++) {
                const uint16_t *half = x;
                float y = dtype == ZERO_FP32   ? ((const float *)x)[i]
                          : dtype == ZERO_BF16 ? dtype_fp32_from_bf16(half[i])
                                               : dtype_fp32_from_fp16(half[i]);

                if (!isfinite(y))
                        *flag = 1;
        }
        return 0;
}
