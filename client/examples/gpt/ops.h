/*
 * The operations of the model that are no matrix products, forward and backward.
 *
 * Rule: backward functions add to the gradients of parameters (so that micro-batches add
 * up) and say for each gradient of an activation whether they add or overwrite.
 */
#pragma once

#include "real.h"

/* out = (x - mean) * rstd * weight + bias for each row; mean and rstd are kept for the backward. */
void layernorm_forward(size_t rows, size_t width, const real *x, const real *weight,
                       const real *bias, real *ret_out, real *ret_mean, real *ret_rstd);
/* Adds to dx, dweight and dbias. */
void layernorm_backward(size_t rows, size_t width, const real *dout, const real *x,
                        const real *weight, const real *mean, const real *rstd, real *dx,
                        real *dweight, real *dbias);

/* GELU by its tanh approximation, as in GPT-2. */
void gelu_forward(size_t n, const real *x, real *ret_out);
/* d is overwritten: gradient of the output in, of the input out. */
void gelu_backward(size_t n, const real *x, real *d);

/*
 * Softmax over rows of a causal score matrix, in place: row i sees its first visible + i
 * columns, the others up to `columns` become 0.
 */
void softmax_forward(size_t rows, size_t columns, size_t stride, size_t visible, real *scores);
/* d: gradient of the probabilities in, scale times the gradient of the scores out. */
void softmax_backward(size_t rows, size_t columns, const real *probability,
                      size_t probability_stride, real scale, real *d, size_t d_stride);

/* Sum over rows of -log softmax(logits)[target]. */
double cross_entropy(size_t rows, size_t classes, const real *logits, const uint8_t *targets);
/* logits become scale * (softmax(logits) - one-hot(target)). */
void cross_entropy_backward(size_t rows, size_t classes, const uint8_t *targets, real scale,
                            real *logits);

/* Each row of out becomes base's row (0 if base is NULL) plus bias. */
void broadcast_bias(size_t rows, size_t width, const real *base, const real *bias, real *ret_out);
/* Adds the sum of the rows of d to dbias. */
void bias_backward(size_t rows, size_t width, const real *d, real *dbias);
