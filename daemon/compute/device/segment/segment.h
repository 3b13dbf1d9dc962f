/*
 * Memory that is passed to other processes.  In host memory it is an anonymous file (memfd) of mode
 * 0600, mapped writable here and sealed against every change of size.  On a GPU it is an
 * allocation.  No process inherits the descriptor: it is passed over a socket only.
 */
#pragma once

#include <stdbool.h>

#include "daemon/compute/device/place/place.h"
#include "proto/zero_gpu.h"

enum segment_flags {
        SEGMENT_SHARED = 0,    /* whoever gets the descriptor may write */
        SEGMENT_READ_ONLY = 1, /* only this mapping ever writes; /proc gives no other way */
        SEGMENT_SPARSE = 2,    /* memory is taken when it is touched, not reserved at once */
};

struct segment {
        int fd; /* -1: none; or it is on a GPU and is passed by its handle */
        void *data;
        uint64_t bytes;
        uint32_t place; /* other than the host: data is not for the CPU */
        uint8_t handle[ZERO_GPU_HANDLE];
};

/*
 * bytes > 0; name is seen in /proc/PID/maps.  ZERO_ESHM if there is not that much memory
 * (never for SEGMENT_SPARSE, whose writer is killed instead).  Contents are zero.
 */
int segment_new(const char *name, uint64_t bytes, unsigned flags, struct segment *ret,
                struct fault *fault);
/* As segment_new(), in a place other than the host.  ZERO_ENOMEM: not that much memory is left. */
int segment_new_away(uint32_t place, const char *name, uint64_t bytes, struct segment *ret,
                     struct fault *fault);
/* Frees a segment of the calls above, and leaves { .fd = -1 }, which is also allowed. */
void segment_free(struct segment *s);
/* Gives a file this size, and reserves its space at once.  -errno; -ENOMEM: control groups leave
 * less memory. */
int segment_reserve(int fd, uint64_t bytes);
/* True if control groups leave room for a file of this size, where its pages stay in memory. */
bool segment_fits(int fd, uint64_t bytes);
