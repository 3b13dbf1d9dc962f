/*
 * The element-wise operations and reductions over rows.
 *
 * Rule: each loop is written so that the compiler vectorises it; KERNEL builds a copy per
 * instruction set and chooses at start.  Sums over a row may be reordered, so results differ in
 * the last bits between machines, never between two runs on one machine.
 */
#include "ops.h"

/* clang 14 gives such functions a name that other files do not find. */
#if defined(__x86_64__) && !defined(__clang__)
#define KERNEL __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define KERNEL
#endif
#define INLINE static inline __attribute__((always_inline))

#define LAYERNORM_EPS ((real)1e-5)

INLINE real row_sum(size_t n, const real *x)
{
        real sum = 0;
#pragma omp simd reduction(+ : sum)
        for (size_t i = 0; i < n; i++)
                sum += x[i];
        return sum;
}

INLINE real row_dot(size_t n, const real *x, const real *y)
{
        real sum = 0;
#pragma omp simd reduction(+ : sum)
        for (size_t i = 0; i < n; i++)
                sum += x[i] * y[i];
        return sum;
}

INLINE real greater(real x, real y)
{
        return x > y ? x : y;
}

/* In lanes by hand: compilers that mind NaN do not vectorise a maximum. */
INLINE real row_max(size_t n, const real *x)
{
        enum { LANES = 16 };
        real max[LANES];
        for (size_t k = 0; k < LANES; k++)
                max[k] = x[0];
        size_t i = 0;
        for (; i + LANES <= n; i += LANES)
                for (size_t k = 0; k < LANES; k++)
                        max[k] = greater(x[i + k], max[k]);
        for (; i < n; i++)
                max[0] = greater(x[i], max[0]);
        for (size_t k = 1; k < LANES; k++)
                max[0] = greater(max[k], max[0]);
        return max[0];
}

INLINE real row_variance(size_t n, const real *x, real mean)
{
        real sum = 0;
#pragma omp simd reduction(+ : sum)
        for (size_t i = 0; i < n; i++)
                sum += (x[i] - mean) * (x[i] - mean);
        return sum / (real)n;
}

/* x becomes exp(x - max); the result is their sum. */
INLINE real row_exp(size_t n, real *x, real max)
{
        real sum = 0;
#pragma omp simd reduction(+ : sum)
        for (size_t i = 0; i < n; i++) {
                x[i] = real_exp(x[i] - max);
                sum += x[i];
        }
        return sum;
}

KERNEL void layernorm_forward(size_t rows, size_t width, const real *x, const real *weight,
                              const real *bias, real *ret_out, real *ret_mean, real *ret_rstd)
{
        for (size_t r = 0; r < rows; r++, x += width, ret_out += width) {
                real mean = row_sum(width, x) / (real)width;
                real rstd = 1 / real_sqrt(row_variance(width, x, mean) + LAYERNORM_EPS);
#pragma omp simd
                for (size_t i = 0; i < width; i++)
                        ret_out[i] = (x[i] - mean) * rstd * weight[i] + bias[i];
                ret_mean[r] = mean;
                ret_rstd[r] = rstd;
        }
}

/* With h = (x - mean) * rstd and g = dout * weight:
 * dx = rstd * (g - mean(g) - h * mean(g * h)). */
KERNEL void layernorm_backward(size_t rows, size_t width, const real *dout, const real *x,
                               const real *weight, const real *mean, const real *rstd, real *dx,
                               real *dweight, real *dbias)
{
        for (size_t r = 0; r < rows; r++, x += width, dout += width, dx += width) {
                real m = mean[r], s = rstd[r], sum_g = 0, sum_gh = 0;
#pragma omp simd reduction(+ : sum_g, sum_gh)
                for (size_t i = 0; i < width; i++) {
                        real h = (x[i] - m) * s, g = dout[i] * weight[i];
                        sum_g += g;
                        sum_gh += g * h;
                        dweight[i] += dout[i] * h;
                        dbias[i] += dout[i];
                }
                sum_g /= (real)width;
                sum_gh /= (real)width;
#pragma omp simd
                for (size_t i = 0; i < width; i++) {
                        real h = (x[i] - m) * s;
                        dx[i] += s * (dout[i] * weight[i] - sum_g - h * sum_gh);
                }
        }
}

