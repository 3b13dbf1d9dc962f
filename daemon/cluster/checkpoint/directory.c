/* Partial and whole checkpoints in a directory; see directory.h. */
#include "daemon/cluster/checkpoint/directory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/floor/base/crash.h"
#include "daemon/floor/base/small_file.h"
#include "daemon/store/snapshot/snapshot.h"
#include "proto/cleanup.h"

enum { DIR_NAME = ZERO_NAME_MAX + 1 + 32, LAYOUT_BYTES_MAX = 1 << 30, KEEP_LISTED = 4096 };
enum { CHECK_BLOCKS = 64 };

DEFINE_CLEANUP(layout *, layout_free)

static const char partial_suffix[] = ".partial";

static void cleanup_closedir(DIR **d)
{
        if (*d)
                closedir(*d);
}

/* ---- names ---- */

static void whole_name(const char *job, uint64_t version, char ret[static DIR_NAME])
{
        snprintf(ret, DIR_NAME, "%s-%llu", job, (unsigned long long)version);
}

static void partial_name(const char *job, uint64_t version, char ret[static DIR_NAME])
{
        snprintf(ret, DIR_NAME, ".%s-%llu%s", job, (unsigned long long)version, partial_suffix);
}

/* Whether the name is JOB-DIGITS followed by `suffix`. */
static bool is_of_job(const char *name, const char *job, const char *suffix)
{
        size_t n = strlen(job), digits;

        if (strncmp(name, job, n) != 0 || name[n] != '-')
                return false;
        digits = strspn(name + n + 1, "0123456789");
        return digits > 0 && digits < 20 && strcmp(name + n + 1 + digits, suffix) == 0;
}

/* ---- directories of ours ---- */

static int read_directory(int dir, DIR **ret)
{
        int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

        if (fd < 0)
                return -errno;
        *ret = fdopendir(fd);
        if (*ret)
                return 0;
        close(fd);
        return -ENOMEM;
}

/* Whether it belongs to zerod's user and nobody else can write it. */
static bool is_ours(int fd)
{
        struct stat st;

        return fstat(fd, &st) == 0 && st.st_uid == geteuid() && (st.st_mode & 022) == 0;
}

static int open_ours(int dir, const char *name)
{
        int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

        if (fd >= 0 && !is_ours(fd)) {
                close(fd);
                errno = EPERM;
                return -1;
        }
        return fd;
}

static void empty_directory(int fd)
{
        CLEANUP(cleanup_closedir) DIR *d = NULL;

        if (read_directory(fd, &d))
                return;
        for (struct dirent *e; (e = readdir(d));)
                if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
                        unlinkat(fd, e->d_name, 0);
}

static void remove_ours(int dir, const char *name)
{
        CLEANUP(cleanup_close) int fd = open_ours(dir, name);

        if (fd < 0)
                return;
        empty_directory(fd);
        unlinkat(dir, name, AT_REMOVEDIR);
}

/* ---- partial ---- */

static void clean(int dir, const char *job, const char *but)
{
        CLEANUP(cleanup_closedir) DIR *d = NULL;

        if (read_directory(dir, &d))
                return;
        for (struct dirent *e; (e = readdir(d));)
                if (e->d_name[0] == '.' && is_of_job(e->d_name + 1, job, partial_suffix) &&
                    strcmp(e->d_name, but) != 0)
                        remove_ours(dir, e->d_name);
}

int snapshot_partial_open(int dir, const char *job, uint64_t version, int *ret_fd,
                          struct fault *fault)
{
        char name[DIR_NAME];
        int fd;

        partial_name(job, version, name);
        clean(dir, job, name);
        if (mkdirat(dir, name, 0700) < 0 && errno != EEXIST)
                return fault_errno(fault, errno, name);
        fd = open_ours(dir, name);
        if (fd < 0)
                return fault_errno(fault, errno, name);
        *ret_fd = fd;
        return 0;
}

void snapshot_partial_remove(int dir, const char *job, uint64_t version)
{
        char name[DIR_NAME];

        partial_name(job, version, name);
        remove_ours(dir, name);
}

/* ---- reading ---- */

/* Appends a zero. */
static int read_file(int dir, const char *name, uint64_t most, char **ret, size_t *ret_size,
                     struct fault *fault)
{
        CLEANUP(cleanup_free) char *data = NULL;
        struct stat st;
        int r = small_file_read(dir, name, most, &st, &data);

