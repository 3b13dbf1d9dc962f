/*
 * service.h - notifications to the service manager, and the socket that it passes.
 *
 * With libsystemd (service.c), or without (service_fallback.c, where every call does nothing). Loop
 * thread only; no call runs a callback.  Every call accepts NULL.
 */
#pragma once

#include <uv.h>

struct service;

/*
 * Starts to answer the watchdog, if there is one, at half of its interval, so that it notices a
 * loop that hangs.
 */
int service_new(uv_loop_t *loop, struct service **ret);
/* Marks the service for closing; the timer's close callback frees it. */
void service_close(struct service *service);

/* Started, or reloaded: "READY=1". */
void service_ready(struct service *service);
void service_reloading(struct service *service);
void service_stopping(struct service *service);
/* The stop may take this long from now on.  May be called when the service is closed. */
void service_stop_takes(uint64_t seconds);

/*
 * The listening unix stream socket that the service manager passed, or -1.  The caller owns the
 * socket; a second call returns -1.
 */
int service_socket(void);
