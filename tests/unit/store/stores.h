/* Looks at memory before and after every instruction that stores to it: what a process killed there
 * leaves.  Other instructions cost nothing, however many there are. */
#pragma once

#include <stdbool.h>
#include <sys/uio.h>

enum { STORES_PARTS = 2 };

/* Whether this CPU can. */
bool stores_can(void);
/* From now on this thread's stores to the parts (whole pages, at most STORES_PARTS) call look(arg)
 * before and after.  look() only reads them. */
void stores_watch(const struct iovec *parts, int n, void (*look)(void *arg), void *arg);
/* Calls look() once more, and no longer. */
void stores_end(void);
