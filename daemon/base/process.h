/*
 * process.h - whether the process at the other end of a socket runs, as /proc tells.
 *
 * An open socket says less: a stopped process keeps it, and so does the child of one that has
 * ended.
 */
#pragma once

#include <stdint.h>

enum process_life {
        PROCESS_RUNS,
        PROCESS_STOPPED, /* by a signal, or by a debugger */
        PROCESS_ENDED,
        PROCESS_UNSEEN, /* this process may not look at that one */
};

/* Clock ticks from boot to the start of the process; 0: unseen. */
uint64_t process_start(uint32_t pid);
/* start: its process_start(), which tells it from a later process of the same number. */
enum process_life process_life(uint32_t pid, uint64_t start);
