/*
 * zero_gpu.h - what a trainer asks of the plugin zerod-cuda.so: to see GPU memory of the daemon's,
 * and to say when its own GPU has come to a point.
 *
 * Memory: the daemon allocates a window on the GPU that the trainer names (by UUID: ordinals differ
 * between processes) and passes a POSIX descriptor of it over the socket, or, where the driver
 * exports none, a legacy handle in the message.
 *
 * Events: calls of the CPU run ahead of the GPU.  A release or a push that must not count before
 * the work enqueued on a stream is done records an event on that stream first and names it in the
 * message; the daemon looks at the event and never makes its own GPU work wait for it.  The
 * trainer makes its events once, when it attaches, and passes their handles then; one may be
 * recorded again when the message that named it has been answered.
 *
 * The driver keeps an event that others may open in files of its maker's user: a daemon of another
 * user, or with another /dev/shm, cannot open it.  Such a daemon says so when the trainer attaches
 * (AttachReply.no_events), and the trainer itself looks at the event until it is done before it
 * sends the message, which then names none.
 *
 * dlopen() the plugin, look up ZERO_GPU_SYMBOL, call it, and compare abi_version before anything
 * else.  Functions return 0 or -errno as in cuda/zero_cuda.h, act on the ordinal-th GPU of the
 * calling process and leave the thread's current GPU as it was.
 */
#pragma once

#include <stdint.h>

#define ZERO_GPU_ABI_VERSION 2
/* Of type zero_gpu_fn. */
#define ZERO_GPU_SYMBOL "zero_gpu_client"

enum {
        ZERO_GPU_UUID = 16,   /* bytes */
        ZERO_GPU_HANDLE = 64, /* bytes of a handle of an event, or of memory (legacy) */
        ZERO_GPU_EVENTS = 64, /* of one rank */
};

struct zero_gpu_client {
        uint32_t abi_version; /* ZERO_GPU_ABI_VERSION; first in every version */

        int (*uuid)(int ordinal, uint8_t ret_uuid[ZERO_GPU_UUID]);
        /*
         * Maps memory that the daemon exported: by fd, which stays the caller's, or, if fd < 0, by
         * handle.  Readable and writable by the GPU; bytes as the daemon told.
         */
        int (*map)(int ordinal, int fd, const uint8_t handle[ZERO_GPU_HANDLE], uint64_t bytes,
                   void **ret_memory);
        /* Waits for the GPU's work on it. */
        void (*unmap)(void *memory);
        /* An event that other processes may look at. */
        int (*event_new)(int ordinal, uint8_t ret_handle[ZERO_GPU_HANDLE], void **ret_event);
        /* stream: a cudaStream_t of that GPU, NULL for the default one. */
        int (*event_record)(void *event, void *stream);
        /* Whether what was recorded last is done: 1, 0 not yet, or -errno; does not wait. */
        int (*event_done)(void *event);
        void (*event_free)(void *event);
};

typedef const struct zero_gpu_client *zero_gpu_fn(void);
