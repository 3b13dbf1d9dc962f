/*
 * service.h - what the service manager is told, and what it passes.
 *
 * With libsystemd (service.c), or without (service_fallback.c, where every call does
 * nothing).  Loop thread only; no call runs a callback.  Every call accepts NULL.
 */
#pragma once

#include <uv.h>

struct service;

/*
 * Starts to answer the watchdog, where there is one, at half of its interval: a loop that
 * hangs is noticed.
 */
int service_new(uv_loop_t *loop, struct service **ret);
/* Marks; all is freed in the close callback of the timer. */
void service_close(struct service *service);

/* Started, or reloaded: "READY=1". */
void service_ready(struct service *service);
void service_reloading(struct service *service);
void service_stopping(struct service *service);
/* The stop may take so much time from now on; also when the service is closed. */
void service_stop_takes(uint64_t seconds);
/* One line for `systemctl status`. */
void service_status(struct service *service, const char *format, ...)
        __attribute__((format(printf, 2, 3)));

/*
 * The listening unix stream socket that the service manager passed, or -1.  The caller
 * owns it; a second call finds none.
 */
int service_socket(void);
