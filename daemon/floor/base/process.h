/*
 * process.h - whether the process at the other end of a socket runs, according to /proc.
 *
 * An open socket does not show that: a stopped process keeps its socket open, and so does a child
 * of a process that has ended.
 */
#pragma once

#include <stdint.h>

enum process_life {
        PROCESS_RUNS,
        PROCESS_STOPPED, /* by a signal, or by a debugger */
        PROCESS_ENDED,
        PROCESS_UNSEEN, /* this process may not look at it, or cannot */
};

/* Clock ticks from boot to the start of the process; 0: unseen. */
uint64_t process_start(uint32_t pid);
/* start: its process_start(), which tells it from a later process with the same pid. */
enum process_life process_life(uint32_t pid, uint64_t start);
