/*
 * matrix.h - makes the singular values of a matrix about 1, by Newton-Schulz, as
 * torch.optim.Muon does it.
 *
 * X is the bf16 matrix, n the smaller of its sides, and X' its transposed.  With n rows:
 *
 *   X = X / max(|X|, eps)             |X|: the Frobenius norm
 *   steps times:
 *     G = X X'
 *     U = b G + c G G
 *     X = a X + U X
 *
 * A matrix with more rows than columns has G = X' X and X = a X + X U, which are the bits of the
 * transposed matrix: G and U are symmetric to the bit.  So half of each is computed, and mirrored.
 *
 * Each line's result is rounded to bf16; device/product.h has how products are added up.  The norm
 * is that of the bf16 values, summed as device_ops.norm() does it, and rounded to fp32 and then to
 * bf16; eps is rounded to bf16.  So the bits depend neither on the instruction set, nor on how a
 * stage is cut, nor on the order of its parts.  PyTorch adds products up in orders of its own,
 * which changes last places.
 *
 * A NaN or an infinity makes all values NaN.  Zeros stay zeros, if eps is not 0 in bf16; values
 * whose norm is too large for bf16 become zeros.
 *
 * A stage has parts, which are independent: any thread may run any of them, in any order, each
 * once.  A stage begins when all parts of the one before have ended.  A part takes up to about 2 ms
 * of a core with AVX-512 and 4 ms with AVX2.  Where n is above 10,000 it takes twice as long, and
 * longer above 60,000.  It takes a third of a megabyte of its thread's stack.  A deep G would take
 * longer, so its depth is cut into stages, too.  The sums between them need no memory of their own.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "daemon/compute/device/device.h"

#define ORTHO_MOST (UINT64_C(1) << 40) /* elements of a matrix */

enum { ORTHO_STEPS = 99 }; /* at most, as in PyTorch */

struct ortho_params {
        float a, b, c, eps;
        uint32_t steps;
};

/* Its members are for this room. */
struct ortho {
        const struct device_ops *ops;
        struct ortho_params params;
        uint64_t rows, cols;
        struct ortho_norm *norms; /* [parts of the first stage] */
        uint16_t *values, *other; /* [rows][cols] */
        uint16_t *gram, *update;  /* [n][n]; update: between values and other */
};

/* Bytes of memory for a matrix of rows x cols, both at least 1, of at most ORTHO_MOST elements. */
size_t ortho_bytes(uint64_t rows, uint64_t cols);

/* memory: ortho_bytes(), at a multiple of 64, until the last part has ended.  ops: of the host. */
void ortho_begin(struct ortho *o, uint64_t rows, uint64_t cols, const struct ortho_params *params,
                 void *memory, const struct device_ops *ops);

/* [rows][cols], row by row: the caller writes the matrix here before the first stage, and finds the
 * result here after the last one. */
uint16_t *ortho_values(const struct ortho *o);

uint32_t ortho_stages(const struct ortho *o);
uint32_t ortho_parts(const struct ortho *o, uint32_t stage);
void ortho_part(const struct ortho *o, uint32_t stage, uint32_t part);
/* About what all stages take one thread, where a part of about 2 ms is 1. */
double ortho_load(const struct ortho *o);

/*
 * Instead of the stages: all of them on the device that has the memory, which is not the host. They
 * begin, and place_updated() waits for them.  The memory has ortho_launch_bytes(), and the ops are
 * for any place.  Products are added up in an order of the device's own.
 */
size_t ortho_launch_bytes(uint64_t rows, uint64_t cols);
/* [rows][cols], in that memory: for the caller until ortho_launch(). */
float *ortho_launch_room(const struct ortho *o);
void ortho_launch(const struct ortho *o);

/* Operations by the formula steps * (4 n^2 m + 2 n^3), where n <= m are the sides.  The symmetry
 * saves n^2 m + n^3 of a step's. */
double ortho_flops(uint64_t rows, uint64_t cols, uint32_t steps);
