/* The state of a process: one small file of /proc (proc(5), "stat"). */
#include "daemon/base/process.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "proto/cleanup.h"

/* The name is in parentheses and may hold any byte, so fields are counted from the last ')'. */
static bool stat_read(uint32_t pid, char *ret_state, uint64_t *ret_start)
{
        char path[40], text[1024];
        unsigned long long start;
        const char *fields;
        ssize_t n;

        snprintf(path, sizeof path, "/proc/%u/stat", pid);
        CLEANUP(cleanup_close) int fd = open(path, O_RDONLY | O_CLOEXEC);

        n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
        if (n <= 0)
                return false;
        text[n] = '\0';
        fields = strrchr(text, ')');
        if (!fields || sscanf(fields + 1,
                              " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s "
                              "%*s %*s %llu",
                              ret_state, &start) != 2)
                return false;
        *ret_start = start;
        return true;
}

uint64_t process_start(uint32_t pid)
{
        uint64_t start;
        char state;

        return stat_read(pid, &state, &start) ? start : 0;
}

enum process_life process_life(uint32_t pid, uint64_t start)
{
        uint64_t now_start;
        char state;

        if (start == 0)
                return PROCESS_UNSEEN;
        if (!stat_read(pid, &state, &now_start) || now_start != start || strchr("ZXx", state))
                return PROCESS_ENDED;
        return strchr("Tt", state) ? PROCESS_STOPPED : PROCESS_RUNS;
}
