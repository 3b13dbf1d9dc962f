/*
 * event_wait.h - waits until the GPU work of trainers reaches an event.
 *
 * CUDA has no file descriptor for an event, and its calls may wait for a lock of the driver.  So a
 * thread looks at the events; it sleeps while there are none.  All functions are called, and all
 * callbacks run, on the loop thread.
 */
#pragma once

#include "daemon/step/rank/rank.h"

/* The most waits of one rank: one or two messages wait for each event. */
enum { EVENT_WAITS_MAX = 2 * ZERO_GPU_EVENTS };

/* status: 0: the event's work is done; -ETIMEDOUT: the deadline has passed; another -errno: the
 * event can no longer be looked at. */
typedef void event_waited(void *arg, int status);

/*
 * Waits for an event.  Calls done() once, never before this returns.  deadline_ms: loop time
 * (uv_now()).  ZERO_EINVAL: there is no such event; ZERO_EBUSY: the rank has EVENT_WAITS_MAX waits
 * already; ZERO_ENOMEM.  In these cases done() is not called.
 */
int event_wait(struct event_waits *w, struct place_events *events, uint32_t index,
               uint64_t deadline_ms, event_waited *done, void *arg, struct fault *fault);
/*
 * The rank's session has ended: takes its events over and closes them.  Their waits end without a
 * callback. events may be NULL.
 */
void event_waits_drop(struct event_waits *w, struct place_events *events);
