/*
 * gpu_wait.h - until the GPU work of trainers has come to an event: looked at from a thread of its
 * own, since CUDA tells no file descriptor, and its calls may wait for a lock of the driver's.
 *
 * The thread sleeps while nothing is waited for.  All functions are called on the loop thread, and
 * callbacks come there.
 */
#pragma once

#include <uv.h>

#include "daemon/device/gpu/gpu.h"

/* Of one rank at once: each event is named by one message or two, which is then answered. */
enum { GPU_WAITS_MAX = 2 * ZERO_GPU_EVENTS };

struct gpu_waits;

/* 0: the event's work is done; -ETIMEDOUT: not by the deadline; else the event cannot be looked
 * at any more (-errno). */
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
 * The rank's session has ended: takes its events over and closes them.  What waited for them is
 * forgotten: no callback of theirs is called any more.  events may be NULL.
 */
void gpu_waits_drop(struct gpu_waits *w, struct gpu_events *events);
/*
 * All events must have been dropped, or nothing wait for them.  closed() is called on the loop
 * thread, never before this returns, when they are closed; all is freed then.
 */
void gpu_waits_close(struct gpu_waits *w, void (*closed)(void *arg), void *arg);
