/*
 * product.h - a product of two matrices of bf16: the contract of the kernels.
 *
 *   sum[i][j] = fmaf(a[i][k], b[k][j], sum[i][j]) for k = 0, 1, ... in ascending order, from +0
 *   out[i][j] = sum[i][j]                                        without `add`
 *             = (alpha * sum[i][j]) + (beta * add[i][j])         with it
 *
 * All in fp32: both products of the second form and their sum are rounded, each once.  Then
 * out[i][j] is rounded to bf16, to nearest even.
 *
 * A product of two bf16 is exact in fp32 unless it is subnormal or too large, so the fused form
 * matters only there.
 *
 * An element's sum is one chain, which does not depend on the other elements.  So neither how a
 * product is cut into rows and columns nor the instruction set changes a bit.  The factors of a
 * chain commute: where b is a transposed, out[j][i] has the bits of out[i][j].
 *
 * A chain can stop and go on later, from its sums in memory (device_ops.product()): an fp32 keeps
 * its bits there.
 *
 * Tensor cores of a GPU add up in an order of their own (cuda/product.cu).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Most rows and columns of the result on the host: a multiple of any block's. */
enum { PRODUCT_SIDE = 192 };

/* A matrix of bf16: [r][c] is x[r * stride + c], or x[c * stride + r] if it is transposed. */
struct matrix_view {
        const uint16_t *x;
        size_t stride;
        bool transposed;
};

struct product {
        size_t rows, cols, depth; /* out is [rows][cols], depth >= 1 */
        struct matrix_view a;     /* [rows][depth] */
        struct matrix_view b;     /* [depth][cols] */
        const uint16_t *add;      /* [rows][cols], by `stride`; NULL: nothing is added */
        float alpha, beta;        /* with `add` */
        uint16_t *out;            /* overlaps no input, not even `add` */
        size_t stride;            /* of out and add */
};
