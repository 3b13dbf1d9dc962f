/*
 * gpu_window.h - memory of a GPU for what trainers of a job map: gathered groups, gradients.
 *
 * It counts for the job's user, who has at most so much of each GPU as the option gpu_windows says.
 */
#pragma once

#include "daemon/device/segment/segment.h"
#include "proto/layout.h"

struct job;

struct gpu_window {
        char what[ZERO_NAME_MAX + 60]; /* it is for */
        uint64_t bytes;                /* 0: none is needed */
        struct segment segment;        /* fd -1 until it is made */
};

/* Whether all of them may be made now; ZERO_EQUOTA.  On the loop thread. */
int gpu_windows_check(const struct job *job, uint32_t gpu, const struct gpu_window *windows,
                      uint32_t n, struct fault *fault);
/* As segment_new_on_gpu(), charged; not on the loop thread. */
int gpu_window_make(uint32_t gpu, uint32_t uid, struct gpu_window *w, struct fault *fault);
