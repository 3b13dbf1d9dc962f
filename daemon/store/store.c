/*
 * The state directory.
 *
 * Rule: one process at a time uses the directory; it holds a lock on a file there as long as the
 * store is open.  Files count against the quota whether they are in use or not.
 *
 * A state's file is named after its job, owner, copy and epoch.  The harmless characters of the
 * job's name are for people; the hash of the whole name keeps files inside the directory, short and
 * distinct:
 *
 *   JOB-HASH.OWNER[.mirror][.eEPOCH].state
 */
#include "daemon/store/directory.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "daemon/floor/base/privilege.h"
#include "daemon/store/planes.h"
#include "proto/cleanup.h"

static const char lock_name[] = ".lock", temporary_prefix[] = ".new-";
static const char mirror_mark[] = ".mirror", epoch_mark[] = ".e";
static const char state_suffix[] = ".state", blobs_suffix[] = ".blobs";

DEFINE_CLEANUP(struct store *, store_close)

static void cleanup_closedir(DIR **d)
{
        if (*d)
                closedir(*d);
}

/* ---- names ---- */

void store_file_name(const struct state_identity *id, uint32_t owner,
                     char ret[static STORE_FILE_NAME])
{
        enum { READABLE = 64, HASH = 16, EPOCH = 24 };
        static const char harmless[] =
                "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
        uint8_t hash[HASH];
        char readable[READABLE + 1], hex[2 * HASH + 1], epoch[EPOCH] = "";
        const char *job = id->job.name;
        size_t n = 0;

        for (; n < READABLE && job[n]; n++)
                readable[n] = strchr(harmless, job[n]) ? job[n] : '_';
        readable[n] = 0;
        crypto_generichash(hash, sizeof(hash), (const uint8_t *)job, strlen(job), NULL, 0);
        sodium_bin2hex(hex, sizeof(hex), hash, sizeof(hash));
        if (id->epoch)
                snprintf(epoch, sizeof(epoch), "%s%" PRIu64, epoch_mark, id->epoch);
        snprintf(ret, STORE_FILE_NAME, "%s-%s.%" PRIu32 "%s%s%s", readable, hex, owner,
                 id->copy ? mirror_mark : "", epoch, state_suffix);
}

uint64_t store_file_epoch(const char *file)
{
        size_t end = strlen(file) - (sizeof(state_suffix) - 1), at = end;

        while (at > 0 && file[at - 1] >= '0' && file[at - 1] <= '9')
                at--;
        if (at == end || at < sizeof(epoch_mark) - 1 ||
            strncmp(file + at - (sizeof(epoch_mark) - 1), epoch_mark, sizeof(epoch_mark) - 1) != 0)
                return 0;
        return strtoull(file + at, NULL, 10); /* state_open() finds a name that is not its own */
}

void store_temporary_name(const char *file, char ret[static STORE_FILE_NAME])
{
        assert(strlen(file) + sizeof(temporary_prefix) <= STORE_FILE_NAME);
        snprintf(ret, STORE_FILE_NAME, "%s%s", temporary_prefix, file);
}

static bool is_called(const char *name, const char *suffix)
{
        size_t n = strlen(name), m = strlen(suffix);

        return name[0] != '.' && !strchr(name, '/') && n > m &&
               n + sizeof(temporary_prefix) <= STORE_FILE_NAME && strcmp(name + n - m, suffix) == 0;
}

bool store_is_state(const char *name)
{
        return is_called(name, state_suffix);
}

void store_blobs_name(const char *file, char ret[static STORE_FILE_NAME])
{
        size_t prefix = sizeof(temporary_prefix) - 1;
        bool temporary = strncmp(file, temporary_prefix, prefix) == 0;

        assert(store_is_state(temporary ? file + prefix : file));
        snprintf(ret, STORE_FILE_NAME, "%.*s%s", (int)(strlen(file) - (sizeof(state_suffix) - 1)),
                 file, blobs_suffix);
}

/* ---- opening ---- */

