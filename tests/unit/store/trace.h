/* Processes that die at any instruction, or at a chosen system call. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Lets the kernel send SIGKILL to this process at any instruction. */
void trace_die_in(long ns);
/* The limit of random instants from now on: longer on a slow machine, which has decided fewer
 * attempts than were wanted by now. */
long trace_limit(long ns, uint64_t attempts, int wanted);

/* In the child: stops until the parent has seen the child; then each trace_call() lets it run on.
 * Exits with 77 if the child cannot be traced. */
void trace_me(void);
/* In the parent: whether tracing works. */
bool trace_begun(pid_t pid);
/* Runs to the beginning of the next system call, or to the end of the current one.  False: the
 * child has ended, which must be with status 0. */
bool trace_call(pid_t pid);
void trace_kill(pid_t pid);
