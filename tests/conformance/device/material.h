/*
 * What the conformance tests of struct device_ops share: the implementation under test,
 * the scalar truth, awkward sizes and values, and memory with a margin that must not change.
 */
#pragma once

#include "daemon/compute/device/device.h"

/*
 * The implementation that $ZEROD_TEST_ISA names; NULL if this machine cannot run it.  "gpu":
 * gpu_ops() with operands in all places (placed.h).
 */
const struct device_ops *tested_ops(void);
bool gpus_tested(void);
const struct device_ops *truth_ops(void);

/* Sizes around one vector, a pair, a block of norm(), a chunk, a large odd one. */
extern const size_t awkward_sizes[];
extern const size_t n_awkward_sizes;
/* Places for an element off a line's start, in elements. */
extern const size_t awkward_offsets[];
extern const size_t n_awkward_offsets;

/* A reproducible generator. */
struct dice {
        uint64_t state;
};
uint64_t dice_bits(struct dice *d);
double dice_unit(struct dice *d); /* in [0, 1) */

/* n elements of `dtype` at `offset` elements past a 64-byte boundary, a margin on both sides. */
struct plate {
        uint8_t *memory;
        size_t bytes;
        void *data;
};
struct plate plate_new(enum zero_dtype dtype, size_t n, size_t offset);
void plate_free(struct plate *p);
/* Arbitrary bits: NaN, infinities, subnormals, -0, ties; half of them ordinary numbers. */
void plate_fill(struct plate *p, enum zero_dtype dtype, size_t n, struct dice *d);

/* Elements are equal to the bit, or both NaN; margins are equal. */
bool plate_same(const struct plate *a, const struct plate *b, enum zero_dtype dtype, size_t n);
/* Everything is equal to the bit, NaN too. */
bool plate_identical(const struct plate *a, const struct plate *b);
