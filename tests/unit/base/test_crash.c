/* A crash point ends the process when it is passed for the N-th time, and at no other moment. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/floor/base/crash.h"

/* How often a process armed with `text` passes the point before it is killed; -1: not killed in
 * `most` passages. */
static int passes(const char *text, enum crash_point point, int most)
{
        struct fault fault;
        int out[2], n = 0, status;
        char mark;

        cr_assert_eq(pipe(out), 0);
        pid_t pid = fork();
        if (pid == 0) {
                if (crash_arm(text, &fault))
                        _exit(1);
                for (int i = 0; i < most; i++) {
                        crash_pass(point);
                        if (write(out[1], "+", 1) != 1)
                                _exit(1);
                }
                _exit(0);
        }
        close(out[1]);
        while (read(out[0], &mark, 1) == 1)
                n++;
        close(out[0]);
        cr_assert_eq(waitpid(pid, &status, 0), pid);
        if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
                return n;
        cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        return -1;
}

Test(crash, kills_at_the_nth_passage)
{
        cr_assert_eq(passes("update.chunk", CRASH_UPDATE_CHUNK, 5), 0);
        cr_assert_eq(passes("update.chunk:1", CRASH_UPDATE_CHUNK, 5), 0);
        cr_assert_eq(passes("update.chunk:4", CRASH_UPDATE_CHUNK, 5), 3);
}

Test(crash, spares_those_that_do_not_come_so_far)
{
        cr_assert_eq(passes("update.chunk:6", CRASH_UPDATE_CHUNK, 5), -1);
        cr_assert_eq(passes("update.chunk", CRASH_UPDATE_VALID, 5), -1);
}

Test(crash, refuses_what_is_no_point)
{
        static const char *const texts[] = { "",
                                             "update",
                                             "update.chunks",
                                             "update.chunk:",
                                             "update.chunk:0",
                                             "update.chunk:-1",
                                             "update.chunk:2x",
                                             "update.chunk:99999999999" };
        struct fault fault;

        for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
                cr_assert_eq(crash_arm(texts[i], &fault), ZERO_EINVAL, "'%s' was taken", texts[i]);
                cr_assert_str_not_empty(fault.text);
        }
}

Test(crash, takes_the_variable_out_of_the_environment)
{
        bool done = true;
        struct fault fault;

        if (!CRASH_POINTS)
                cr_skip_test("built without crash points");
        setenv("ZEROD_CRASH", "update.chunk:7", 1);
        cr_assert_eq(crash_setup(&done, &fault), 0);
        cr_assert_not(done);
        cr_assert_null(getenv("ZEROD_CRASH"));
}
