/* What the doctor says of a machine, from a directory of files in the place of /proc and /sys. */
#include <criterion/criterion.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/cluster/doctor/doctor.h"
#include "tests/support/temporary.h"

#define GIB (UINT64_C(1) << 30)

static char root[256];
static char nowhere[] = "";
static struct conf conf;
static struct site site;

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
        return remove(path);
}

static void begin(void)
{
        cr_assert(temporary_directory(root, sizeof(root)));
        conf = (struct conf){ .state_dir = root,
                              .membership_dir = root,
                              .checkpoint_dir = nowhere,
                              .key_file = nowhere,
                              .key_next_file = nowhere,
                              .session_limit = 1 };
        site = (struct site){ .root = root, .conf = &conf, .alone = true };
}

static void end(void)
{
        nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* Writes ROOT/PATH. */
static void file(const char *path, const char *text)
{
        char name[512];
        FILE *f;

        snprintf(name, sizeof name, "%s%s", root, path);
        for (char *p = name + strlen(root) + 1; (p = strchr(p, '/')); p++) {
                *p = 0;
                mkdir(name, 0700);
                *p = '/';
        }
        cr_assert((f = fopen(name, "w")));
        fputs(text, f);
        fclose(f);
}

static struct finding found(const char *check)
{
        static struct findings f;

        f.n = 0;
        site_examine(&site, &f);
        for (unsigned i = 0; i < f.n; i++)
                if (strcmp(f.items[i].check, check) == 0)
                        return f.items[i];
        cr_assert_fail("nothing was said of %s", check);
        return (struct finding){ .check = "" };
}

static void expect(const char *check, enum finding_state state, const char *word)
{
        struct finding f = found(check);

        cr_expect_eq(f.state, state, "%s: %s", check, f.found);
        cr_expect(strstr(f.found, word), "%s: '%s' is not in: %s", check, word, f.found);
        cr_expect(state == FINDING_FINE || *f.advice, "%s: nothing to do", check);
}

TestSuite(doctor, .init = begin, .fini = end);

Test(doctor, a_machine_without_those_files_is_fine)
{
        expect("cgroup", FINDING_FINE, "no limit");
        expect("swap", FINDING_FINE, "none");
        expect("ECC", FINDING_FINE, "none");
        expect("open files", FINDING_FINE, "at most");
}

Test(doctor, a_key_that_others_may_read_is_an_error)
{
        char key[512];

        snprintf(key, sizeof key, "%s/key", root);
        conf.key_file = key;
        expect("key_file", FINDING_ERROR, "No such file");
        file("/key", "k");
        chmod(key, 0640);
        expect("key_file", FINDING_ERROR, "mode 0640");
        chmod(key, 0600);
        expect("key_file", FINDING_FINE, "/key");
}

Test(doctor, the_smallest_limit_of_the_cgroups_counts)
{
        file("/proc/self/cgroup", "0::/system.slice/zerod.service\n");
        file("/sys/fs/cgroup/system.slice/zerod.service/memory.max", "max\n");
        expect("cgroup", FINDING_FINE, "no limit");
        file("/sys/fs/cgroup/system.slice/memory.max", "8589934592\n");
        expect("cgroup", FINDING_WARNING, "8.0 GiB");
        conf.memory_limit = 16 * GIB;
        expect("cgroup", FINDING_WARNING, "16.0 GiB");
        conf.memory_limit = 4 * GIB;
        expect("cgroup", FINDING_FINE, "8.0 GiB");
}

Test(doctor, cgroups_of_version_1_count)
{
        conf.memory_limit = 4 * GIB;
        file("/proc/self/cgroup", "9:cpu,cpuacct:/x\n4:memory:/jobs/zerod\n1:name=systemd:/y\n");
        file("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
        expect("cgroup", FINDING_FINE, "no limit");
        file("/sys/fs/cgroup/memory/jobs/zerod/memory.limit_in_bytes", "1073741824\n");
        expect("cgroup", FINDING_WARNING, "1.0 GiB");
}

Test(doctor, swap_is_a_warning_unless_the_cgroup_has_none)
{
        file("/proc/swaps", "Filename\tType\tSize\tUsed\tPriority\n");
        expect("swap", FINDING_FINE, "none");
        file("/proc/swaps",
             "Filename\tType\tSize\tUsed\tPriority\n/dev/sda2 partition\t9\t0\t-2\n");
        expect("swap", FINDING_WARNING, "/dev/sda2");
        file("/proc/self/cgroup", "0::/zerod\n");
        file("/sys/fs/cgroup/zerod/memory.swap.max", "0\n");
        expect("swap", FINDING_FINE, "none for zerod");
}

Test(doctor, errors_of_memory_are_told)
{
        file("/sys/devices/system/edac/mc/mc0/ue_count", "0\n");
        file("/sys/devices/system/edac/mc/mc0/ce_count", "0\n");
        file("/sys/devices/system/edac/mc/mc1/ue_count", "0\n");
        file("/sys/devices/system/edac/mc/mc1/ce_count", "3\n");
        expect("ECC", FINDING_WARNING, "3 corrected");
        file("/sys/devices/system/edac/mc/mc0/ue_count", "2\n");
        expect("ECC", FINDING_ERROR, "2 errors");
}

Test(doctor, huge_pages_are_told)
{
        file("/sys/kernel/mm/transparent_hugepage/shmem_enabled",
             "always within_size [never] deny\n");
        expect("huge pages", FINDING_FINE, "never");
}

Test(doctor, directories_have_to_be_there)
{
        char missing[512];

        snprintf(missing, sizeof missing, "%s/missing", root);
        conf.state_dir = conf.checkpoint_dir = conf.membership_dir = missing;
        site.alone = false;
        expect("state_dir", FINDING_ERROR, "missing: No such file");
        expect("membership_dir", FINDING_ERROR, "missing: No such file");
        expect("checkpoint_dir", FINDING_ERROR, "missing: No such file");
        conf.checkpoint_dir = root;
        expect("checkpoint_dir", FINDING_FINE, "left");
        site.state_bytes = UINT64_C(1) << 59;
        expect("checkpoint_dir", FINDING_WARNING, "left");
}

Test(doctor, votes_are_not_kept_in_memory)
{
        static char memory[] = "/dev/shm";

        if (access(memory, W_OK)) {
                end(); /* Criterion does not, after a test that is skipped */
                cr_skip_test("there is no /dev/shm");
        }
        site.alone = false;
        conf.membership_dir = memory;
        expect("membership_dir", FINDING_ERROR, "in memory");
        conf.state_dir = memory;
        conf.memory_limit = UINT64_C(1) << 59;
        expect("state_dir", FINDING_WARNING, "memory_limit");
}

Test(doctor, an_rdma_device_is_seen)
{
        cr_expect_not(site_has_rdma(&site));
        file("/sys/class/infiniband/mlx5_0/node_type", "1\n");
        cr_expect(site_has_rdma(&site));
}

Test(doctor, more_findings_than_there_is_room_for_are_dropped)
{
        static struct findings f;

        for (int i = 0; i < FINDINGS_MAX + 10; i++)
                finding_add(&f, "check", FINDING_FINE, "", "%0500d", i);
        cr_expect_eq(f.n, FINDINGS_MAX);
        cr_expect_eq(strlen(f.items[0].found), FOUND_MAX - 1);
}
