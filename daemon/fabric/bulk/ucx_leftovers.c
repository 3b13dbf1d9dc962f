/*
 * Files that UCX has left; see ucx_leftovers.h.
 *
 * Their names tell no process.  The kernel tells whether one lives: it grants a write lease only to
 * the one process that has the file open, and a mapping counts as open.  That holds for processes
 * of other namespaces too, which /proc does not show.
 */
#include "daemon/fabric/bulk/ucx_leftovers.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "daemon/floor/base/log.h"
#include "proto/cleanup.h"

static const char PREFIX[] = "ucx_shm_posix_";

static void cleanup_dir(DIR **dir)
{
        if (*dir)
                closedir(*dir);
}

static bool is_ours(int dir, const char *name)
{
        struct stat st;

        return strncmp(name, PREFIX, sizeof PREFIX - 1) == 0 &&
               fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode) &&
               st.st_uid == geteuid();
}

static bool nobody_has(int fd)
{
        /* who opens the file now has the lease broken: not by SIGIO, which would end the process */
        return fcntl(fd, F_SETSIG, SIGURG) == 0 && fcntl(fd, F_SETLEASE, F_WRLCK) == 0;
}

void bulk_ucx_remove_leftovers(void)
{
        const char *path = getenv("UCX_POSIX_DIR");
        CLEANUP(cleanup_dir) DIR *dir = opendir(path ? path : "/dev/shm");
        unsigned removed = 0;

        for (struct dirent *entry; dir && (entry = readdir(dir));) {
                CLEANUP(cleanup_close) int fd = -1;

                if (!is_ours(dirfd(dir), entry->d_name))
                        continue;
                /* O_NONBLOCK: another daemon may have a lease */
                fd = openat(dirfd(dir), entry->d_name,
                            O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
                if (fd >= 0 && nobody_has(fd))
                        removed += unlinkat(dirfd(dir), entry->d_name, 0) == 0;
        }
        if (removed)
                log_info("removed %u files of UCX in %s that killed processes have left", removed,
                         path ? path : "/dev/shm");
}
