/* Layouts for tests: random ones, and ones of given sizes.  They abort on failure. */
#pragma once

#include "proto/layout.h"

struct rng {
        uint64_t state;
};

uint64_t rng_next(struct rng *rng);
/* 0 to n - 1. */
uint32_t rng_below(struct rng *rng, uint32_t n);

/* A valid layout with everything that can occur: empty groups, zero-element tensors,
 * scalars, rank sets, all dtypes, groups of a few elements and of many. */
layout *layouts_random(uint64_t seed);
/* One group for each size, with one tensor of that many elements. */
layout *layouts_sized(const uint64_t *elements, uint32_t n, enum zero_dtype dtype);
