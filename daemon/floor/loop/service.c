/*
 * service.c - the service manager through libsystemd.  Without $NOTIFY_SOCKET notifications do
 * nothing.
 */
#include "daemon/floor/loop/service.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "daemon/floor/base/log.h"

struct service {
        uv_timer_t watchdog;
};

static void on_watchdog(uv_timer_t *timer)
{
        sd_notify(0, "WATCHDOG=1");
}

static void on_closed(uv_handle_t *handle)
{
        free(handle->data);
}

int service_new(uv_loop_t *loop, struct service **ret)
{
        struct service *s = calloc(1, sizeof(*s));
        uint64_t interval_us = 0, half_ms;
        int r;

        if (!s)
                return -ENOMEM;
        r = uv_timer_init(loop, &s->watchdog);
        if (r) {
                free(s);
                return r;
        }
        s->watchdog.data = s;
        if (sd_watchdog_enabled(0, &interval_us) > 0) {
                half_ms = interval_us / 2000;
                uv_timer_start(&s->watchdog, on_watchdog, 0, half_ms ? half_ms : 1);
        }
        uv_unref((uv_handle_t *)&s->watchdog); /* does not keep the loop alive */
        *ret = s;
        return 0;
}

void service_close(struct service *service)
{
        if (service)
                uv_close((uv_handle_t *)&service->watchdog, on_closed);
}

void service_ready(struct service *service)
{
        if (service)
                sd_notify(0, "READY=1");
}

void service_reloading(struct service *service)
{
        if (service)
                sd_notify(0, "RELOADING=1");
}

void service_stopping(struct service *service)
{
        if (service)
                sd_notify(0, "STOPPING=1");
}

void service_stop_takes(uint64_t seconds)
{
        sd_notifyf(0, "EXTEND_TIMEOUT_USEC=%llu", (unsigned long long)seconds * 1000000);
}

int service_socket(void)
{
        int n = sd_listen_fds(1), found = -1;

        for (int fd = SD_LISTEN_FDS_START; fd < SD_LISTEN_FDS_START + n; fd++) {
                if (found < 0 && sd_is_socket_unix(fd, SOCK_STREAM, 1, NULL, 0) > 0) {
                        found = fd;
                        continue;
                }
                log_warning(
                        "the service manager passed descriptor %d, which is not the one listening "
                        "unix stream socket; zerod closed it; see zerod.socket",
                        fd);
                close(fd);
        }
        return found;
}
