/* What this machine's files and limits say; see doctor.h. */
#include <dirent.h>
#include <errno.h>
#include <linux/magic.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "daemon/cluster/doctor/doctor.h"
#include "proto/cleanup.h"

enum { TEXT_MAX = 4096, PATH_LENGTH = 4200, FILES_OF_A_SESSION = 3, FILES_BESIDE = 256 };

#define GIB(bytes) ((double)(bytes) / (1 << 30))

/* The first TEXT_MAX bytes of ROOT/PATH, with a 0 behind them.  False: there is no such file. */
static bool read_text(const struct site *site, const char *path, char ret[TEXT_MAX])
{
        char name[PATH_LENGTH];
        size_t n = 0;
        FILE *file;

        snprintf(name, sizeof name, "%s%s", site->root, path);
        file = fopen(name, "re");
        if (!file)
                return false;
        n = fread(ret, 1, TEXT_MAX - 1, file);
        fclose(file);
        ret[n] = 0;
        return true;
}

/* False: there is no such file, or no number in it, such as "max". */
static bool read_number(const struct site *site, const char *path, uint64_t *ret)
{
        char text[TEXT_MAX], *end;
        unsigned long long n;

        if (!read_text(site, path, text))
                return false;
        n = strtoull(text, &end, 10);
        if (end == text)
                return false;
        *ret = n;
        return true;
}

/* ---- files ------------------------------------------------------------------- */

void finding_add(struct findings *f, const char *check, enum finding_state state,
                 const char *advice, const char *format, ...)
{
        struct finding *item = &f->items[f->n];
        va_list args;

        if (f->n == FINDINGS_MAX)
                return;
        f->n++;
        snprintf(item->check, sizeof item->check, "%s", check);
        item->state = state;
        item->advice = advice;
        va_start(args, format);
        vsnprintf(item->found, sizeof item->found, format, args);
        va_end(args);
}

static void examine_key(const char *option, const char *path, struct findings *f)
{
        struct stat st;

        if (!*path)
                return;
        if (stat(path, &st))
                finding_add(f, option, FINDING_ERROR,
                            "put the cluster's key there: zerod reads it when it starts again",
                            "%s: %s", path, strerror(errno));
        else if (st.st_mode & 077)
                finding_add(
                        f, option, FINDING_ERROR,
                        "chmod 0600: whoever reads the key may join the cluster; zerod does not "
                        "start again with such a file",
                        "%s has mode %04o", path, (unsigned)st.st_mode & 07777);
        else
                finding_add(f, option, FINDING_FINE, "", "%s", path);
}

static void examine_keys(const struct site *site, struct findings *f)
{
        examine_key("key_file", site->conf->key_file, f);
        examine_key("key_next_file", site->conf->key_next_file, f);
}

static bool in_memory(const struct statfs *fs)
{
        return fs->f_type == TMPFS_MAGIC || fs->f_type == RAMFS_MAGIC;
}

static void examine_state_dir(const struct site *site, struct findings *f)
{
        const char *dir = site->conf->state_dir;
        uint64_t limit = site->conf->memory_limit, total, available;
        struct statfs fs;

        if (statfs(dir, &fs)) {
                finding_add(f, "state_dir", FINDING_ERROR, "make the directory", "%s: %s", dir,
                            strerror(errno));
                return;
        }
        total = fs.f_blocks * (uint64_t)fs.f_bsize;
        available = fs.f_bavail * (uint64_t)fs.f_bsize;
        if (!in_memory(&fs))
                finding_add(
                        f, "state_dir", FINDING_WARNING,
                        "choose a directory on tmpfs: every step changes the whole state, and a "
                        "disk has to write that",
                        "%s is not on tmpfs", dir);
        else if (limit > total)
                finding_add(f, "state_dir", FINDING_WARNING,
                            "mount -o remount,size=... the file system, or lower `memory_limit`: "
                            "jobs within the limit find no space",
                            "%s has %.1f GiB, memory_limit is %.1f GiB", dir, GIB(total),
                            GIB(limit));
        else if (available < total / 10)
                finding_add(f, "state_dir", FINDING_WARNING,
                            "drop jobs that are not needed (zeroctl jobs), remove what others left "
                            "there, enlarge the file system, or keep states in fewer bytes "
                            "(zeroctl plan --state 8bit)",
                            "%s has %.1f GiB of %.1f GiB left", dir, GIB(available), GIB(total));
        else
                finding_add(f, "state_dir", FINDING_FINE, "", "%s, %.1f GiB of %.1f GiB left", dir,
                            GIB(available), GIB(total));
}

