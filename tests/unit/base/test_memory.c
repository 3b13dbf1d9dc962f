/* What control groups leave: trees of both versions, as processes see them in and out of
 * containers. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/floor/base/memory.h"

#define MIB (UINT64_C(1) << 20)
#define V1 "31 30 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
#define V2 "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"

static char root[] = "/tmp/zerod-memory-XXXXXX";

static void tree_new(void)
{
        cr_assert(mkdtemp(root));
}

static int delete_one(const char *path, const struct stat *st, int type, struct FTW *place)
{
        return remove(path);
}

static void tree_delete(void)
{
        nftw(root, delete_one, 8, FTW_DEPTH | FTW_PHYS);
}

static void put(const char *path, const char *format, ...)
{
        char whole[512];
        va_list arguments;
        FILE *f;

        snprintf(whole, sizeof whole, "%s/%s", root, path);
        for (char *slash = whole + strlen(root); (slash = strchr(slash + 1, '/'));) {
                *slash = 0;
                mkdir(whole, 0700);
                *slash = '/';
        }
        f = fopen(whole, "w");
        cr_assert(f, "%s", whole);
        va_start(arguments, format);
        vfprintf(f, format, arguments);
        va_end(arguments);
        fclose(f);
}

/* The process' group, and where the hierarchies are mounted. */
static void process(const char *groups, const char *mounts)
{
        put("proc/self/cgroup", "%s", groups);
        put("proc/self/mountinfo", "%s", mounts);
}

static void group1(const char *at, const char *limit, unsigned used, unsigned inactive)
{
        char path[256];

        snprintf(path, sizeof path, "sys/fs/cgroup/memory%s/memory.limit_in_bytes", at);
        put(path, "%s\n", limit);
        snprintf(path, sizeof path, "sys/fs/cgroup/memory%s/memory.usage_in_bytes", at);
        put(path, "%llu\n", (unsigned long long)(used * MIB));
        snprintf(path, sizeof path, "sys/fs/cgroup/memory%s/memory.stat", at);
        put(path, "inactive_file 77\ntotal_rss 5\ntotal_inactive_file %llu\n",
            (unsigned long long)(inactive * MIB));
}

static void group2(const char *at, const char *most, const char *high, unsigned used,
                   unsigned inactive)
{
        char path[256];

        snprintf(path, sizeof path, "sys/fs/cgroup%s/memory.max", at);
        put(path, "%s\n", most);
        snprintf(path, sizeof path, "sys/fs/cgroup%s/memory.high", at);
        put(path, "%s\n", high);
        snprintf(path, sizeof path, "sys/fs/cgroup%s/memory.current", at);
        put(path, "%llu\n", (unsigned long long)(used * MIB));
        snprintf(path, sizeof path, "sys/fs/cgroup%s/memory.stat", at);
        put(path, "anon 1\ninactive_file %llu\nactive_file 9\n",
            (unsigned long long)(inactive * MIB));
}

TestSuite(memory, .init = tree_new, .fini = tree_delete);

Test(memory, no_groups_no_limit)
{
        cr_assert_eq(memory_of_groups(root), UINT64_MAX);
        process("0::/\n", V2);
        cr_assert_eq(memory_of_groups(root), UINT64_MAX, "the root has no files");
}

Test(memory, least_of_version_2_upwards)
{
        process("0::/kube/pod/zerod\n", V2);
        group2("/kube/pod/zerod", "max", "max", 10, 0);
        group2("/kube/pod", "104857600", "max", 30, 10); /* 100 MiB */
        group2("/kube", "1073741824", "max", 500, 0);
        cr_assert_eq(memory_of_groups(root), 80 * MIB, "the pod's limit, less what is not cache");
        group2("/kube/pod/zerod", "max", "52428800", 10, 5); /* 50 MiB */
        cr_assert_eq(memory_of_groups(root), 45 * MIB, "memory.high slows the process down");
        group2("/kube", "524288000", "max", 500, 0);
        cr_assert_eq(memory_of_groups(root), 0, "the outermost is full");
}