static int open_directory(const char *path, int *ret, struct fault *fault)
{
        if (mkdir(path, 0700) < 0 && errno != EEXIST)
                return fault_set(fault, ZERO_EIO, "cannot make the state directory %s: %s", path,
                                 strerror(errno));
        return privilege_state_directory(path, ret, fault);
}

static int refuse_second(int lock, const char *path, struct fault *fault)
{
        char pid[16] = "";
        ssize_t n = pread(lock, pid, sizeof(pid) - 1, 0);

        for (ssize_t i = 0; i < n; i++)
                if (pid[i] < '0' || pid[i] > '9')
                        pid[i] = 0;
        return fault_set(fault, ZERO_EBUSY,
                         "state directory %s is in use by process %s: stop it, or give this "
                         "daemon a directory of its own",
                         path, pid[0] ? pid : "(unknown)");
}

static int lock_directory(int dir, const char *path, int *ret, struct fault *fault)
{
        CLEANUP(cleanup_close)
        int fd = openat(dir, lock_name, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd < 0)
                return fault_errno(fault, errno, path);
        if (flock(fd, LOCK_EX | LOCK_NB) < 0)
                return errno == EWOULDBLOCK ? refuse_second(fd, path, fault)
                                            : fault_errno(fault, errno, path);

        char pid[16];
        /* for people: a full directory must not keep the daemon from starting */
        int n = snprintf(pid, sizeof(pid), "%ld\n", (long)getpid());
        if (pwrite(fd, pid, (size_t)n, 0) != n || ftruncate(fd, n) < 0)
                (void)ftruncate(fd, 0);
        *ret = STEAL_FD(fd);
        return 0;
}

static int read_directory(const struct store *s, DIR **ret)
{
        CLEANUP(cleanup_close) int fd = openat(s->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0)
                return -errno;
        DIR *d = fdopendir(fd);
        if (!d)
                return -errno;
        fd = -1;
        *ret = d;
        return 0;
}

/*
 * Deletes a draft that has not taken its state's name, its blobs first.  So blobs without a draft
 * belong to a draft that has taken the name, and get theirs (state_replace()).
 */
static void settle_temporary(const struct store *s, const char *name)
{
        const char *later = name + sizeof(temporary_prefix) - 1;
        char other[STORE_FILE_NAME];

        if (is_called(later, blobs_suffix)) {
                snprintf(other, sizeof(other), "%.*s%s",
                         (int)(strlen(name) - (sizeof(blobs_suffix) - 1)), name, state_suffix);
                if (faccessat(s->dir, other, F_OK, AT_SYMLINK_NOFOLLOW) < 0 && errno == ENOENT)
                        renameat(s->dir, name, s->dir, later);
                return; /* otherwise the blobs go with their draft */
        }
        if (store_is_state(later)) {
                store_blobs_name(name, other);
                unlinkat(s->dir, other, 0);
        }
        unlinkat(s->dir, name, 0);
}

static int settle_temporaries(const struct store *s)
{
        CLEANUP(cleanup_closedir) DIR *d = NULL;
        int r = read_directory(s, &d);

        for (struct dirent *e; r == 0 && (e = readdir(d));)
                if (strncmp(e->d_name, temporary_prefix, sizeof(temporary_prefix) - 1) == 0)
                        settle_temporary(s, e->d_name);
        return r;
}

