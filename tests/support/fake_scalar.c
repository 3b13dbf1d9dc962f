/* The operations by the scalar host kernels, the truth. */
#include <stdlib.h>
#include <string.h>

#include "cuda/kernels.h"
#include "daemon/compute/device/host.h"

static void update(const struct update_piece *u)
{
        if (u->n == 0)
                return;
        float *grad = malloc(u->n * sizeof *grad);
        const struct reduce_piece sum = { grad, u->n, u->k, u->grad, true };

        if (!grad)
                abort();
        host_scalar_ops.reduce(&sum, 1, u->wire, u->from, 0, NULL, NULL);
        for (uint32_t k = 0; k < update_planes(u->rule, &u->scalars); k++)
                memmove(u->out[k], u->in[k], u->n * sizeof(float));
        host_scalar_ops.update(u->rule, &u->scalars, u->n, u->out, grad, NULL);
        if (u->serve)
                host_scalar_ops.serve(u->serve_dtype, u->serve, u->out[0], u->n);
        free(grad);
}

int cuda_update(const struct update_piece *pieces, size_t n, void *stream)
{
        for (size_t i = 0; i < n; i++)
                update(&pieces[i]);
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

static void reduce_piece(const struct zero_cuda_reduce *r, struct reduce_piece p,
                         struct exact_sum *sum, bool *finite)
{
        float *own = p.acc ? NULL : malloc((p.n + 1) * sizeof *own);

        if (own)
                p.acc = own;
        if (!p.acc)
                abort();
        host_scalar_ops.reduce(&p, 1, r->wire, r->from, r->scale, r->norm ? sum : NULL, finite);
        free(own);
}

int cuda_reduce(const struct zero_cuda_reduce *reduce, void *stream)
{
        struct exact_sum sum;
        bool finite = true;

        exact_sum_init(&sum);
        for (size_t i = 0; i < reduce->n_pieces; i++)
                reduce_piece(reduce, reduce->pieces[i], &sum, &finite);
        for (int i = 0; reduce->norm && i < EXACT_SUM_BINS; i++)
                reduce->norm->bin[i] += sum.bin[i];
        if (!finite)
                reduce->norm->nonfinite = 1;
        return 0;
}
