/*
 * AdamW in one pass: reads p, m, v and the gradient once, writes p, m, v and the serve copy
 * once.  The order of operations is that of the scalar truth; built without contraction
 * and with correctly rounded division and square root.
 */
#include "cuda/kernel.cuh"

static __device__ inline void update_element(const struct adamw_scalars &s, float grad, float &p,
                                             float &m, float &v)
{
        float g = grad * s.grad_scale;

        p = p * s.decay;
        m = m + (g - m) * s.one_minus_beta1;
        v = v * s.beta2 + (g * g) * s.one_minus_beta2;
        p -= s.step_size * (m / (sqrtf(v) / s.sqrt_bias2 + s.eps));
}

static __global__ void adamw_kernel(zero_cuda_adamw a, bool aligned)
{
        sweep(a.n, aligned, [&](auto span, size_t i) {
                float p[VEC], m[VEC], v[VEC], grad[VEC];

                load(p, a.p + i, span);
                load(m, a.m + i, span);
                load(v, a.v + i, span);
                load(grad, a.grad + i, span);
#pragma unroll
                for (unsigned k = 0; k < VEC; k++)
                        update_element(a.scalars, grad[k], p[k], m[k], v[k]);
                store(a.out_p + i, p, span);
                store(a.out_m + i, m, span);
                store(a.out_v + i, v, span);
                if (a.serve)
                        store_as(a.serve_dtype, a.serve, i, p, span);
        });
}

int cuda_adamw(const zero_cuda_adamw *update, void *stream)
{
        const zero_cuda_adamw &a = *update;

        if (a.serve && !is_dtype(a.serve_dtype))
                return -EINVAL;
        /* NULL counts as aligned */
        return launch(adamw_kernel, tiles(a.n), stream, a,
                      all_aligned(a.p, a.m, a.v, a.grad, a.out_p, a.out_m, a.out_v,
                                  static_cast<const char *>(a.serve)));
}
