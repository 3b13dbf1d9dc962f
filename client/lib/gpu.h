/*
 * The GPU that a rank names: the daemon's windows on it, and events that tell when work on it is
 * done.  All CUDA calls are in the plugin zerod-cuda.so, which libzero loads when a rank names a
 * device; libzero does not link CUDA.
 *
 * Events are made when the plugin is loaded, and the request to attach tells the daemon their
 * handles.  A request that is ordered behind GPU work names an event (gpu_name()).  The event is
 * free again when that request was answered (gpu_answered()) or never will be (gpu_forget()); only
 * a free event is recorded.  If the daemon cannot open events, or the driver passes none to other
 * processes, no request names one (no_events).  Then the client itself waits until the event is
 * done.
 *
 * Events are never destroyed.  The daemon may poll one until it hears that the client has gone, and
 * CUDA leaves undefined what a poll of a destroyed event finds.  The next client of this process
 * takes them over.
 */
#pragma once

#include "mapping.h"
#include "proto/fault.h"
#include "proto/zero_gpu.h"

/* Of one GPU; the events of one client, or of none. */
struct gpu_events {
        struct gpu_events *next; /* of those without a client */
        const struct zero_gpu_client *plugin;
        int ordinal;
        uint32_t n;
        bool alone; /* the driver passes them to no other process: there are no handles */
        void *event[ZERO_GPU_EVENTS];
        uint8_t handle[ZERO_GPU_EVENTS][ZERO_GPU_HANDLE];
};

struct gpu {
        void *library;
        const struct zero_gpu_client *plugin;
        int ordinal;
        uint8_t uuid[ZERO_GPU_UUID];
        struct gpu_events *events; /* NULL: none were asked for */
        uint32_t next;             /* where the search for a free event begins */
        bool named[ZERO_GPU_EVENTS];
        bool no_events; /* the daemon cannot open them; set by each attach */
};

/* device: "cuda:N".  events: takes or makes them.  ZERO_EINVAL, ZERO_EGPU, ZERO_ENOMEM. */
int gpu_open(const char *device, bool events, struct gpu **ret, struct fault *fault);
/* Unmap the windows first. */
void gpu_close(struct gpu *gpu);

/* Maps by descriptor, which stays the caller's, or by handle if fd < 0.  -errno. */
int gpu_map(const struct gpu *gpu, int fd, const uint8_t *handle, uint64_t bytes,
            struct mapping *ret);

/* Enqueues a copy on the stream, from and to memory of either kind.  -errno. */
int gpu_copy(const struct gpu *gpu, void *dst, const void *src, uint64_t bytes, void *stream);
/* Whole pages of host memory, so that copies from and to them run ahead of the stream.  -errno. */
int gpu_pin(const struct gpu *gpu, void *memory, uint64_t bytes);
void gpu_unpin(const struct gpu *gpu, void *memory);

bool gpu_has_free_event(const struct gpu *gpu);
/*
 * Records a free event behind the work on the stream.  *ret_event is its name in messages: 1 + its
 * index.  -errno.
 */
int gpu_record(struct gpu *gpu, void *stream, uint32_t *ret_event);
/* Whether the work behind the event, by its name in messages, is done: 1, 0, -errno. */
int gpu_done(const struct gpu *gpu, uint32_t event);
/* A request names the event; 0: none. */
void gpu_name(struct gpu *gpu, uint32_t event);
/* The request that named the event was answered; gpu may be NULL if event is 0. */
void gpu_answered(struct gpu *gpu, uint32_t event);
/* No pending request will be answered; gpu may be NULL. */
void gpu_forget(struct gpu *gpu);
