/* Which directories zerod may write and read for which user; see directory.h. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "daemon/checkpoint/directory.h"
#include "proto/cleanup.h"
#include "proto/text.h"

enum { PATH_LONGEST = 3500 };

/* The next component of a path, or NULL after the last one; moves *at on. */
static const char *component(const char **at, char name[static NAME_MAX + 1])
{
        size_t n;

        *at += strspn(*at, "/");
        n = strcspn(*at, "/");
        if (n == 0 || n > NAME_MAX)
                return NULL;
        memcpy(name, *at, n);
        name[n] = 0;
        *at += n;
        return name;
}

static bool has_dots(const char *path)
{
        char name[NAME_MAX + 1];

        while (component(&path, name))
                if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
                        return true;
        return *path != 0; /* the component is too long */
}

/* The part of path below root, "" for root itself; NULL if path is not below root. */
static const char *below(const char *root, const char *path)
{
        size_t n = strlen(root);

        while (n > 0 && root[n - 1] == '/')
                n--;
        if (strncmp(path, root, n) != 0 || (path[n] != '/' && path[n] != 0))
                return NULL;
        return path + n;
}

static bool trusted(uint32_t uid)
{
        return uid == 0 || uid == geteuid();
}

int snapshot_place_check(const struct snapshot_place *place, struct fault *fault)
{
        if (place->path[0] != '/' || strlen(place->path) > PATH_LONGEST ||
            !text_printable(place->path) || has_dots(place->path))
                return fault_set(fault, ZERO_EINVAL,
                                 "a checkpoint's directory is an absolute path without . and ..");
        if (place->root[0] && below(place->root, place->path))
                return 0;
        if (place->root[0] && !trusted(place->uid))
                return fault_set(fault, ZERO_EPERM,
                                 "checkpoints must lie below %s (checkpoint_dir of zerod's "
                                 "configuration), but %.300s does not",
                                 place->root, place->path);
        if (!place->root[0] && !trusted(place->uid))
                return fault_set(fault, ZERO_EPERM,
                                 "zerod runs as user %u and writes checkpoints for user %u only "
                                 "below checkpoint_dir, which its configuration does not set",
                                 (unsigned)geteuid(), place->uid);
        return 0;
}

static int open_step(int at, const char *name, int flags, bool make)
{
        int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | flags);

        if (fd >= 0 || errno != ENOENT || !make)
                return fd;
        if (mkdirat(at, name, 0700) < 0 && errno != EEXIST)
                return -1;
        fsync(at);
        return openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | flags);
}

/*
 * zerod may run as root and could open what the user may not.  So in another user's directory it
 * does only what the directory's mode allows everybody.
 */
static bool may(int dir, uint32_t uid, mode_t mode)
{
        struct stat st;

        return fstat(dir, &st) == 0 &&
               (uid == 0 || st.st_uid == uid || trusted(st.st_uid) || (st.st_mode & mode) == mode);
}

static int step(int fd, const char *name, int flags, bool make, uint32_t uid)
{
        bool makes = make && may(fd, uid, S_IXOTH | S_IWOTH);
        int next;

        if (!may(fd, uid, S_IXOTH)) {
                errno = EACCES;
                return -1;
        }
        next = open_step(fd, name, flags, makes);
        if (next < 0 && errno == ENOENT && make && !makes)
                errno = EACCES;
        return next;
}

static int walk(int fd, const char *path, int flags, bool make, uint32_t uid)
{
        char name[NAME_MAX + 1];

        while (fd >= 0 && component(&path, name)) {
                int next = step(fd, name, flags, make, uid), error = errno;

                close(fd);
                errno = error;
                fd = next;
        }
        if (fd >= 0 && !may(fd, uid, S_IXOTH | (make ? S_IWOTH : S_IROTH))) {
                close(fd);
                errno = EACCES;
                return -1;
        }
        return fd;
}

int snapshot_place_open(const struct snapshot_place *place, bool make, int *ret_fd,
                        struct fault *fault)
{
        const char *rest = place->root[0] ? below(place->root, place->path) : NULL;
        int r = snapshot_place_check(place, fault), fd;
        char why[128];

        if (r)
                return r;
        if (rest)
                fd = walk(open(place->root, O_RDONLY | O_DIRECTORY | O_CLOEXEC), rest, O_NOFOLLOW,
                          make, place->uid);
        else
                fd = walk(open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC), place->path, 0, make, 0);
        if (fd < 0)
                return fault_set(fault, errno == EACCES ? ZERO_EPERM : ZERO_EIO, "directory %s: %s",
                                 place->path, strerror_r(errno, why, sizeof(why)));
        *ret_fd = fd;
        return 0;
}

int snapshot_check_space(int dir, uint64_t bytes, struct fault *fault)
{
        struct statvfs fs;

        if (fstatvfs(dir, &fs) < 0)
                return fault_errno(fault, errno,
                                   "cannot see the free space of the checkpoint directory");
        if (bytes / fs.f_frsize < fs.f_bavail)
                return 0;
        return fault_set(fault, ZERO_EIO,
                         "this node's shard has %llu bytes, but the file system of the checkpoint "
                         "directory has only %llu free: make room there, or keep fewer (--keep)",
                         (unsigned long long)bytes,
                         (unsigned long long)fs.f_bavail * (unsigned long long)fs.f_frsize);
}

static double seconds(void)
{
        struct timespec t;

        clock_gettime(CLOCK_MONOTONIC, &t);
        return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

int snapshot_probe(int dir, const void *data, size_t bytes, double *ret_rate, struct fault *fault)
{
        CLEANUP(cleanup_close) int fd = openat(dir, ".", O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
        double begin = seconds();

        if (fd < 0 || pwrite(fd, data, bytes, 0) != (ssize_t)bytes || fdatasync(fd) < 0)
                return fault_errno(fault, errno,
                                   "a trial write to the checkpoint directory failed");
        *ret_rate = (double)bytes / (seconds() - begin + 1e-6);
        return 0;
}
