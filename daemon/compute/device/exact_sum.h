/*
 * An exact sum of doubles: a fixed-point number wide enough for every finite
 * double, in signed 64-bit bins of 32 bits each.  Adding and merging are associative
 * and commutative to the bit; only exact_sum_value() rounds, once.
 * Infinities and NaNs must not be added (callers count them apart).
 */
#pragma once

#include <stdint.h>

enum { EXACT_SUM_BINS = 68 };

struct exact_sum {
        int64_t bin[EXACT_SUM_BINS]; /* bin i weighs 2^(32 * i - 1074) */
        uint32_t pending;            /* additions since the carries were last propagated */
};

void exact_sum_init(struct exact_sum *s);
void exact_sum_add(struct exact_sum *s, double x);
void exact_sum_merge(struct exact_sum *s, const struct exact_sum *other);
/* Propagates carries: equal sums then have equal bins. */
void exact_sum_normalize(struct exact_sum *s);
/* Rounded to the nearest double; above the largest double: infinity. */
double exact_sum_value(const struct exact_sum *s);
