/*
 * signals.h - signals as events of the loop.
 *
 * SIGTERM and SIGINT: stop, each time one comes.  SIGHUP: reload.  SIGPIPE is ignored.  The signals
 * of a broken process (SIGSEGV, SIGBUS, SIGFPE, SIGILL), which libucs takes when it is
 * loaded, end the process with a core again.
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
/* No callback comes any more, and SIGTERM and SIGINT are ignored; freed in the close callbacks.
 * Accepts NULL. */
void signals_close(struct signals *signals);
