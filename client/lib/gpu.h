/*
 * The GPU that a rank names: windows of the daemon's that lie on it, and events that tell when work
 * on it is done.  All of CUDA is in the plugin zerod-cuda.so, which is loaded when a rank
 * names a device; libzero links none.
 *
 * Events: made when the plugin is loaded, and known to the daemon by their handles from the
 * attach on.  An event is free until a request names it (gpu_name()), and again when that request
 * has been answered (gpu_answered()) or can be answered no more (gpu_forget()).  It is recorded
 * only while it is free.  Where the daemon cannot open them (no_events) no request names one: the
 * client itself waits until the event is done.
 */
#pragma once

#include "mapping.h"
#include "proto/fault.h"
#include "proto/zero_gpu.h"

struct gpu {
        void *library;
        const struct zero_gpu_client *plugin;
        int ordinal;
        uint8_t uuid[ZERO_GPU_UUID];
        uint32_t n_events, next; /* next: where the search for a free one begins */
        void *events[ZERO_GPU_EVENTS];
        uint8_t handles[ZERO_GPU_EVENTS][ZERO_GPU_HANDLE];
        bool named[ZERO_GPU_EVENTS];
        bool no_events; /* that the daemon could look at; set by each attach */
};

/* device: "cuda:N".  ZERO_EINVAL, ZERO_EGPU, ZERO_ENOMEM. */
int gpu_open(const char *device, struct gpu **ret, struct fault *fault);
/* Windows are unmapped before. */
void gpu_close(struct gpu *gpu);

/* By descriptor, which stays the caller's, or by handle if fd < 0.  -errno. */
int gpu_map(const struct gpu *gpu, int fd, const uint8_t *handle, uint64_t bytes,
            struct mapping *ret);

bool gpu_has_free_event(const struct gpu *gpu);
/*
 * Records a free event behind what is on the stream.  *ret_event is as messages name it: 1 + its
 * index.  -errno.
 */
int gpu_record(struct gpu *gpu, void *stream, uint32_t *ret_event);
/* Whether the work behind the event, as messages name it, is done: 1, 0, -errno. */
int gpu_done(const struct gpu *gpu, uint32_t event);
/* A request names the event; 0: none. */
void gpu_name(struct gpu *gpu, uint32_t event);
/* ... and was answered; gpu may be NULL if it named none. */
void gpu_answered(struct gpu *gpu, uint32_t event);
/* No request will be answered any more; gpu may be NULL. */
void gpu_forget(struct gpu *gpu);