static void examine_membership_dir(const struct site *site, struct findings *f)
{
        const char *dir = site->conf->membership_dir;
        struct statfs fs;

        if (site->alone)
                return;
        if (statfs(dir, &fs))
                finding_add(f, "membership_dir", FINDING_ERROR, "make the directory", "%s: %s", dir,
                            strerror(errno));
        else if (in_memory(&fs))
                finding_add(
                        f, "membership_dir", FINDING_ERROR,
                        "choose a directory on a disk: after a reboot this node may vote twice, "
                        "and two owner lists may be in force",
                        "%s is in memory", dir);
        else
                finding_add(f, "membership_dir", FINDING_FINE, "", "%s", dir);
}

static void examine_checkpoint_dir(const struct site *site, struct findings *f)
{
        const char *dir = site->conf->checkpoint_dir;
        struct statvfs fs;
        uint64_t available;

        if (!*dir)
                return;
        if (access(dir, R_OK | W_OK | X_OK) || statvfs(dir, &fs)) {
                finding_add(f, "checkpoint_dir", FINDING_ERROR,
                            "make the directory, for the user that zerod runs as", "%s: %s", dir,
                            strerror(errno));
                return;
        }
        available = fs.f_bavail * (uint64_t)fs.f_frsize;
        if (available < site->state_bytes)
                finding_add(f, "checkpoint_dir", FINDING_WARNING,
                            "remove old checkpoints, or choose a larger file system",
                            "%s has %.1f GiB left, the states of all jobs have %.1f GiB", dir,
                            GIB(available), GIB(site->state_bytes));
        else
                finding_add(f, "checkpoint_dir", FINDING_FINE, "", "%s, %.1f GiB left", dir,
                            GIB(available));
}

/* ---- limits ------------------------------------------------------------------ */

uint64_t sessions_that_fit(void)
{
        struct rlimit files;

        if (getrlimit(RLIMIT_NOFILE, &files))
                return UINT64_MAX;
        return files.rlim_cur > FILES_BESIDE ? (files.rlim_cur - FILES_BESIDE) / FILES_OF_A_SESSION
                                             : 0;
}

static void examine_open_files(const struct site *site, struct findings *f)
{
        uint64_t needed = FILES_OF_A_SESSION * site->conf->session_limit + FILES_BESIDE;
        struct rlimit files;

        if (getrlimit(RLIMIT_NOFILE, &files))
                return;
        if (files.rlim_cur < needed)
                finding_add(f, "open files", FINDING_WARNING,
                            "raise LimitNOFILE in the unit, or lower `session_limit`",
                            "at most %llu, session_limit needs about %llu",
                            (unsigned long long)files.rlim_cur, (unsigned long long)needed);
        else
                finding_add(f, "open files", FINDING_FINE, "", "at most %llu",
                            (unsigned long long)files.rlim_cur);
}

bool site_has_rdma(const struct site *site)
{
        char name[PATH_LENGTH];
        bool found = false;
        struct dirent *d;
        DIR *dir;

        snprintf(name, sizeof name, "%s/sys/class/infiniband", site->root);
        dir = opendir(name);
        while (dir && !found && (d = readdir(dir)))
                found = d->d_name[0] != '.';
        if (dir)
                closedir(dir);
        return found;
}

static void examine_locked_memory(const struct site *site, struct findings *f)
{
        struct rlimit locked;

        if (getrlimit(RLIMIT_MEMLOCK, &locked))
                return;
        if (locked.rlim_cur == RLIM_INFINITY)
                finding_add(f, "locked memory", FINDING_FINE, "", "no limit");
        else if (site_has_rdma(site))
                finding_add(f, "locked memory", FINDING_ERROR,
                            "LimitMEMLOCK=infinity in the unit: the RDMA device pins what it sends",
                            "at most %llu bytes", (unsigned long long)locked.rlim_cur);
        else
                finding_add(f, "locked memory", FINDING_FINE, "",
                            "at most %llu bytes; no RDMA device needs more",
                            (unsigned long long)locked.rlim_cur);
}

/* The smallest limit of a cgroup and those above it; path is cut.  False: there is none. */
static bool least_limit(const struct site *site, const char *mount, char *path, const char *file,
                        uint64_t *ret)
{
        char name[PATH_LENGTH];
        bool found = false;
        uint64_t n;

        for (;;) {
                char *slash = strrchr(path, '/');

                snprintf(name, sizeof name, "/sys/fs/cgroup%s%s/%s", mount,
                         strcmp(path, "/") == 0 ? "" : path, file);
                if (read_number(site, name, &n) && (!found || n < *ret)) {
                        *ret = n;
                        found = true;
                }
                if (!slash)
                        return found;
                *slash = 0;
        }
}