/* tanh(sqrt(2 / pi) * (x + 0.044715 x^3)) */
INLINE real gelu_tanh(real x)
{
        real u = (real)0.7978845608028654 * (x + (real)0.044715 * x * x * x);
        return 1 - 2 / (1 + real_exp(2 * u));
}

KERNEL void gelu_forward(size_t n, const real *x, real *ret_out)
{
#pragma omp simd
        for (size_t i = 0; i < n; i++)
                ret_out[i] = (real)0.5 * x[i] * (1 + gelu_tanh(x[i]));
}

KERNEL void gelu_backward(size_t n, const real *x, real *d)
{
#pragma omp simd
        for (size_t i = 0; i < n; i++) {
                real t = gelu_tanh(x[i]);
                real du = (real)0.7978845608028654 * (1 + (real)0.134145 * x[i] * x[i]);
                d[i] *= (real)0.5 * (1 + t) + (real)0.5 * x[i] * (1 - t * t) * du;
        }
}

KERNEL void softmax_forward(size_t rows, size_t columns, size_t stride, size_t visible,
                            real *scores)
{
        for (size_t r = 0; r < rows; r++, scores += stride) {
                size_t n = visible + r;
                real inverse = 1 / row_exp(n, scores, row_max(n, scores));
#pragma omp simd
                for (size_t i = 0; i < n; i++)
                        scores[i] *= inverse;
                for (size_t i = n; i < columns; i++)
                        scores[i] = 0;
        }
}

KERNEL void softmax_backward(size_t rows, size_t columns, const real *probability,
                             size_t probability_stride, real scale, real *d, size_t d_stride)
{
        for (size_t r = 0; r < rows; r++, probability += probability_stride, d += d_stride) {
                real dot = row_dot(columns, probability, d);
#pragma omp simd
                for (size_t i = 0; i < columns; i++)
                        d[i] = probability[i] * (d[i] - dot) * scale;
        }
}

INLINE double row_exp_sum(size_t n, const real *x, real max)
{
        double sum = 0;
#pragma omp simd reduction(+ : sum)
        for (size_t i = 0; i < n; i++)
                sum += (double)real_exp(x[i] - max);
        return sum;
}

KERNEL double cross_entropy(size_t rows, size_t classes, const real *logits, const uint8_t *targets)
{
        double loss = 0;
        for (size_t r = 0; r < rows; r++, logits += classes) {
                real max = row_max(classes, logits);
                loss += log(row_exp_sum(classes, logits, max)) + (double)(max - logits[targets[r]]);
        }
        return loss;
}

KERNEL void cross_entropy_backward(size_t rows, size_t classes, const uint8_t *targets, real scale,
                                   real *logits)
{
        for (size_t r = 0; r < rows; r++, logits += classes) {
                real factor = scale / row_exp(classes, logits, row_max(classes, logits));
#pragma omp simd
                for (size_t i = 0; i < classes; i++)
                        logits[i] *= factor;
                logits[targets[r]] -= scale;
        }
}

KERNEL void broadcast_bias(size_t rows, size_t width, const real *base, const real *bias,
                           real *ret_out)
{
        if (!base) {
                for (size_t r = 0; r < rows; r++)
                        memcpy(ret_out + r * width, bias, width * sizeof(*bias));
                return;
        }
        for (size_t r = 0; r < rows; r++, base += width, ret_out += width)
#pragma omp simd
                for (size_t i = 0; i < width; i++)
                        ret_out[i] = base[i] + bias[i];
}

KERNEL void bias_backward(size_t rows, size_t width, const real *d, real *dbias)
{
        for (size_t r = 0; r < rows; r++, d += width)
#pragma omp simd
                for (size_t i = 0; i < width; i++)
                        dbias[i] += d[i];
}
