/*
 * sure.h - memory for a few bytes without which a promise would be broken, and nobody could be
 * told.
 *
 * Where there is none, a reserve goes back to the heap first.  Then the thread waits until there is
 * some, as it would for a page from a disk.  A watchdog ends a loop that waits for too long.  Any
 * thread.
 */
#pragma once

#include <stddef.h>

/* As realloc(); never NULL. */
void *sure_realloc(void *p, size_t n);
/* Takes the reserve, unless it is there; to be called now and then. */
void sure_fill(void);
