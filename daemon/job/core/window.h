/*
 * window.h - memory of a GPU that trainers map: gathered groups, gradients, stashes, bases.
 *
 * The memory is charged to the trainers' user; the option gpu_windows limits each user's memory on
 * each GPU.
 */
#pragma once

#include "daemon/compute/device/segment/segment.h"
#include "proto/layout.h"

struct engine;

struct rank_window {
        char what[ZERO_NAME_MAX + 60]; /* for messages */
        uint64_t bytes;                /* 0: not needed */
        struct segment segment;        /* fd -1: not made yet */
};

/* Whether all of them may be made now, or kept if they are made; ZERO_EQUOTA.  On the loop thread.
 */
int windows_check(const struct engine *x, uint32_t uid, uint32_t place,
                  const struct rank_window *windows, uint32_t n, struct fault *fault);
/* As segment_new_away(), and charges the user; not on the loop thread. */
int window_make(uint32_t place, uint32_t uid, struct rank_window *w, struct fault *fault);
