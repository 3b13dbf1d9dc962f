#include "trace.h"

#include <assert.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

void trace_die_in(long ns)
{
        struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGKILL };
        struct itimerspec when = { .it_value.tv_nsec = ns };
        timer_t timer;

        if (timer_create(CLOCK_MONOTONIC, &event, &timer) || timer_settime(timer, 0, &when, NULL))
                abort();
}

long trace_limit(long ns, uint64_t attempts, int wanted)
{
        const long longest_ns = 500000000;

        return attempts < (uint64_t)wanted && ns < longest_ns ? 2 * ns : ns;
}

void trace_me(void)
{
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL))
                _exit(77);
        raise(SIGSTOP);
}

static int wait_for(pid_t pid)
{
        int status;

        if (waitpid(pid, &status, 0) != pid)
                abort();
        return status;
}

bool trace_begun(pid_t pid)
{
        return WIFSTOPPED(wait_for(pid));
}

bool trace_call(pid_t pid)
{
        if (ptrace(PTRACE_SYSCALL, pid, NULL, NULL))
                abort();
        int status = wait_for(pid);
        assert(WIFSTOPPED(status) || (WIFEXITED(status) && WEXITSTATUS(status) == 0));
        return WIFSTOPPED(status);
}

void trace_kill(pid_t pid)
{
        if (kill(pid, SIGKILL) || !WIFSIGNALED(wait_for(pid)))
                abort();
}
