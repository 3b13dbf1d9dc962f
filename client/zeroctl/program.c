/* See program.h. */
#include "program.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/pidfd.h>
#include <sys/wait.h>
#include <unistd.h>

int program_start(char *const arguments[], int in, int out, pid_t *ret)
{
        posix_spawn_file_actions_t files;
        int r = posix_spawn_file_actions_init(&files);

        if (r)
                return -r;
        if (in >= 0)
                r = posix_spawn_file_actions_adddup2(&files, in, STDIN_FILENO);
        if (!r && out >= 0)
                r = posix_spawn_file_actions_adddup2(&files, out, STDOUT_FILENO);
        if (!r)
                r = posix_spawnp(ret, arguments[0], &files, NULL, arguments, environ);
        posix_spawn_file_actions_destroy(&files);
        return -r;
}

int program_end(pid_t pid, double patience_s, int stop_fd)
{
        struct pollfd ends[] = { { .fd = pidfd_open(pid, 0), .events = POLLIN },
                                 { .fd = stop_fd, .events = POLLIN } };
        int ready, status = -1;

        do
                ready = ends[0].fd < 0 ? -1 : poll(ends, 2, (int)(patience_s * 1000));
        while (ready < 0 && errno == EINTR);
        if (ready < 1 || !ends[0].revents)
                kill(pid, SIGKILL);
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
                ;
        if (ends[0].fd >= 0)
                close(ends[0].fd);
        if (ready == 0)
                return PROGRAM_LATE;
        return status == 0 ? 0 : PROGRAM_FAILED;
}