/* The limit of this process's cgroup.  v2: file of version 2, v1: of version 1. */
static bool cgroup_limit(const struct site *site, const char *v2, const char *v1, uint64_t *ret)
{
        char text[TEXT_MAX], *rest, *path;

        if (!read_text(site, "/proc/self/cgroup", text))
                return false;
        for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
                if (strncmp(line, "0::", 3) == 0 && least_limit(site, "", line + 3, v2, ret))
                        return true;
                path = strstr(line, ":memory:");
                if (path && least_limit(site, "/memory", path + strlen(":memory:"), v1, ret))
                        return true;
        }
        return false;
}

static void examine_cgroup(const struct site *site, struct findings *f)
{
        const uint64_t unlimited = UINT64_C(1) << 60; /* version 1 has a number for that */
        uint64_t limit, memory_limit = site->conf->memory_limit;

        if (!cgroup_limit(site, "memory.max", "memory.limit_in_bytes", &limit) ||
            limit >= unlimited)
                finding_add(f, "cgroup", FINDING_FINE, "", "no limit of memory");
        else if (memory_limit == 0 || memory_limit > limit)
                finding_add(
                        f, "cgroup", FINDING_WARNING,
                        "set `memory_limit` below the cgroup's limit, or raise MemoryMax: states "
                        "on tmpfs count, and the kernel kills zerod where they exceed the limit",
                        "memory ends at %.1f GiB, memory_limit is %.1f GiB%s", GIB(limit),
                        GIB(memory_limit), memory_limit ? "" : " (none)");
        else
                finding_add(f, "cgroup", FINDING_FINE, "", "memory ends at %.1f GiB", GIB(limit));
}

/* ---- the kernel -------------------------------------------------------------- */

static void examine_swap(const struct site *site, struct findings *f)
{
        char text[TEXT_MAX], *second;
        uint64_t most;

        if (!read_text(site, "/proc/swaps", text) || !(second = strchr(text, '\n')) || !second[1])
                finding_add(f, "swap", FINDING_FINE, "", "none");
        else if (cgroup_limit(site, "memory.swap.max", "", &most) && most == 0)
                finding_add(f, "swap", FINDING_FINE, "", "none for zerod");
        else
                finding_add(
                        f, "swap", FINDING_WARNING,
                        "swapoff, or MemorySwapMax=0 in the unit: a step waits for every page of "
                        "the state that was swapped out",
                        "%.*s", (int)strcspn(second + 1, " \t\n"), second + 1);
}

static void examine_huge_pages(const struct site *site, struct findings *f)
{
        char text[TEXT_MAX], *from, *to;

        if (!read_text(site, "/sys/kernel/mm/transparent_hugepage/shmem_enabled", text) ||
            !(from = strchr(text, '[')) || !(to = strchr(from, ']')))
                return;
        *to = 0;
        if (strcmp(from + 1, "never") == 0 || strcmp(from + 1, "deny") == 0)
                finding_add(f, "huge pages", FINDING_FINE,
                            "`advise` in /sys/kernel/mm/transparent_hugepage/shmem_enabled lets "
                            "trainers map windows faster",
                            "%s for shared memory", from + 1);
        else
                finding_add(f, "huge pages", FINDING_FINE, "", "%s for shared memory", from + 1);
}

/* Errors of the host's memory, as the kernel has counted them since it started. */
static void examine_ecc(const struct site *site, struct findings *f)
{
        uint64_t n, corrected = 0, uncorrected = 0;
        char path[64];
        unsigned i;

        for (i = 0; i < 64; i++) {
                snprintf(path, sizeof path, "/sys/devices/system/edac/mc/mc%u/ue_count", i);
                if (!read_number(site, path, &n))
                        break;
                uncorrected += n;
                snprintf(path, sizeof path, "/sys/devices/system/edac/mc/mc%u/ce_count", i);
                corrected += read_number(site, path, &n) ? n : 0;
        }
        if (uncorrected)
                finding_add(f, "ECC", FINDING_ERROR,
                            "replace the memory: states on this node may be wrong",
                            "%llu errors that could not be corrected",
                            (unsigned long long)uncorrected);
        else if (corrected)
                finding_add(f, "ECC", FINDING_WARNING,
                            "watch the count: a module whose errors grow is about to fail",
                            "%llu corrected errors", (unsigned long long)corrected);
        else
                finding_add(f, "ECC", FINDING_FINE, "", "%s",
                            i ? "no errors" : "the kernel counts none on this machine");
}

void site_examine(const struct site *site, struct findings *ret)
{
        static void (*const checks[])(const struct site *, struct findings *) = {
                examine_keys,           examine_state_dir,
                examine_membership_dir, examine_checkpoint_dir,
                examine_open_files,     examine_locked_memory,
                examine_cgroup,         examine_swap,
                examine_huge_pages,     examine_ecc,
        };

        for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++)
                checks[i](site, ret);
}
