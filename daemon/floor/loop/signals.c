/* signals.c - one libuv handle for each signal. */
#include "daemon/floor/loop/signals.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>

static const int watched[] = { SIGTERM, SIGINT, SIGHUP };
enum { N_WATCHED = sizeof(watched) / sizeof(watched[0]) };

struct signals {
        struct signals_events events;
        uv_signal_t handles[N_WATCHED];
        uint32_t open;
};

static void on_signal(uv_signal_t *handle, int number)
{
        struct signals *s = handle->data;

        if (number == SIGHUP)
                s->events.reload(s->events.arg);
        else
                s->events.stop(s->events.arg);
}

static void on_closed(uv_handle_t *handle)
{
        struct signals *s = handle->data;

        if (--s->open == 0)
                free(s);
}

static void set_dispositions(void)
{
        static const int broken[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL };

        for (size_t i = 0; i < sizeof(broken) / sizeof(broken[0]); i++)
                signal(broken[i], SIG_DFL);
        signal(SIGPIPE, SIG_IGN);
}

static int start(struct signals *s, uv_loop_t *loop)
{
        int r = 0;

        for (; s->open < N_WATCHED && r == 0; s->open++) {
                uv_signal_t *handle = &s->handles[s->open];

                r = uv_signal_init(loop, handle);
                if (r)
                        break;
                handle->data = s;
                uv_unref((uv_handle_t *)handle);
                r = uv_signal_start(handle, on_signal, watched[s->open]);
        }
        return r;
}

int signals_new(uv_loop_t *loop, const struct signals_events *events, struct signals **ret)
{
        struct signals *s = calloc(1, sizeof(*s));
        int r;

        if (!s)
                return -ENOMEM;
        s->events = *events;
        r = start(s, loop);
        if (r) {
                signals_close(s);
                return r;
        }
        set_dispositions();
        *ret = s;
        return 0;
}

void signals_close(struct signals *signals)
{
        uint32_t n = signals ? signals->open : 0;

        if (signals && n == 0)
                free(signals);
        for (uint32_t i = 0; i < n; i++)
                uv_close((uv_handle_t *)&signals->handles[i], on_closed);
        /* the process is ending: a second signal must not kill it */
        signal(SIGTERM, SIG_IGN);
        signal(SIGINT, SIG_IGN);
}
