/*
 * privilege.h - a daemon that starts as root continues as a user of its own.
 *
 * Before that it does what needs root: folders in /run and /var/lib, and limits.  Main thread,
 * before any other starts.
 */
#pragma once

#include <stddef.h>

#include "proto/fault.h"

/* A folder to make for the user.  If it has a name, it must belong to the user. */
struct privilege_folder {
        const char *name, *path;
};

/* The default user, if the system has that user. */
#define PRIVILEGE_USER "zerod"

/*
 * Makes a process that runs as root continue as this user for good.  "" and "root" mean root.
 * ZERO_EPERM if a folder belongs to another user.  ZERO_EINVAL if the user does not exist, except
 * for PRIVILEGE_USER: then the process stays root.
 */
int privilege_drop(const char *user, const struct privilege_folder *folders, size_t n_folders,
                   struct fault *fault);
/* Opens state_dir, to which the process's user alone has access: ZERO_EIO, ZERO_EPERM. */
int privilege_state_directory(const char *path, int *ret, struct fault *fault);
