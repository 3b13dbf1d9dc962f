/*
 * memory.h - memory that can still be taken: of the machine, and within the limits of control
 * groups, as containers and units have them.
 *
 * Memory that was admitted, but whose pages come later, is promised.  Promises count as taken, so
 * nobody is admitted to the same bytes again.  Loop thread only.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "proto/list.h"

struct memory_promise {
        struct list link;
        uint64_t bytes;
        int fd;         /* its file, whose pages are there already; -1: none is */
        bool elsewhere; /* other processes take the pages, within limits of their own */
};

/* Bytes that this process can still take; UINT64_MAX: unknown.  What is promised elsewhere does not
 * count: whoever has the promise need not take it. */
uint64_t memory_available(void);
/* Bytes that all processes of the machine can still take together, less all promises. */
uint64_t memory_of_machine(void);
/* Before the first promise: p is zero.  A further call changes the promise. */
void memory_promise(struct memory_promise *p, uint64_t bytes, int fd, bool elsewhere);
/* The pages are there, or nobody will take them.  Does nothing without a promise. */
void memory_kept(struct memory_promise *p);

/*
 * What the control groups around this process leave, from its own upwards: the least.  Pages of
 * files that nobody has used for long do not count as used.  UINT64_MAX: no limit is known.  root
 * stands before /proc, and before what mountinfo names: "", or a test's directory.
 */
uint64_t memory_of_groups(const char *root);
