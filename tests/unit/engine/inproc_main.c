/*
 * The engine over several nodes in one process.  Plain main, so that it runs under the
 * thread sanitizer.  Arguments: names of the cases to run, or -NAME to run all but that one, and
 * K/N behind it to run every N-th of them from the K-th on; without any, all.
 *
 * The cases run in a child, so that their directories go with it, however it ends.
 */
#include <signal.h>
#include <sodium.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "cases.h"
#include "check.h"
#include "net.h"
#include "tests/support/temporary.h"

/* number: of the case, from 0 on. */
static bool wanted(const char *name, unsigned number, int argc, char **argv)
{
        unsigned k = 1, n = 1;

        if (argc > 2 && argv[1][0] == '-')
                CHECK(sscanf(argv[2], "%u/%u", &k, &n) == 2 && k > 0 && k <= n);
        for (int i = 1; i < argc; i++)
                if (strcmp(argv[i], name) == 0)
                        return true;
        return argc < 2 || (argv[1][0] == '-' && strcmp(argv[1] + 1, name) && number % n == k - 1);
}

static int run_cases(int argc, char **argv)
{
        const struct test_case *const lists[] = { bitwise_cases,    plane_cases,   lost_cases,
                                                  trouble_cases,    fill_cases,    mirror_cases,
                                                  checkpoint_cases, restore_cases, gpu_cases,
                                                  gpus_cases,       part_cases,    checksum_cases,
                                                  memory_cases };
        unsigned number = 0;
        int ran = 0;

        CHECK(sodium_init() >= 0);
        for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
                for (const struct test_case *c = lists[i]; c->name; c++) {
                        if (!wanted(c->name, number++, argc, argv))
                                continue;
                        printf("%s\n", c->name);
                        fflush(stdout);
                        c->run();
                        ran++;
                }
        printf("%d cases passed\n", ran);
        return ran ? 0 : 1;
}

int main(int argc, char **argv)
{
        int status = 0;
        pid_t child;

        CHECK(temporary_directory(net_home, sizeof(net_home)));
        child = fork();
        CHECK(child >= 0);
        if (child == 0) {
                prctl(PR_SET_PDEATHSIG, SIGKILL);
                exit(run_cases(argc, argv));
        }
        CHECK(waitpid(child, &status, 0) == child);
        directory_delete(net_home);
        return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