        if (r == -ENOENT)
                return fault_set(fault, ZERO_EIO, "there is no %s: this is not a whole checkpoint",
                                 name);
        if (r == -EPERM || (r == 0 && st.st_nlink != 1))
                return fault_set(fault, ZERO_EIO,
                                 "%s cannot be used: users other than zerod's can write to it",
                                 name);
        if (r == -EFBIG)
                return fault_set(fault, ZERO_EIO, "%s cannot be used: it is too long", name);
        if (r)
                return fault_errno(fault, -r, name);
        *ret = STEAL(data);
        *ret_size = (size_t)st.st_size;
        return 0;
}

static int read_manifest(int dir, struct manifest *ret, struct fault *fault)
{
        CLEANUP(cleanup_free) char *text = NULL;
        size_t size = 0;
        int r = read_file(dir, MANIFEST_FILE, MANIFEST_BYTES_MAX, &text, &size, fault);

        return r ? r : manifest_parse(text, size, ret, fault);
}

int snapshot_open_checkpoint(int dir, uint32_t uid, struct manifest *ret, uint8_t **ret_layout,
                             struct fault *fault)
{
        CLEANUP(cleanup_free) char *packed = NULL;
        uint8_t hash[MANIFEST_HASH];
        size_t size = 0;
        int r;

        if (faccessat(dir, MANIFEST_FILE, F_OK, AT_SYMLINK_NOFOLLOW) < 0 && errno == ENOENT)
                return fault_set(fault, ZERO_EIO,
                                 "the directory is no checkpoint, for it has no " MANIFEST_FILE
                                 ": name DIR/JOB-VERSION; 'zeroctl checkpoints DIR' lists those in "
                                 "DIR");
        if (!is_ours(dir))
                return fault_set(fault, ZERO_EPERM,
                                 "the checkpoint does not belong to zerod's user, or others may "
                                 "write to it");
        r = read_manifest(dir, ret, fault);
        if (r == 0)
                r = read_file(dir, MANIFEST_LAYOUT_FILE, LAYOUT_BYTES_MAX, &packed, &size, fault);
        if (r)
                return r;
        manifest_hash(hash, packed, size);
        if (size != ret->layout_bytes || memcmp(hash, ret->layout_hash, sizeof(hash)) != 0)
                return fault_set(fault, ZERO_EIO, "%s cannot be used: its checksum is wrong",
                                 MANIFEST_LAYOUT_FILE);
        if (uid != 0 && uid != ret->job.uid)
                return fault_set(fault, ZERO_EPERM, "the checkpoint belongs to user %u",
                                 ret->job.uid);
        *ret_layout = (uint8_t *)STEAL(packed);
        return 0;
}

int snapshot_layout(const uint8_t *packed, size_t bytes, layout **ret, struct fault *fault)
{
        Zero__Layout *m = zero__layout__unpack(NULL, bytes, packed);
        int r;

        if (!m)
                return fault_set(fault, ZERO_EPROTO, "the checkpoint's layout cannot be read");
        r = optimizer_layout(m, ret, fault);
        zero__layout__free_unpacked(m, NULL);
        return r < 0 ? fault_set(fault, ZERO_ENOMEM, "out of memory") : r;
}

int snapshot_check_next(int dir, uint32_t uid, struct snapshot_check *at, struct fault *fault)
{
        CLEANUP(cleanup_layout_free) layout *l = NULL;
        CLEANUP(cleanup_free) uint8_t *packed = NULL;
        uint64_t before = at->block;
        struct manifest m;
        bool over = false;
        int r = snapshot_open_checkpoint(dir, uid, &m, &packed, fault);

        if (r == 0)
                r = snapshot_layout(packed, m.layout_bytes, &l, fault);
        if (r == 0 && at->shard >= m.n_owners)
                r = fault_set(fault, ZERO_EINVAL, "the checkpoint has %u shards", m.n_owners);
        if (r == 0)
                r = snapshot_verify(dir, &m, at->shard, l->n_tensors, CHECK_BLOCKS, &at->block,
                                    &over, fault);
        at->bytes += r ? 0 : (at->block - before) * SNAPSHOT_BLOCK;
        if (over) {
                at->shard++;
                at->block = 0;
                at->over = at->shard == m.n_owners;
        }
        return r;
}

/* ---- publishing ---- */

