/*
 * Programs that zeroctl runs.  None outlives the patience of who waits for it, and every one that
 * was started is waited for.
 */
#pragma once

#include <sys/types.h>

/*
 * Starts arguments[0], sought in PATH if it has no slash.  in and out become its standard input and
 * output; -1: zeroctl's own.  0 or -errno.
 */
int program_start(char *const arguments[], int in, int out, pid_t *ret);

enum { PROGRAM_FAILED = 1, PROGRAM_LATE };

/*
 * Waits until it ends; kills it after patience_s seconds, or as soon as stop_fd (-1: none) can be
 * read.  0: it ended well.
 */
int program_end(pid_t pid, double patience_s, int stop_fd);
