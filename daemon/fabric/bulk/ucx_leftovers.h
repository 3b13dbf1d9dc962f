/*
 * ucx_leftovers.h - what UCX leaves of a process that is killed while it makes shared memory.
 */
#pragma once

/*
 * Removes this user's files of UCX's posix transport that no process has open.  UCX unlinks such a
 * file as soon as it is filled, so only a kill in between leaves one.  Loop thread, at start.
 */
void bulk_ucx_remove_leftovers(void);