/* Charges the quota with the files that are there. */
static int take_stock(struct store *s)
{
        CLEANUP(cleanup_closedir) DIR *d = NULL;
        int r = read_directory(s, &d);

        for (struct dirent *e; r == 0 && (e = readdir(d));) {
                struct stat st;

                if ((store_is_state(e->d_name) || is_called(e->d_name, blobs_suffix)) &&
                    fstatat(s->dir, e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0)
                        s->used += store_lost(s, e->d_name) ? 0 : (uint64_t)st.st_size;
        }
        return r;
}

bool store_lost(const struct store *store, const char *file)
{
        uint64_t where;

        if (!store_is_state(file))
                return false;
        CLEANUP(cleanup_close)
        int fd = openat(store->dir, file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        return fd >= 0 && file_planes(fd, &where) == 0 && where != PLANES_HERE &&
               where != store->number;
}

int store_open(const char *directory, uint64_t quota, struct store **ret, struct fault *fault)
{
        CLEANUP(cleanup_store_close) struct store *s = calloc(1, sizeof(*s));
        if (!s)
                return fault_errno(fault, ENOMEM, directory);
        *s = (struct store){ .dir = -1, .lock = -1, .quota = quota, .threads = 1 };
        s->number = 1 + (uint64_t)randombytes_random();
        list_init(&s->parked);
        s->path = strdup(directory);
        if (!s->path)
                return fault_errno(fault, ENOMEM, directory);
        int r = open_directory(directory, &s->dir, fault);
        if (r)
                return r;
        r = lock_directory(s->dir, directory, &s->lock, fault);
        if (r)
                return r;
        r = settle_temporaries(s);
        if (r == 0)
                r = take_stock(s);
        if (r)
                return fault_errno(fault, r, directory);
        *ret = STEAL(s);
        return 0;
}

void store_close(struct store *store)
{
        if (!store)
                return;
        list_for_each (&store->parked, item) {
                planes_free(CONTAINER_OF(item, struct planes, link));
        }
        cleanup_close(&store->lock);
        cleanup_close(&store->dir);
        free(store->path);
        free(store);
}

int store_each_called(const struct store *store, const char *suffix,
                      int (*each)(const char *file, void *arg), void *arg)
{
        CLEANUP(cleanup_closedir) DIR *d = NULL;
        int r = read_directory(store, &d);

        for (struct dirent *e; r == 0 && (e = readdir(d));)
                if (is_called(e->d_name, suffix))
                        r = each(e->d_name, arg);
        return r;
}

int store_each(const struct store *store, int (*each)(const char *file, void *arg), void *arg)
{
        return store_each_called(store, state_suffix, each, arg);
}

/* ---- quota ---- */

uint64_t store_used(const struct store *store)
{
        return store->used;
}

uint64_t store_quota(const struct store *store)
{
        return store->quota;
}

void store_set_threads(struct store *store, uint32_t threads)
{
        store->threads = threads;
}

void store_set_quota(struct store *store, uint64_t quota)
{
        store->quota = quota;
}

int store_admit(const struct store *store, uint64_t bytes, uint64_t elsewhere, const char *what,
                struct fault *fault)
{
        uint64_t used = store->used, here = bytes - elsewhere;
        struct statvfs fs;

        if (store->quota && (used > store->quota || bytes > store->quota - used))
                return fault_set(fault, ZERO_EQUOTA,
                                 "%s needs %" PRIu64 " bytes of state; %" PRIu64
                                 " of the quota of %" PRIu64
                                 " are in use: raise memory_limit or drop a job",
                                 what, bytes, used, store->quota);
        if (fstatvfs(store->dir, &fs) < 0)
                return fault_errno(fault, errno, store->path);
        if (here / fs.f_frsize + (here % fs.f_frsize != 0) > fs.f_bavail)
                return fault_set(fault, ZERO_ESHM,
                                 "%s needs %" PRIu64 " bytes of state; %s has %" PRIu64
                                 " free: enlarge that tmpfs, add owners or drop a job",
                                 what, here, store->path,
                                 (uint64_t)fs.f_bavail * (uint64_t)fs.f_frsize);
        return 0;
}

int store_take(struct store *store, uint64_t bytes, uint64_t elsewhere, const char *what,
               struct fault *fault)
{
        uint64_t used = store->used;
        int r;

        do
                r = store_admit(store, bytes, elsewhere, what, fault);
        while (r == 0 && !atomic_compare_exchange_weak(&store->used, &used, used + bytes));
        return r;
}

void store_take_up(struct store *store, uint64_t bytes)
{
        store->used += bytes;
}

void store_give(struct store *store, uint64_t bytes)
{
        assert(store->used >= bytes);
        store->used -= bytes;
}

void store_count(struct store *store, uint64_t bytes)
{
        store->used += bytes;
}

void store_uncount(struct store *store, uint64_t bytes)
{
        store_give(store, bytes);
}
