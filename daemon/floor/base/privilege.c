/* From root to a user without privilege. */
#include "daemon/floor/base/privilege.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/floor/base/log.h"
#include "proto/cleanup.h"

static int folder_prepare(const struct privilege_folder *f, const struct passwd *user,
                          struct fault *fault)
{
        struct stat st;

        if (mkdir(f->path, f->name ? 0700 : 0755) == 0)
                return lchown(f->path, user->pw_uid, user->pw_gid)
                               ? fault_errno(fault, errno, f->path)
                               : 0;
        if (f->name && errno != EEXIST)
                return fault_set(fault, ZERO_EPERM, "%s %s cannot be made: %s", f->name, f->path,
                                 strerror(errno));
        if (!f->name || stat(f->path, &st) || st.st_uid == user->pw_uid)
                return 0; /* whoever opens the folder reports other problems */
        return fault_set(fault, ZERO_EPERM,
                         "%s %s belongs to user %u, but zerod runs as %s: 'chown -R %s %s', or set "
                         "user = root",
                         f->name, f->path, (unsigned)st.st_uid, user->pw_name, user->pw_name,
                         f->path);
}

/*
 * Memory that RDMA pins is limited for users, not for root.  The daemon also needs more descriptors
 * than any client may have: those whose close() does not return may take half of them
 * (rpc/disposal.h).
 */
static void raise_limits(void)
{
        struct rlimit all = { RLIM_INFINITY, RLIM_INFINITY }, files;

        setrlimit(RLIMIT_MEMLOCK, &all);
        if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
                files.rlim_max *= 2;
                setrlimit(RLIMIT_NOFILE, &files);
        }
}

static int become(const struct passwd *user, struct fault *fault)
{
        if (initgroups(user->pw_name, user->pw_gid) || setgid(user->pw_gid) || setuid(user->pw_uid))
                return fault_set(fault, ZERO_EPERM, "cannot become user %s: %s", user->pw_name,
                                 strerror(errno));
        prctl(PR_SET_DUMPABLE, 1); /* other daemons of this user read payloads from its memory */
        log_info("started as root, now runs as user %s", user->pw_name);
        return 0;
}

int privilege_drop(const char *user, const struct privilege_folder *folders, size_t n_folders,
                   struct fault *fault)
{
        const struct passwd *entry;
        int r = 0;

        if (geteuid() != 0)
                return 0;
        entry = user[0] ? getpwnam(user) : NULL;
        if (!entry && user[0] && strcmp(user, PRIVILEGE_USER) != 0)
                return fault_set(fault, ZERO_EINVAL, "user = %s: there is no such user", user);
        if (!entry || entry->pw_uid == 0) {
                log_warning("runs as root%s; see the option user",
                            user[0] && !entry ? ": there is no user " PRIVILEGE_USER : "");
                return 0;
        }
        for (size_t i = 0; r == 0 && i < n_folders; i++)
                r = folder_prepare(&folders[i], entry, fault);
        if (r)
                return r;
        raise_limits();
        return become(entry, fault);
}

int privilege_state_directory(const char *path, int *ret, struct fault *fault)
{
        struct stat st;
        CLEANUP(cleanup_close)
        int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0 || fstat(fd, &st) < 0)
                return fault_set(fault, ZERO_EIO, "cannot open the state directory %s: %s", path,
                                 strerror(errno));
        if (st.st_uid != geteuid())
                return fault_set(fault, ZERO_EPERM,
                                 "state directory %s belongs to user %u, zerod runs as %u", path,
                                 (unsigned)st.st_uid, (unsigned)geteuid());
        if (st.st_mode & 077)
                return fault_set(fault, ZERO_EPERM,
                                 "state directory %s is open to others (mode %03o): chmod 700 it",
                                 path, (unsigned)st.st_mode & 0777);
        *ret = STEAL_FD(fd);
        return 0;
}
