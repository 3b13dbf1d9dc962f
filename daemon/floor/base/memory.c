/*
 * See memory.h.
 *
 * A process is in one group of the hierarchy of version 2, and in one of each hierarchy of version
 * 1; memory is limited by either.  /proc/self/cgroup names the group, and mountinfo says where the
 * hierarchy is mounted, and from which group on.  A container often sees only a part of it.  If its
 * group is named from a namespace's root, the mount's root stands in for what lies outside.
 */
#include "daemon/floor/base/memory.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "proto/cleanup.h"

DEFINE_CLEANUP(FILE *, fclose)

/* ---- promises ------------------------------------------------------------------- */

static struct list promises = { &promises, &promises };

void memory_promise(struct memory_promise *p, uint64_t bytes, int fd, bool elsewhere)
{
        memory_kept(p);
        *p = (struct memory_promise){ .bytes = bytes, .fd = fd, .elsewhere = elsewhere };
        list_insert(&promises, &p->link);
}

void memory_kept(struct memory_promise *p)
{
        if (p->link.next)
                list_remove(&p->link);
}

/* Bytes whose pages are not there yet. */
static uint64_t promised(bool elsewhere)
{
        uint64_t sum = 0;
        struct stat st;

        list_for_each (&promises, item) {
                const struct memory_promise *p = CONTAINER_OF(item, struct memory_promise, link);
                uint64_t there = 0;

                if (p->elsewhere && !elsewhere)
                        continue;
                if (p->fd >= 0 && fstat(p->fd, &st) == 0)
                        there = (uint64_t)st.st_blocks * 512;
                sum += there < p->bytes ? p->bytes - there : 0;
        }
        return sum;
}

static uint64_t less(uint64_t bytes, uint64_t taken)
{
        if (bytes == UINT64_MAX)
                return bytes;
        return bytes > taken ? bytes - taken : 0;
}

/* ---- the machine ------------------------------------------------------------------ */

static uint64_t machine(void)
{
        CLEANUP(cleanup_fclose) FILE *f = fopen("/proc/meminfo", "re");
        unsigned long long kib = 0;
        char line[128];

        while (f && fgets(line, sizeof line, f))
                if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
                        break;
        return kib ? kib * 1024 : UINT64_MAX;
}

uint64_t memory_of_machine(void)
{
        return less(machine(), promised(true));
}

uint64_t memory_available(void)
{
        uint64_t of_machine = machine(), of_groups = memory_of_groups("");

        return less(of_machine < of_groups ? of_machine : of_groups, promised(false));
}

/* ---- control groups --------------------------------------------------------------- */

/* What a version calls its files. */
static const struct names {
        const char *limits[2], *used, *inactive;
} names[2] = {
        { { "memory.limit_in_bytes", NULL }, "memory.usage_in_bytes", "total_inactive_file" },
        { { "memory.max", "memory.high" }, "memory.current", "inactive_file" },
};

/* Fails where the number is a word: "max" is no limit. */
static bool read_number(const char *directory, const char *name, uint64_t *ret)
{
        CLEANUP(cleanup_fclose) FILE *f = NULL;
        char path[PATH_MAX];
        unsigned long long n;

        if (snprintf(path, sizeof path, "%s/%s", directory, name) >= (int)sizeof path)
                return false;
        f = fopen(path, "re");
        if (!f || fscanf(f, "%llu", &n) != 1)
                return false;
        *ret = n;
        return true;
}

static uint64_t read_inactive(const char *directory, const char *key)
{
        CLEANUP(cleanup_fclose) FILE *f = NULL;
        char path[PATH_MAX], line[128];
        size_t n = strlen(key);

        if (snprintf(path, sizeof path, "%s/memory.stat", directory) >= (int)sizeof path)
                return 0;
        f = fopen(path, "re");
        while (f && fgets(line, sizeof line, f))
                if (strncmp(line, key, n) == 0 && line[n] == ' ')
                        return strtoull(line + n, NULL, 10);
        return 0;
}

static uint64_t left_in(const char *directory, const struct names *of)
{
        uint64_t left = UINT64_MAX, limit, used;

        if (!read_number(directory, of->used, &used))
                return UINT64_MAX;
        used = less(used, read_inactive(directory, of->inactive));
        for (int i = 0; i < 2; i++)
                if (of->limits[i] && read_number(directory, of->limits[i], &limit) &&
                    less(limit, used) < left)
                        left = less(limit, used);
        return left;
}

