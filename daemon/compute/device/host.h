/*
 * The host's implementations and what they share.  Internal to daemon/compute/device.
 *
 * Agreement: for the same arguments every implementation gives the same bits as the scalar one.
 * That includes -0, subnormals and infinities, any n and any element-aligned address.  A NaN stays
 * a NaN, quiet where a dtype changes.  Its sign and payload are not promised: they depend on the
 * order of a commutative instruction's operands.  A copy to the same dtype keeps every bit.
 */
#pragma once

#include <math.h>

#include "daemon/compute/device/device.h"
#include "proto/dtype.h"

enum {
        NORM_BLOCK = 128, /* elements of one block of norm() */
        NORM_LANES = 16,  /* double partial sums of a block: element i goes to lane i % 16 */
        /* Bytes from which a copy bypasses the cache: what is larger than L2 would drive
         * out more than it can leave behind. */
        HOST_STREAM_MIN = 1 << 20,
};

/* One way to run on this machine's CPU. */
struct host_isa {
        const struct device_ops *ops;
        bool (*supported)(void);
};

/* Best first; ends with ops NULL.  Without the scalar truth, which runs anywhere. */
extern const struct host_isa host_isas[];

extern const struct device_ops host_scalar_ops;
extern const struct device_ops host_avx2_ops;
extern const struct device_ops host_avx512_ops;

void host_scalar_pack(enum format format, void *dst, uint16_t *served, const float *src, size_t n,
                      uint32_t dither);
void host_scalar_unpack(enum format format, float *dst, const uint16_t *served, const void *src,
                        size_t n);

/* update_packed() from the other operations of an instruction set, a record at a time. */
void host_update_packed(const struct device_ops *ops, const struct packed_update *u);

/* What follows the first n elements, a multiple of FORMAT_STEP. */
struct packed_update packed_behind(const struct packed_update *u, size_t n);

/* reduce() of one piece from the other operations of an instruction set, in parts that stay in
 * L1. */
void host_reduce(const struct device_ops *ops, const struct reduce_piece *p, enum zero_dtype wire,
                 enum zero_dtype from, double scale, struct exact_sum *norm, bool *finite);

/* Adds a block's sum of squares; a sum that is not finite clears *finite instead.  A square of a
 * float is exact in double, and 128 of them cannot overflow it.  So only a NaN or an infinity in
 * the block, or a scale out of range, makes the sum not finite. */
static inline void norm_add_block(double sum, double scale, struct exact_sum *acc, bool *finite)
{
        double value = sum * scale;

        if (isfinite(value) && isfinite(sum))
                exact_sum_add(acc, value);
        else
                *finite = false;
}