Test(memory, least_of_version_1_upwards)
{
        process("9:name=systemd:/\n4:cpu,memory:/docker/a\n3:cpuset:/docker/b\n0::/\n", V1);
        group1("/docker/a", "104857600", 40, 15);
        group1("/docker", "9223372036854771712", 40, 0);
        cr_assert_eq(memory_of_groups(root), 75 * MIB);
        group1("", "62914560", 40, 0); /* 60 MiB */
        cr_assert_eq(memory_of_groups(root), 20 * MIB);
}

Test(memory, versions_at_once)
{
        process("4:memory:/a\n0::/b\n",
                V1 "30 23 0:26 / /sys/fs/cgroup/unified rw shared:3 - cgroup2 cgroup2 rw\n");
        group1("/a", "104857600", 40, 0);
        group2("/unified/b", "83886080", "max", 40, 0); /* 80 MiB */
        cr_assert_eq(memory_of_groups(root), 40 * MIB);
}

/* A container sees its own group at the mount, by either name. */
Test(memory, container_with_and_without_a_namespace)
{
        group1("", "104857600", 40, 0);
        process("4:memory:/docker/abc\n",
                "31 30 0:28 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
        cr_assert_eq(memory_of_groups(root), 60 * MIB);
        process("4:memory:/\n", V1);
        cr_assert_eq(memory_of_groups(root), 60 * MIB);
        process("4:memory:/../abc\n",
                "31 30 0:28 /.. /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
        cr_assert_eq(memory_of_groups(root), 60 * MIB);
        process("4:memory:/docker/abcd\n",
                "31 30 0:28 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
        cr_assert_eq(memory_of_groups(root), UINT64_MAX, "another container's group");
}

Test(memory, a_mount_with_a_blank)
{
        process("4:memory:/a\n",
                "31 30 0:28 / /sys/fs/cgroup/memory/my\\040groups rw - cgroup cgroup rw,memory\n");
        group1("/my groups/a", "104857600", 40, 0);
        cr_assert_eq(memory_of_groups(root), 60 * MIB);
}

Test(memory, nonsense_is_no_limit)
{
        static const char *const texts[] = { "",      "\n",         ":::\n",       "0:\n",
                                             "0::\n", "4:memory\n", "4:memory:\n", "x" };

        for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
                for (size_t j = 0; j < sizeof texts / sizeof *texts; j++) {
                        process(texts[i], texts[j]);
                        cr_assert_eq(memory_of_groups(root), UINT64_MAX);
                }
        process("4:memory:/a\n",
                "- - - \n1 2 - cgroup\n1 2 3 4 5 - cgroup x\n1 2 3 / / - cgroup2 \n");
        cr_assert_eq(memory_of_groups(root), UINT64_MAX);
        process("4:memory:/a\n", V1);
        group1("/a", "much", 40, 0);
        cr_assert_eq(memory_of_groups(root), UINT64_MAX);
        group1("/a", "-1", 40, 0);
        cr_assert_geq(memory_of_groups(root), UINT64_MAX / 2);
}

/* What was admitted counts until its pages are there. */
Test(memory, promises_count_until_pages_are_there)
{
        int fd = memfd_create("zerod-test", MFD_CLOEXEC);
        struct memory_promise a = { .bytes = 0 }, b = { .bytes = 0 };
        uint64_t before = memory_of_machine();

        cr_assert_eq(ftruncate(fd, (off_t)(UINT64_C(1) << 44)), 0);
        cr_assert_lt(before, UINT64_C(1) << 44, "for a smaller machine than this");
        memory_promise(&a, UINT64_C(1) << 44, fd, true);
        cr_assert_eq(memory_of_machine(), 0);
        cr_assert_gt(memory_available(), 0, "others may never take it");
        memory_promise(&a, 4096, fd, true);
        cr_assert_gt(memory_of_machine(), 0, "a promise changes");
        memory_promise(&b, UINT64_C(1) << 44, -1, false);
        cr_assert_eq(memory_available(), 0);
        cr_assert_eq(memory_of_machine(), 0);
        memory_kept(&b);
        memory_kept(&b);
        cr_assert_gt(memory_available(), 0);
        memory_kept(&a);
        close(fd);
}