static int write_file(int dir, const char *name, const void *data, size_t size, struct fault *fault)
{
        int r = small_file_write(dir, name, data, size);

        return r ? fault_errno(fault, -r, name) : 0;
}

static bool same_manifest(const struct manifest *a, const struct manifest *b)
{
        return a->attempt == b->attempt && a->created_ms == b->created_ms &&
               a->n_owners == b->n_owners &&
               memcmp(a->shards[0].hash, b->shards[0].hash, MANIFEST_HASH) == 0;
}

/* What has the checkpoint's name: 0 nothing, 1 this checkpoint, 2 another one of its job. */
static int look(int dir, const char *name, const struct manifest *m, struct fault *fault)
{
        CLEANUP(cleanup_close) int fd = open_ours(dir, name);
        struct manifest there;

        if (fd < 0 && errno == ENOENT)
                return 0;
        if (fd < 0 || read_manifest(fd, &there, NULL) || strcmp(there.job.name, m->job.name) != 0 ||
            there.job.uid != m->job.uid)
                return -fault_set(
                        fault, ZERO_EBUSY,
                        "%s exists and is not a checkpoint of this user's job: move it away", name);
        return same_manifest(&there, m) ? 1 : 2;
}

/* Deletes shards of a cancelled attempt with other owners. */
static void remove_foreign(int fd, const struct manifest *m)
{
        CLEANUP(cleanup_closedir) DIR *d = NULL;
        char suffix[32];

        if (read_directory(fd, &d))
                return;
        snprintf(suffix, sizeof(suffix), "-of-%05u", m->n_owners);
        for (struct dirent *e; (e = readdir(d));)
                if (strncmp(e->d_name, "shard-", 6) == 0 && !strstr(e->d_name, suffix))
                        unlinkat(fd, e->d_name, 0);
}

static int fill_partial(int dir, const char *name, const struct manifest *m, const char *text,
                        const void *packed, struct fault *fault)
{
        CLEANUP(cleanup_close) int fd = open_ours(dir, name);
        int r;

        if (fd < 0)
                return fault_errno(fault, errno, name);
        remove_foreign(fd, m);
        r = write_file(fd, MANIFEST_LAYOUT_FILE, packed, m->layout_bytes, fault);
        if (r == 0)
                r = write_file(fd, MANIFEST_FILE, text, strlen(text), fault);
        if (r == 0 && fsync(fd) < 0)
                r = fault_errno(fault, errno, name);
        return r;
}

int snapshot_publish(int dir, const struct manifest *m, const char *text, const void *packed,
                     struct fault *fault)
{
        char whole[DIR_NAME], partial[DIR_NAME];
        int there, r;

        whole_name(m->job.name, m->version, whole);
        partial_name(m->job.name, m->version, partial);
        there = look(dir, whole, m, fault);
        if (there < 0)
                return -there;
        if (there == 1) /* another node with the same directory was first */
                return fsync(dir) < 0 ? fault_errno(fault, errno, whole) : 0;
        r = fill_partial(dir, partial, m, text, packed, fault);
        if (r)
                return r;
        crash_point(CRASH_CHECKPOINT_FILLED);
        if (renameat2(dir, partial, dir, whole, there == 2 ? RENAME_EXCHANGE : 0) < 0)
                return fault_errno(fault, errno, whole);
        if (fsync(dir) < 0)
                return fault_errno(fault, errno, whole);
        crash_point(CRASH_CHECKPOINT_NAMED);
        if (there == 2)
                remove_ours(dir, partial); /* of the other checkpoint */
        return 0;
}

/* ---- the newest ones ---- */

struct whole {
        char name[DIR_NAME];
        uint64_t created_ms;
};

static int newer_first(const void *a, const void *b)
{
        uint64_t x = ((const struct whole *)a)->created_ms;
        uint64_t y = ((const struct whole *)b)->created_ms;

        return x < y ? 1 : x > y ? -1 : 0;
}

static bool is_whole_of(int dir, const char *name, const struct manifest *m, struct whole *ret)
{
        CLEANUP(cleanup_close) int fd = -1;
        struct manifest there;

        if (!is_of_job(name, m->job.name, ""))
                return false;
        fd = open_ours(dir, name);
        if (fd < 0 || read_manifest(fd, &there, NULL) || strcmp(there.job.name, m->job.name) != 0 ||
            there.job.uid != m->job.uid)
                return false;
        snprintf(ret->name, sizeof(ret->name), "%s", name);
        /* the one just written is the newest, whatever the clocks say */
        ret->created_ms = same_manifest(&there, m) ? UINT64_MAX : there.created_ms;
        return true;
}

