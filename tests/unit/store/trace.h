/* Processes that die, or are looked at, at chosen instructions. */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

/* SIGKILL to this process, sent by the kernel, whatever it is just doing. */
void trace_die_in(long ns);

/* In the child: stops until the parent has seen it; then each trace_step() lets one instruction
 * run.  Exits with 77 if it cannot be traced. */
void trace_me(void);
/* In the parent: whether the child is traced. */
bool trace_begun(pid_t pid);
/* False if the child has ended; it must end with 0. */
bool trace_step(pid_t pid);
/* The same for the way to where its next system call begins, or the one it is in ends. */
bool trace_call(pid_t pid);
void trace_kill(pid_t pid);
