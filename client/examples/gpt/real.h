/*
 * The number type of the model, and its matrix product.
 *
 * The program computes in fp32.  The gradient check builds the same model code in double
 * (GPT_DOUBLE), where finite differences tell a wrong gradient from rounding.
 */
#pragma once

#include <cblas.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef GPT_DOUBLE

typedef double real;
#define GPT_GEMM cblas_dgemm

static inline real real_sqrt(real x)
{
        return sqrt(x);
}

static inline __attribute__((always_inline)) real real_exp(real x)
{
        return exp(x);
}

#else

typedef float real;
#define GPT_GEMM cblas_sgemm

static inline real real_sqrt(real x)
{
        return sqrtf(x);
}

/*
 * exp to about 2 units in the last place, saturating at both ends, without branches or calls, so
 * that a loop over it becomes vector code.  x = n ln 2 + r; adding 1.5 * 2^23 rounds x / ln 2 to
 * the integer n and leaves n in the low bits, from where it is shifted into the exponent.
 */
static inline __attribute__((always_inline)) real real_exp(real x)
{
        const float round = 12582912.0f;
        x = x < -87.0f ? -87.0f : x;
        x = x > 88.0f ? 88.0f : x;
        float z = x * 1.44269504f + round;
        float n = z - round;
        float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
        float p = 1.0f / 5040;
        p = p * r + 1.0f / 720;
        p = p * r + 1.0f / 120;
        p = p * r + 1.0f / 24;
        p = p * r + 1.0f / 6;
        p = p * r + 0.5f;
        p = p * r + 1.0f;
        p = p * r + 1.0f;
        uint32_t bits;
        memcpy(&bits, &z, sizeof(bits));
        bits = (bits << 23) + 0x3f800000u;
        float scale;
        memcpy(&scale, &bits, sizeof(scale));
        return p * scale;
}

#endif

/* A matrix in row-major order: the first element, and elements from row to row. */
struct matrix {
        const real *at;
        size_t stride;
        bool transposed;
};

/* out[m][n] = alpha * a[m][k] * b[k][n] + beta * out.  The extents are those after transposing. */
static inline void gemm(size_t m, size_t n, size_t k, real alpha, struct matrix a, struct matrix b,
                        real beta, real *out, size_t stride)
{
        GPT_GEMM(CblasRowMajor, a.transposed ? CblasTrans : CblasNoTrans,
                 b.transposed ? CblasTrans : CblasNoTrans, (int)m, (int)n, (int)k, alpha, a.at,
                 (int)a.stride, b.at, (int)b.stride, beta, out, (int)stride);
}
