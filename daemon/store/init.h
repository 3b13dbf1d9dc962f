/*
 * The first values of tensors.  Pure; any thread.
 *
 * An element's value depends on the tensor's init_seed, init_value and the element's
 * index alone, to the bit: not on how the tensor is cut over owners, nor on the
 * processor or the mathematics library of the node that computes it.
 */
#pragma once

#include "proto/layout.h"

/*
 * dst = values of elements [first, first + count) of the tensor; elements behind its
 * last one (the alignment gap) are 0.
 */
void init_fill(float *dst, const struct layout_tensor *t, uint64_t first, uint64_t count);
