/*
 * window.h - memory of a GPU for what trainers of a job map: gathered groups, gradients.
 *
 * It counts for the job's user, who has at most so much of each GPU as the option gpu_windows says.
 */
#pragma once

#include "daemon/store/segment.h"

struct job;

/* As segment_new_on_gpu(); ZERO_EQUOTA. */
int gpu_window_new(const struct job *job, uint32_t gpu, const char *what, uint64_t bytes,
                   struct segment *ret, struct fault *fault);