/* ---- all of a directory ---- */

static void look_at_shards(int fd, const struct manifest *m, struct snapshot_listed *ret)
{
        char name[MANIFEST_FILE_NAME];
        struct stat st;

        for (uint32_t i = 0; i < m->n_owners; i++) {
                manifest_shard_name(i, m->n_owners, name);
                ret->bytes += m->shards[i].bytes;
                if (fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
                    (uint64_t)st.st_size == m->shards[i].bytes)
                        ret->n_here++;
                else if (!ret->flaw[0])
                        snprintf(ret->flaw, sizeof(ret->flaw),
                                 "%s is not here whole: node %s wrote it, and a restore needs all "
                                 "files in one directory",
                                 name, m->shards[i].node);
        }
}

/* False: it is no checkpoint, or another user's. */
static bool list_one(int dir, const char *name, uint32_t uid, struct snapshot_listed *ret)
{
        CLEANUP(cleanup_close) int fd = open_ours(dir, name);
        struct fault fault = { 0 };
        struct manifest m;

        if (fd < 0 || faccessat(fd, MANIFEST_FILE, F_OK, AT_SYMLINK_NOFOLLOW) < 0)
                return false;
        *ret = (struct snapshot_listed){ .n_here = 0 };
        snprintf(ret->name, sizeof(ret->name), "%s", strcmp(name, ".") == 0 ? "" : name);
        if (read_manifest(fd, &m, &fault)) {
                snprintf(ret->flaw, sizeof(ret->flaw), "%.250s", fault.text);
                return uid == 0 || uid == geteuid();
        }
        snprintf(ret->job, sizeof(ret->job), "%s", m.job.name);
        ret->version = m.version;
        ret->created_ms = m.created_ms;
        ret->n_shards = m.n_owners;
        look_at_shards(fd, &m, ret);
        return uid == 0 || uid == m.job.uid;
}

static int listed_newer_first(const void *a, const void *b)
{
        uint64_t x = ((const struct snapshot_listed *)a)->created_ms;
        uint64_t y = ((const struct snapshot_listed *)b)->created_ms;

        return x < y ? 1 : x > y ? -1 : 0;
}

int snapshot_list(int dir, uint32_t uid, struct snapshot_listed **ret, uint32_t *ret_n,
                  struct fault *fault)
{
        CLEANUP(cleanup_closedir) DIR *d = NULL;
        CLEANUP(cleanup_free)
        struct snapshot_listed *all = calloc(KEEP_LISTED, sizeof(*all));
        uint32_t n = 0;

        if (!all || read_directory(dir, &d))
                return fault_set(fault, ZERO_EIO, "the directory cannot be read");
        n += list_one(dir, ".", uid, &all[n]);
        for (struct dirent *e; n < KEEP_LISTED && (e = readdir(d));)
                n += e->d_name[0] != '.' && strlen(e->d_name) < sizeof(all->name) &&
                     list_one(dir, e->d_name, uid, &all[n]);
        qsort(all, n, sizeof(*all), listed_newer_first);
        *ret = STEAL(all);
        *ret_n = n;
        return 0;
}

/* Renames the checkpoint to a partial one first, so that nobody takes a half-deleted checkpoint for
 * a whole one. */
static void remove_whole(int dir, const char *name)
{
        char partial[DIR_NAME + sizeof(partial_suffix) + 1];

        snprintf(partial, sizeof(partial), ".%s%s", name, partial_suffix);
        if (renameat(dir, name, dir, partial) < 0)
                return;
        crash_point(CRASH_CHECKPOINT_THINNED);
        remove_ours(dir, partial);
}

void snapshot_keep(int dir, const struct manifest *m, uint32_t keep)
{
        CLEANUP(cleanup_closedir) DIR *d = NULL;
        CLEANUP(cleanup_free) struct whole *all = calloc(KEEP_LISTED, sizeof(*all));
        size_t n = 0;

        if (!all || keep == 0 || read_directory(dir, &d))
                return;
        for (struct dirent *e; n < KEEP_LISTED && (e = readdir(d));)
                n += is_whole_of(dir, e->d_name, m, &all[n]);
        qsort(all, n, sizeof(*all), newer_first);
        for (size_t i = keep; i < n; i++)
                remove_whole(dir, all[i].name);
}
