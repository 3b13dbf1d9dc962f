/*
 * The first values of tensors.  Pure; any thread.
 *
 * The bits of an element depend only on the tensor's init_seed and init_value and on the element's
 * index.  How the tensor is cut over owners makes no difference.  Neither does the processor or the
 * mathematics library of the node that computes the element.
 */
#pragma once

#include "proto/layout.h"

/*
 * dst = values of elements [first, first + count) of the tensor; elements behind the tensor's last
 * one (the alignment gap) are 0.
 */
void init_fill(float *dst, const struct layout_tensor *t, uint64_t first, uint64_t count);
