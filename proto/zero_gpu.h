/*
 * zero_gpu.h - what a trainer uses of the plugin zerod-cuda.so: GPU memory of the daemon, and
 * events that tell when the trainer's GPU has reached a point.
 *
 * Memory: the daemon allocates a window on the GPU that the trainer names (by UUID, because
 * ordinals differ between processes).  It passes a POSIX descriptor over the socket or, if the
 * driver exports none, a legacy handle in the message.
 *
 * Events: the CPU's calls run ahead of the GPU.  For a release or a push that must not count before
 * the work on a stream is done, the trainer records an event on that stream and names the event in
 * the message.  The daemon polls the event and never makes its own GPU work wait for it.  The
 * trainer makes its events once, when it attaches, and passes their handles.  It may record an
 * event again once the message that named the event is answered.  It never frees an event that the
 * daemon has heard of, because the daemon may still poll it.
 *
 * The driver keeps a shared event in files of the user who made it: a daemon of another user, or
 * with another /dev/shm, cannot open the event.  Such a daemon says so when the trainer attaches
 * (AttachReply.no_events).  The trainer then polls the event itself until it is done, and sends a
 * message that names no event.  So does a trainer whose driver gives no handles of events: it
 * attaches without any.
 *
 * dlopen() the plugin, look up ZERO_GPU_SYMBOL, call it, and compare abi_version before anything
 * else.  Functions return 0 or -errno as in cuda/zero_cuda.h, act on the ordinal-th GPU of the
 * calling process and leave the thread's current GPU as it was.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define ZERO_GPU_ABI_VERSION 5
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
         * Maps memory that the daemon exported: by fd, which stays the caller's, or by handle if
         * fd < 0; `bytes` comes from the daemon.  If not writable, a kernel that writes there is a
         * fault of this process's GPU context, where the driver maps memory so; else the write
         * changes what all processes read.
         */
        int (*map)(int ordinal, int fd, const uint8_t handle[ZERO_GPU_HANDLE], uint64_t bytes,
                   bool writable, void **ret_memory);
        /*
         * Puts memory of the same size and contents in the place of what was mapped by descriptor.
         * Waits for the GPU's work; nobody enqueues more until it returns.  -EINVAL: all is as it
         * was; other errors: nothing is mapped there any more.
         */
        int (*remap)(void *memory, int fd);
        /* Waits for the GPU's work on the memory. */
        void (*unmap)(void *memory);
        /*
         * Enqueues a copy on the stream (as event_record() takes it).  Both sides may be in host
         * memory or on the GPU; a copy from or to host memory that is not pinned may also wait for
         * the stream.
         */
        int (*copy)(int ordinal, void *dst, const void *src, uint64_t bytes, void *stream);
        /* Has the GPU read and write host memory itself: whole pages, mapped writable. */
        int (*pin)(int ordinal, void *memory, uint64_t bytes);
        /* Waits for the GPU's work. */
        void (*unpin)(int ordinal, void *memory);
        /* Makes an event that other processes can poll.  1: the driver lets only this process poll
         * the event, and ret_handle is not written. */
        int (*event_new)(int ordinal, uint8_t ret_handle[ZERO_GPU_HANDLE], void **ret_event);
        /* stream: a cudaStream_t of that GPU, NULL for the default one. */
        int (*event_record)(void *event, void *stream);
        /* Whether the work recorded last is done: 1, 0 for not yet, or -errno.  Does not wait. */
        int (*event_done)(void *event);
        /* No other process has it open. */
        void (*event_free)(void *event);
};

typedef const struct zero_gpu_client *zero_gpu_fn(void);
