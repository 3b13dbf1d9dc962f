/* See progress.h. */
#include "progress.h"

#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "units.h"

enum { REDRAW_MS = 100 };

double progress_now(void)
{
        struct timespec t;

        clock_gettime(CLOCK_MONOTONIC, &t);
        return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

void progress_nap(long ms)
{
        struct timespec t = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 };

        nanosleep(&t, NULL);
}

void progress_init(struct progress *p, bool quiet)
{
        *p = (struct progress){ .shown = !quiet && isatty(STDERR_FILENO), .begun = progress_now() };
}

void progress_show(struct progress *p, const char *what, double bytes, double of)
{
        double now = progress_now(), seconds = now - p->begun;

        if (!p->shown || now - p->drawn < REDRAW_MS / 1000.0)
                return;
        p->drawn = now;
        fprintf(stderr, "\r\033[K%s %s of %s, %s/s", what, unit_bytes(bytes).text,
                unit_bytes(of).text, unit_bytes(seconds > 0 ? bytes / seconds : 0).text);
        fflush(stderr);
}

void progress_end(struct progress *p)
{
        if (p->shown && p->drawn > 0)
                fputs("\r\033[K", stderr);
}
