/* Processes that die, or stop for a look, at chosen instructions. */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

/* Lets the kernel send SIGKILL to this process at any instruction. */
void trace_die_in(long ns);

/* In the child: stops until the parent has seen the child; then each trace_step() lets one
 * instruction run.  Exits with 77 if the child cannot be traced. */
void trace_me(void);
/* In the parent: whether tracing works. */
bool trace_begun(pid_t pid);
/* Runs one instruction.  False: the child has ended, which must be with status 0. */
bool trace_step(pid_t pid);
/* Runs to the beginning of the next system call, or to the end of the current one. */
bool trace_call(pid_t pid);
void trace_kill(pid_t pid);
