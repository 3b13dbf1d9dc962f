/*
 * small_file.h - files of zerod's user alone that are read and written whole.
 *
 * What is written is on the disk when a function returns 0; its name is there after an fsync() of
 * the directory.  Calls may block, and return 0 or -errno.
 */
#pragma once

#include <stddef.h>
#include <sys/stat.h>

/*
 * Reads ret_stat->st_size bytes and appends a zero.  Follows no link and opens no pipe.  -ENOENT;
 * -EPERM: others can write to it; -EFBIG: it has more than `most` bytes.
 */
int small_file_read(int dir, const char *name, size_t most, struct stat *ret_stat, char **ret);
int small_file_write(int dir, const char *name, const void *data, size_t bytes);
/* The name has the old bytes or the new ones, whenever the daemon dies. */
int small_file_replace(int dir, const char *name, const void *data, size_t bytes);
