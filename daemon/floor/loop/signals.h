/*
 * signals.h - signals as events of the loop.
 *
 * SIGTERM and SIGINT call stop() each time they come, and SIGHUP calls reload().  SIGPIPE is
 * ignored. libucs takes the signals of a broken process (SIGSEGV, SIGBUS, SIGFPE, SIGILL) when it
 * is loaded; signals_new() gives them back, so that they end the process with a core.
 */
#pragma once

#include <uv.h>

struct signals;

struct signals_events {
        void (*stop)(void *arg);
        void (*reload)(void *arg);
        void *arg;
};

/* Loop thread; callbacks run on it.  Does not keep the loop alive. */
int signals_new(uv_loop_t *loop, const struct signals_events *events, struct signals **ret);
/* No callback comes any more, and SIGTERM and SIGINT are ignored.  The close callbacks free the
 * memory.  Accepts NULL. */
void signals_close(struct signals *signals);
