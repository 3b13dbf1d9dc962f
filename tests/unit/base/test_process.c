/* What /proc says of a child: it runs, is stopped, has ended, or is another process of that number.
 */
#include <criterion/criterion.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/floor/base/process.h"

static pid_t child_new(void)
{
        pid_t pid = fork();

        if (pid == 0) {
                poll(NULL, 0, -1);
                _exit(0);
        }
        cr_assert_gt(pid, 0);
        return pid;
}

/* As ps has it. */
static char process_state(pid_t pid)
{
        char path[40], state = 0;
        FILE *f;

        snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
        f = fopen(path, "r");
        cr_assert(f && fscanf(f, "%*d %*s %c", &state) == 1);
        fclose(f);
        return state;
}

Test(process, runs_is_stopped_and_ends)
{
        pid_t pid = child_new();
        uint64_t start = process_start((uint32_t)pid);
        siginfo_t info;

        cr_assert_gt(start, 0);
        cr_assert_eq(process_life((uint32_t)pid, start), PROCESS_RUNS);
        kill(pid, SIGSTOP);
        waitid(P_PID, (id_t)pid, &info, WSTOPPED);
        cr_assert_eq(process_life((uint32_t)pid, start), PROCESS_STOPPED);
        kill(pid, SIGCONT);
        waitid(P_PID, (id_t)pid, &info, WCONTINUED);
        cr_assert_eq(process_life((uint32_t)pid, start), PROCESS_RUNS);
        kill(pid, SIGKILL);
        waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT);
        cr_assert_eq(process_life((uint32_t)pid, start), PROCESS_ENDED, "nobody has buried it");
        waitid(P_PID, (id_t)pid, &info, WEXITED);
        cr_assert_eq(process_life((uint32_t)pid, start), PROCESS_ENDED);
}

static void *outlive(void *arg)
{
        poll(NULL, 0, -1);
        return NULL;
}

Test(process, runs_while_any_of_its_threads_does)
{
        enum process_life life;
        pid_t pid = fork();
        uint64_t start;

        if (pid == 0) {
                pthread_t thread;

                pthread_create(&thread, NULL, outlive, NULL);
                pthread_exit(NULL);
        }
        cr_assert_gt(pid, 0);
        start = process_start((uint32_t)pid);
        while (process_state(pid) != 'Z')
                poll(NULL, 0, 1);
        life = process_life((uint32_t)pid, start);
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        cr_assert_eq(life, PROCESS_RUNS);
}

Test(process, another_one_of_the_same_number_is_not_it)
{
        uint32_t self = (uint32_t)getpid();

        cr_assert_eq(process_life(self, process_start(self)), PROCESS_RUNS);
        cr_assert_eq(process_life(self, process_start(self) + 1), PROCESS_ENDED);
}

Test(process, one_that_cannot_be_seen_is_told_as_such)
{
        cr_assert_eq(process_start(0), 0);
        cr_assert_eq(process_life(0, process_start(0)), PROCESS_UNSEEN);
}
