/*
 * delta.h - exact differences between two versions of values.
 *
 * Rule: whoever has the old values and a block's bytes gets the new bits of each value.  A value's
 * step is counted in units of the last place, so a NaN, an infinity and -0 are values like others.
 * The bytes do not depend on the CPU that codes them.  A block has no length of its own: whoever
 * keeps blocks keeps their lengths.  What a block says of itself takes about two bytes, so small
 * changes want blocks of thousands of elements.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "proto/zero_types.h"

enum { DELTA_MOST = 65536 }; /* elements of one block */

/* Most bytes of a block of n elements: those of the values and a few more. */
size_t delta_bound(enum zero_dtype dtype, size_t n);

/*
 * Codes a block: what makes `is` of `was`, n <= DELTA_MOST elements each.  `out` has delta_bound()
 * bytes and overlaps neither.  Returns the bytes of the block; 1: nothing changed.
 */
size_t delta_code(enum zero_dtype dtype, const void *was, const void *is, size_t n, uint8_t *out);

/*
 * Turns n values in place from `was` to `is`.  The block takes all of the `bytes` bytes at p.
 * -EBADMSG: the bytes are malformed, and the values may be anything.  Whatever the bytes are,
 * nothing beyond p[0..bytes) and the values is read or written.
 */
int delta_apply(enum zero_dtype dtype, void *values, size_t n, const uint8_t *p, size_t bytes);

/* ---- string.c: blocks of a long array, one behind the other ---- */

enum { DELTA_HEADER = 3 * 9 + 4 }; /* most bytes that a block takes more in a string */

/*
 * As delta_code(), for n elements that begin with element `first` of the array.  `out` has
 * DELTA_HEADER more bytes.  A string's blocks ascend.
 */
size_t delta_append(enum zero_dtype dtype, uint64_t first, const void *was, const void *is,
                    size_t n, uint8_t *out);

/* How far a string was applied; zeros at first. */
struct delta_place {
        size_t bytes;
        uint64_t elements;
};

/*
 * Applies a string, of `bytes` bytes, to the n values of the array, from `at` on: blocks of `most`
 * elements together, and what the last one has more.  0: it is applied, 1: there is more.
 * -EBADMSG: also if the values are not those that the string was coded from.
 */
int delta_apply_string(enum zero_dtype dtype, void *values, uint64_t n, const uint8_t *p,
                       size_t bytes, struct delta_place *at, uint64_t most);
