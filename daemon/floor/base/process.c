/* The state of a process: one small file of /proc (proc(5), "stat"). */
#include "daemon/floor/base/process.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/cleanup.h"

struct stat_line {
        char state;
        long threads;
        unsigned long long start;
};

/* The name is in parentheses and may hold any byte, so fields are counted from the last ')'.
 * -errno. */
static int stat_read(uint32_t pid, struct stat_line *ret)
{
        char path[40], text[1024];
        const char *fields;
        ssize_t n;

        snprintf(path, sizeof path, "/proc/%u/stat", pid);
        CLEANUP(cleanup_close) int fd = open(path, O_RDONLY | O_CLOEXEC);

        n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
        if (n < 0)
                return -errno;
        text[n] = '\0';
        fields = strrchr(text, ')');
        return fields && sscanf(fields + 1,
                                " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s "
                                "%*s %ld %*s %llu",
                                &ret->state, &ret->threads, &ret->start) == 3
                       ? 0
                       : -EIO;
}

/* A /proc of another namespace has other processes under the same numbers. */
static bool proc_is_ours(void)
{
        char text[24] = "";

        return readlink("/proc/self", text, sizeof text - 1) > 0 && atol(text) == getpid();
}

uint64_t process_start(uint32_t pid)
{
        struct stat_line now;

        return proc_is_ours() && stat_read(pid, &now) == 0 ? now.start : 0;
}

/* A process whose first thread alone has ended is a zombie with threads. */
enum process_life process_life(uint32_t pid, uint64_t start)
{
        struct stat_line now;
        int r = start ? stat_read(pid, &now) : -EACCES;

        if (r && r != -ENOENT && r != -ESRCH)
                return PROCESS_UNSEEN;
        if (r || now.start != start || (strchr("ZXx", now.state) && now.threads <= 1))
                return PROCESS_ENDED;
        return strchr("Tt", now.state) ? PROCESS_STOPPED : PROCESS_RUNS;
}
