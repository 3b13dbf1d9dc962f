/*
 * A disk that does not answer, for LD_PRELOAD: calls on files below the directory SLOW_DISK wait
 * while the file SLOW_DISK_GATE exists.  A call that waits first makes SLOW_DISK_GATE.NUMBER, whose
 * number is the thread's, so that a test knows of it.  So do look-ups of the host SLOW_NAME.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#pragma GCC visibility push(default) /* the build hides what is not said to be seen */

int fsync(int fd);
int fdatasync(int fd);
int ftruncate(int fd, off_t bytes);
ssize_t pread(int fd, void *data, size_t bytes, off_t at);

static int is_slow(int fd)
{
        const char *directory = getenv("SLOW_DISK");
        char link[64], path[PATH_MAX];
        ssize_t n;

        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        n = directory ? readlink(link, path, sizeof path - 1) : -1;
        if (n < 0)
                return 0;
        path[n] = 0;
        return strncmp(path, directory, strlen(directory)) == 0;
}

static void wait_while_closed(void)
{
        const char *gate = getenv("SLOW_DISK_GATE");
        struct timespec pause = { .tv_nsec = 10000000 };
        char mark[PATH_MAX];

        if (!gate || access(gate, F_OK))
                return;
        snprintf(mark, sizeof mark, "%s.%ld", gate, (long)syscall(SYS_gettid));
        close(open(mark, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
        while (access(gate, F_OK) == 0)
                nanosleep(&pause, NULL);
        unlink(mark);
}

static void wait_for(int fd)
{
        if (is_slow(fd))
                wait_while_closed();
}

int getaddrinfo(const char *host, const char *port, const struct addrinfo *hints,
                struct addrinfo **ret)
{
        int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
        const char *slow = getenv("SLOW_NAME");

        if (slow && host && strcmp(host, slow) == 0)
                wait_while_closed();
        *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
        return real(host, port, hints, ret);
}

int fsync(int fd)
{
        wait_for(fd);
        return (int)syscall(SYS_fsync, fd);
}

int fdatasync(int fd)
{
        wait_for(fd);
        return (int)syscall(SYS_fdatasync, fd);
}

int ftruncate(int fd, off_t bytes)
{
        wait_for(fd);
        return (int)syscall(SYS_ftruncate, fd, bytes);
}

ssize_t pread(int fd, void *data, size_t bytes, off_t at)
{
        wait_for(fd);
        return (ssize_t)syscall(SYS_pread64, fd, data, bytes, at);
}
