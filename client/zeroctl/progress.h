/* A progress line for long work, redrawn on a terminal and left out elsewhere. */
#pragma once

#include <stdbool.h>

struct progress {
        bool shown; /* standard error is a terminal */
        double begun, drawn;
};

void progress_init(struct progress *p, bool quiet);
/* "writing 1.2 GiB of 4.0 GiB, 910 MiB/s" */
void progress_show(struct progress *p, const char *what, double bytes, double of);
/* Erases the line. */
void progress_end(struct progress *p);
double progress_now(void);
void progress_nap(long ms);
