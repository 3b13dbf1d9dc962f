/* The operations by the scalar host kernels, the truth. */
#include "cuda/kernels.h"
#include "daemon/device/host.h"

int cuda_adamw(const struct zero_cuda_adamw *pieces, size_t n, void *stream)
{
        for (const struct zero_cuda_adamw *u = pieces; u < pieces + n; u++) {
                host_scalar_ops.adamw(&u->scalars, u->n, u->p, u->m, u->v, u->grad, u->out_p,
                                      u->out_m, u->out_v);
                if (u->serve)
                        host_scalar_ops.serve(u->serve_dtype, u->serve, u->out_p, u->n);
        }
        return 0;
}

int cuda_cast(enum zero_dtype to, void *dst, enum zero_dtype from, const void *src, size_t n,
              void *stream)
{
        host_scalar_ops.cast(to, dst, from, src, n);
        return 0;
}

int cuda_sum(enum zero_dtype to, void *dst, enum zero_dtype from, const void *const *src, size_t k,
             size_t n, void *stream)
{
        host_scalar_ops.sum(to, dst, from, src, k, n);
        return 0;
}

int cuda_reduce(const struct zero_cuda_reduce *reduce, void *stream)
{
        struct exact_sum sum;
        bool finite = true;

        exact_sum_init(&sum);
        host_scalar_ops.reduce(reduce->pieces, reduce->n_pieces, reduce->wire, reduce->from,
                               reduce->scale, reduce->norm ? &sum : NULL, &finite);
        for (int i = 0; reduce->norm && i < EXACT_SUM_BINS; i++)
                reduce->norm->bin[i] += sum.bin[i];
        if (!finite)
                reduce->norm->nonfinite = 1;
        return 0;
}
