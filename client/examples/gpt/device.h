/*
 * Views and gradients on a GPU, for a trainer that computes on the CPU: copies between the two.
 *
 * A trainer with kernels of its own does not need this: it works on the addresses from
 * zero_fetch() and zero_grad(), and passes its stream to zero_release(), zero_push() and
 * zero_step().  The copies go through zerod's plugin, so that this example builds without CUDA.
 */
#pragma once

#include <stddef.h>

#include "proto/fault.h"
#include "zero.h"

struct device;

/* name: as zero_needs.device, after zero_attach() has taken it; bytes: the most of one copy.  A
 * zero_status. */
int device_new(const char *name, size_t bytes, struct fault *fault, struct device **ret_device);
/* NULL is allowed. */
void device_free(struct device *device);
/* Host memory for copies, of the size passed to device_new(). */
void *device_staging(const struct device *device);
/* Copies between host and GPU, either way, and waits for the end.  A zero_status. */
int device_copy(const struct device *device, void *to, const void *from, size_t bytes,
                struct fault *fault);
/* The stream of the copies. */
struct zero_sync *device_sync(struct device *device);