/* The least of the group and those around it, up to the mount. */
static uint64_t left_upwards(const char *mount, const char *group, const struct names *of)
{
        char path[PATH_MAX];
        size_t top = strlen(mount);
        uint64_t least = UINT64_MAX;

        if (snprintf(path, sizeof path, "%s%s", mount, group) >= (int)sizeof path)
                return UINT64_MAX;
        for (;;) {
                uint64_t left = left_in(path, of);
                char *slash = strrchr(path + top, '/');

                least = left < least ? left : least;
                if (!slash)
                        return least;
                *slash = 0;
        }
}

/* The part of the group's path below the mount's root, "" for the root itself; NULL: another group
 * is mounted. */
static const char *below(const char *root, const char *group)
{
        size_t n = strcmp(root, "/") == 0 ? 0 : strlen(root);

        if (strcmp(group, "/") == 0 || strstr(group, "/.."))
                return "";
        if (strncmp(group, root, n) != 0 || (group[n] != '/' && group[n] != 0))
                return NULL;
        return group + n;
}

/* Whether the comma-separated list has the word. */
static bool has_word(const char *list, const char *word)
{
        size_t n = strlen(word);

        for (const char *at = list; at; at = strchr(at, ',')) {
                at += *at == ',';
                if (strncmp(at, word, n) == 0 && (at[n] == ',' || at[n] == 0))
                        return true;
        }
        return false;
}

/* The process' group in the hierarchy of that version (0: 1, 1: 2). */
static bool find_group(const char *root, int version, char *ret, size_t size)
{
        CLEANUP(cleanup_fclose) FILE *f = NULL;
        char path[PATH_MAX], line[PATH_MAX + 256];

        snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
        f = fopen(path, "re");
        while (f && fgets(line, sizeof line, f)) {
                char *list = strchr(line, ':'), *group = list ? strchr(list + 1, ':') : NULL;

                if (!group)
                        continue;
                *group++ = 0;
                group[strcspn(group, "\n")] = 0;
                if (version ? strcmp(line, "0:") == 0 : has_word(list + 1, "memory"))
                        return snprintf(ret, size, "%s", group) < (int)size;
        }
        return false;
}

/* mountinfo writes blanks, tabs, line ends and backslashes as octal numbers. */
static void unescape(char *text)
{
        char *to = text;

        for (const char *at = text; *at; at++) {
                if (at[0] == '\\' && at[1] >= '0' && at[1] <= '3' && at[2] >= '0' && at[2] <= '7' &&
                    at[3] >= '0' && at[3] <= '7') {
                        *to++ = (char)((at[1] - '0') * 64 + (at[2] - '0') * 8 + at[3] - '0');
                        at += 3;
                } else {
                        *to++ = *at;
                }
        }
        *to = 0;
}

/* "36 35 98:0 ROOT MOUNT options [optional...] - TYPE source options" */
static bool parse_mount(char *line, int version, char **ret_root, char **ret_mount)
{
        char *rest = strstr(line, " - "), *fields[5], *type, *options;

        if (!rest)
                return false;
        *rest = 0;
        for (int i = 0; i < 5; i++)
                if (!(fields[i] = strsep(&line, " ")))
                        return false;
        rest += strlen(" - ");
        rest[strcspn(rest, "\n")] = 0;
        type = strsep(&rest, " ");
        options = rest ? strchr(rest, ' ') : NULL;
        if (strcmp(type, version ? "cgroup2" : "cgroup") != 0 ||
            (!version && !(options && has_word(options + 1, "memory"))))
                return false;
        unescape(fields[3]);
        unescape(fields[4]);
        *ret_root = fields[3];
        *ret_mount = fields[4];
        return true;
}

static uint64_t left_of(const char *root, int version)
{
        CLEANUP(cleanup_fclose) FILE *f = NULL;
        CLEANUP(cleanup_free) char *line = NULL;
        char path[PATH_MAX], group[PATH_MAX], *top, *mount;
        const char *rest;
        uint64_t least = UINT64_MAX;
        size_t size = 0;

        if (!find_group(root, version, group, sizeof group))
                return UINT64_MAX;
        snprintf(path, sizeof path, "%s/proc/self/mountinfo", root);
        f = fopen(path, "re");
        while (f && getline(&line, &size, f) >= 0) {
                uint64_t left;

                if (!parse_mount(line, version, &top, &mount) || !(rest = below(top, group)) ||
                    snprintf(path, sizeof path, "%s%s", root, mount) >= (int)sizeof path)
                        continue;
                left = left_upwards(path, rest, &names[version]);
                least = left < least ? left : least;
        }
        return least;
}

uint64_t memory_of_groups(const char *root)
{
        uint64_t first = left_of(root, 0), second = left_of(root, 1);

        return first < second ? first : second;
}
