/* Which directories zerod may write and read for which user; see directory.h. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "daemon/cluster/checkpoint/directory.h"
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

/* Makes the last directory alone: a whole path that is missing is one of a disk that is not
 * mounted.  TRIED: ends with the parent instead. */
static int walk(int fd, const char *path, int flags, enum place_use use, uint32_t uid)
{
        char name[NAME_MAX + 1];

        while (fd >= 0 && component(&path, name)) {
                bool last = path[strspn(path, "/")] == 0;
                int next = step(fd, name, flags, last && use == PLACE_MADE, uid), error = errno;

                if (next < 0 && error == ENOENT && last && use == PLACE_TRIED)
                        break;
                close(fd);
                errno = error;
                fd = next;
        }
        if (fd >= 0 && !may(fd, uid, S_IXOTH | (use == PLACE_READ ? S_IROTH : S_IWOTH))) {
                close(fd);
                errno = EACCES;
                return -1;
        }
        return fd;
}

/* ---- whether a checkpoint lasts there ---- */

/* What each refusal of a place ends with. */
static const char way_out[] =
        "name one on a disk: for a packaged zerod, one in checkpoint_dir that "
        "ReadWritePaths= of its unit lists";

static bool is_inside(int fd, const char *directory)
{
        CLEANUP(cleanup_free) char *real = realpath(directory, NULL);
        char link[64], path[PATH_MAX];
        ssize_t n;

        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        n = readlink(link, path, sizeof path - 1);
        path[n < 0 ? 0 : n] = 0;
        return real && below(real, path);
}

/* Whether what is written there is the states' own memory, or goes with the states. */
static bool goes_with_states(int fd, const char *state_dir)
{
        struct stat dir, states;
        struct statfs fs;
        bool same = fstat(fd, &dir) == 0 && stat(state_dir, &states) == 0 &&
                    dir.st_dev == states.st_dev;

        return same &&
               (is_inside(fd, state_dir) || (fstatfs(fd, &fs) == 0 && fs.f_type == TMPFS_MAGIC));
}

/* Whether it is in the /tmp or /var/tmp that systemd gave the unit alone (PrivateTmp=). */
static bool is_of_unit(int fd)
{
        CLEANUP(cleanup_free) char *line = NULL;
        FILE *mounts = fopen("/proc/self/mountinfo", "re");
        unsigned long long id;
        struct statx of = { 0 };
        bool found = false;
        size_t size = 0;
        int root;

        if (!mounts)
                return false;
        statx(fd, "", AT_EMPTY_PATH, STATX_MNT_ID, &of);
        while (!found && getline(&line, &size, mounts) > 0)
                if (sscanf(line, "%llu %*s %*s %n", &id, &root) == 1 && id == of.stx_mnt_id) {
                        line[(size_t)root + strcspn(line + root, " ")] = 0;
                        found = strstr(line + root, "/systemd-private-") != NULL;
                }
        fclose(mounts);
        return found;
}

static int lasting_check(const struct snapshot_place *place, int fd, struct fault *fault)
{
        struct statvfs fs;

        if (place->state_dir && goes_with_states(fd, place->state_dir))
                return fault_set(fault, ZERO_EINVAL,
                                 "directory %.200s lies in state_dir or its memory, which a "
                                 "checkpoint must outlive: %s",
                                 place->path, way_out);
        if (is_of_unit(fd))
                return fault_set(fault, ZERO_EINVAL,
                                 "directory %.200s is one that systemd made for zerod's unit, and "
                                 "deletes when the unit stops: %s",
                                 place->path, way_out);
        if (fstatvfs(fd, &fs) == 0 && (fs.f_flag & ST_RDONLY))
                return fault_set(fault, ZERO_EIO, "directory %.200s is read-only to zerod: %s",
                                 place->path, way_out);
        return 0;
}

int snapshot_place_open(const struct snapshot_place *place, enum place_use use, int *ret_fd,
                        struct fault *fault)
{
        const char *rest = place->root[0] ? below(place->root, place->path) : NULL;
        int r = snapshot_place_check(place, fault);
        CLEANUP(cleanup_close) int fd = -1;
        char why[128];

        if (r)
                return r;
        if (rest)
                fd = walk(open(place->root, O_RDONLY | O_DIRECTORY | O_CLOEXEC), rest, O_NOFOLLOW,
                          use, place->uid);
        else
                fd = walk(open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC), place->path, 0, use, 0);
        if (fd < 0 && errno == ENOENT && use != PLACE_READ)
                return fault_set(fault, ZERO_EIO,
                                 "directory %.200s is missing, and zerod makes only the last part "
                                 "of a path: mount its disk, make it, or %s",
                                 place->path, way_out);
        if (fd < 0)
                return fault_set(fault, errno == EACCES ? ZERO_EPERM : ZERO_EIO, "directory %s: %s",
                                 place->path, strerror_r(errno, why, sizeof(why)));
        r = use == PLACE_READ ? 0 : lasting_check(place, fd, fault);
        if (r == 0)
                *ret_fd = STEAL_FD(fd);
        return r;
}

/* ---- whether it is the caller's ---- */

int snapshot_place_look(const struct snapshot_place *place, const char *seen, bool writes,
                        struct fault *fault)
{
        unsigned long long device, inode;
        CLEANUP(cleanup_close) int fd = -1;
        int r = snapshot_place_check(place, fault), at = 0;
        const char *what = "another directory";
        struct stat st;
        char why[128];

        if (r)
                return r;
        if (sscanf(seen, "%llx:%llx /%n", &device, &inode, &at) != 2 || at == 0 ||
            !below(seen + at - 1, place->path))
                return fault_set(fault, ZERO_EINVAL,
                                 "\"seen\" is DEVICE:INODE PATH, of the directory or one above it");
        if (stat(seen + at - 1, &st) < 0)
                what = strerror_r(errno, why, sizeof why);
        else if (st.st_dev == device && st.st_ino == inode)
                return snapshot_place_open(place, writes ? PLACE_TRIED : PLACE_READ, &fd, fault);
        return fault_set(
                fault, ZERO_EINVAL,
                "zerod does not see the %.200s that you see (%s), as with a unit's own /tmp, "
                "which goes when the unit stops: %s",
                seen + at - 1, what, way_out);
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
