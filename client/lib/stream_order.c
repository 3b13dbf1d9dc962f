/*
 * Stream order: a request takes effect behind work of the GPU.  The client records an event, and
 * the daemon polls the event.  If the daemon cannot open this process's events, the client waits
 * for the event before it sends the request.  Every wait for the GPU has a deadline.
 */
#include "client.h"

#include <string.h>

enum { GPU_PAUSE_FIRST_US = 20, GPU_PAUSE_MOST_US = 1000 };

/* CLIENT_LOST, or a status; after a wait as of client_begin_aborted(). */
static int wait_for_event(struct zero_client *c)
{
        int64_t deadline_ms = client_deadline(c);
        int r;

        if (gpu_has_free_event(c->gpu))
                return 0;
        do {
                r = client_pump(c, deadline_ms);
        } while (r == 0 && !gpu_has_free_event(c->gpu));
        if (r == ZERO_EDEADLINE)
                return client_fail(c, r,
                                   "none of the %d events of cuda:%d became free: zerod has not "
                                   "answered earlier releases and pushes",
                                   ZERO_GPU_EVENTS, c->gpu->ordinal);
        return r ? r : client_begin_aborted(c);
}

/* The pause grows: short work must not cost a millisecond, nor long work a processor. */
static int wait_for_gpu(struct zero_client *c, uint32_t event, const char *what)
{
        int64_t deadline_ms = wire_now() + c->timeout_ms, pause_us = GPU_PAUSE_FIRST_US;
        int done;

        while ((done = gpu_done(c->gpu, event)) == 0) {
                if (wire_now() >= deadline_ms)
                        return client_fail(c, ZERO_EDEADLINE,
                                           "the GPU work behind %s was not done within %u ms: "
                                           "cuda:%d has not come to it",
                                           what, (unsigned)c->timeout_ms, c->gpu->ordinal);
                if (client_waiting(c, wire_nap(c->interrupt_fd, pause_us)))
                        return client_shut(c, "a call was interrupted");
                if (pause_us < GPU_PAUSE_MOST_US)
                        pause_us *= 2;
        }
        if (done < 0)
                return client_fail(c, ZERO_EGPU,
                                   "cuda:%d failed in the work behind %s, or before: %s",
                                   c->gpu->ordinal, what, strerror(-done));
        return 0;
}

int client_record(struct zero_client *c, const struct zero_sync *sync, const char *what,
                  uint32_t *ret_event)
{
        uint32_t event = 0;
        int r = 0;

        if (sync && c->gpu && !c->lost) {
                r = wait_for_event(c);
                if (r)
                        return r;
                r = gpu_record(c->gpu, sync->stream, &event);
        }
        if (r)
                return client_fail(c, ZERO_EGPU, "cuda:%d cannot record an event: %s",
                                   c->gpu->ordinal, strerror(-r));
        if (event && c->gpu->no_events) {
                r = wait_for_gpu(c, event, what);
                if (r)
                        return r;
                event = 0;
        }
        *ret_event = event;
        return 0;
}

int client_wait_for_stream(struct zero_client *c, const struct zero_sync *sync, const char *what)
{
        uint32_t event = 0;
        int r = client_record(c, sync, what, &event);

        return r || event == 0 ? r : wait_for_gpu(c, event, what);
}
