/*
 * privilege.h - a daemon that is started as root goes on as a user of its own.
 *
 * What root is needed for comes first: folders in /run and /var/lib, limits.  Main thread, before
 * there are others.
 */
#pragma once

#include <stddef.h>

#include "proto/fault.h"

/* A folder that is made for the user; it must belong to that user if it has a name. */
struct privilege_folder {
        const char *name, *path;
};

/* The user that a daemon becomes unless told otherwise, where there is such a user. */
#define PRIVILEGE_USER "zerod"

/*
 * Goes on as this user, for good, if the process runs as root.  ZERO_EPERM: a folder is another
 * user's.  user: "" or "root" is root; a user that does not exist is ZERO_EINVAL, but for
 * PRIVILEGE_USER, without which the process stays root.
 */
int privilege_drop(const char *user, const struct privilege_folder *folders, size_t n_folders,
                   struct fault *fault);
