/*
 * device.h - one device that holds shards and computes on them: the host, or a GPU.
 *
 * Every operation is synchronous and runs on an offload thread, never on the loop.
 * Memory is chosen by the caller; ranges of different arguments do not overlap unless
 * stated.  All implementations agree to the bit (daemon/compute/README.md, Arithmetic): fp32 in a
 * fixed order, no contraction, correctly rounded division and square root.
 * tests/conformance/device holds each of them against the scalar truth.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/compute/device/exact_sum.h"
#include "daemon/compute/device/pieces.h"
#include "daemon/compute/device/product.h"
#include "daemon/compute/device/saved.h"
#include "proto/zero_types.h"

struct device_ops {
        const char *name;

        /*
         * Changes n elements of the planes of a rule, master first, by their gradient (rules.h).
         * undo: only for host memory; NULL: nothing is saved.
         */
        void (*update)(enum update_rule rule, const struct update_scalars *s, size_t n,
                       float *const *planes, const float *grad, const struct update_undo *undo);
        /* Only for host memory. */
        void (*update_packed)(const struct packed_update *u);
        /*
         * dst = src in another dtype, rounded to nearest even.  Any pair with fp32 on one
         * side, or the same dtype twice (a copy).  Large copies bypass the cache.
         */
        void (*cast)(enum zero_dtype to, void *dst, enum zero_dtype from, const void *src,
                     size_t n);
        /* As cast from fp32, by stores that bypass the cache: for the serve plane, which
         * this core will not read again soon.  Other threads see them in order after a
         * mutex or a system call of this thread, not after a mere release store. */
        void (*serve)(enum zero_dtype to, void *dst, const float *src, size_t n);
        /* acc = src (if first), otherwise acc + src; src widened to fp32. */
        void (*accumulate)(float *acc, enum zero_dtype from, const void *src, size_t n, bool first);
        /*
         * dst = the sum of k sources of one dtype, taken in order in fp32, rounded once to
         * dtype `to`.  k >= 1.
         */
        void (*sum)(enum zero_dtype to, void *dst, enum zero_dtype from, const void *const *src,
                    size_t k, size_t n);
        /*
         * Adds scale * (sum of x squared) of each block of 128 elements (the last may
         * be shorter) to *acc.  A block with a NaN or an infinity, or whose scaled sum is
         * beyond a double, is left out and clears *finite (never set here).  A block's sum is taken
         * in double in a fixed order.  So neither cuts at block boundaries nor the order of calls
         * change the result.
         */
        void (*norm)(const float *x, size_t n, double scale, struct exact_sum *acc, bool *finite);
        /*
         * A gradient's reduction, in one pass over memory: acc of each piece = the sum of its
         * sources (first) or acc + that (else).  Sources of dtype `from` are added in order in
         * fp32, and their sum is rounded once to dtype `wire`.  A sum beyond that dtype's range
         * becomes an infinity, which the norm reports.  Then, unless norm is NULL, as norm() of
         * every piece's acc.
         */
        void (*reduce)(const struct reduce_piece *pieces, size_t n_pieces, enum zero_dtype wire,
                       enum zero_dtype from, double scale, struct exact_sum *norm, bool *finite);
        /*
         * n elements of src in a format, and back; n is a multiple of FORMAT_STEP.  served: of
         * BF16_16 and BF16_8, written by pack() and read by unpack().  dither: dither_at().
         */
        void (*pack)(enum format format, void *dst, uint16_t *served, const float *src, size_t n,
                     uint32_t dither);
        void (*unpack)(enum format format, float *dst, const uint16_t *served, const void *src,
                       size_t n);
        /* Zeroes / copies n bytes; a large n bypasses the cache. */
        void (*zero)(void *dst, size_t n);
        void (*copy)(void *dst, const void *src, size_t n);
        /* A product of matrices (product.h), only in host memory.  from: the sums from which its
         * chains go on, [rows][cols] by p->stride; NULL: from +0.  to: takes the sums instead of
         * p->out, laid out likewise; it may be `from`; NULL: p->out. */
        void (*product)(const struct product *p, const float *from, float *to);
};

/* The host: "scalar", "avx2", "avx512", or NULL for the best that this CPU has.  Returns NULL if
 * this CPU cannot run it, or it is unknown. */
const struct device_ops *device_host(const char *isa);
