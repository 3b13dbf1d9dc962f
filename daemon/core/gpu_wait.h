/*
 * gpu_wait.h - waits until the GPU work of trainers reaches an event.
 *
 * CUDA has no file descriptor for that, and its calls may wait for a lock of the driver.  So a
 * thread looks at the events; it sleeps while there are none.  All functions are called, and all
 * callbacks run, on the loop thread.
 */
#pragma once

#include <uv.h>

#include "daemon/device/gpu/gpu.h"

/* Waits of one rank: one or two messages name each event and are then answered. */
enum { GPU_WAITS_MAX = 2 * ZERO_GPU_EVENTS };

struct gpu_waits;

/* 0: the event's work is done; -ETIMEDOUT: the deadline has passed; another -errno: the event can
 * no longer be looked at. */
typedef void gpu_waited(void *arg, int status);

/* -errno. */
int gpu_waits_new(uv_loop_t *loop, struct gpu_waits **ret);
/*
 * Calls done() once, never before this returns.  deadline_ms: loop time (uv_now()).
 * ZERO_EINVAL: there is no such event; ZERO_EBUSY: the rank has GPU_WAITS_MAX waits already;
 * ZERO_ENOMEM.  In these cases done() is not called.
 */
int gpu_wait(struct gpu_waits *w, struct gpu_events *events, uint32_t index, uint64_t deadline_ms,
             gpu_waited *done, void *arg, struct fault *fault);
/*
 * The rank's session has ended: takes its events over and closes them.  Their waits end without a
 * callback. events may be NULL.
 */
void gpu_waits_drop(struct gpu_waits *w, struct gpu_events *events);
/*
 * All events must have been dropped, or have no waits.  Calls closed() on the loop thread, never
 * before this returns, and frees everything.
 */
void gpu_waits_close(struct gpu_waits *w, void (*closed)(void *arg), void *arg);
