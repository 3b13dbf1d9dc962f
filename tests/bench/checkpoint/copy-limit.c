/*
 * copy-limit memory|file BYTES THREADS: for each line on standard input, copies so many bytes of
 * memory that is in place already, past the cache, and prints the seconds.  file: from pages as
 * those of a state file; memory: as large as the system gives them, which the copy always has.
 */
#include <err.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "daemon/compute/device/device.h"

enum { THREADS_MAX = 256 };

struct share {
        const struct device_ops *ops;
        char *to;
        const char *from;
        size_t bytes;
        pthread_t thread;
};

static double seconds(void)
{
        struct timespec t;

        clock_gettime(CLOCK_MONOTONIC, &t);
        return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void *copy(void *argument)
{
        struct share *s = argument;

        s->ops->copy(s->to, s->from, s->bytes);
        return NULL;
}

static char *memory(bool file, size_t bytes, int fill)
{
        char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                       MAP_ANONYMOUS | (file ? MAP_SHARED : MAP_PRIVATE), -1, 0);

        if (p == MAP_FAILED)
                err(1, "%zu bytes", bytes);
        if (!file)
                (void)madvise(p, bytes, MADV_HUGEPAGE); /* a hint */
        return memset(p, fill, bytes);
}

static double copy_all(struct share *shares, size_t n)
{
        double begin = seconds();

        for (size_t i = 0; i < n; i++)
                if (pthread_create(&shares[i].thread, NULL, copy, &shares[i]))
                        errx(1, "cannot start a thread");
        for (size_t i = 0; i < n; i++)
                pthread_join(shares[i].thread, NULL);
        return seconds() - begin;
}

int main(int argc, char **argv)
{
        size_t bytes = argc == 4 ? strtoull(argv[2], NULL, 10) : 0;
        size_t n = argc == 4 ? strtoull(argv[3], NULL, 10) : 0;
        bool file = argc == 4 && strcmp(argv[1], "file") == 0;
        struct share shares[THREADS_MAX];
        char *from, *to, line[8];

        if (bytes == 0 || n == 0 || n > THREADS_MAX || (!file && strcmp(argv[1], "memory") != 0))
                errx(2, "usage: copy-limit memory|file BYTES THREADS");
        from = memory(file, bytes, 1);
        to = memory(false, bytes, 2);
        for (size_t i = 0; i < n; i++)
                shares[i] = (struct share){ .ops = device_host(NULL),
                                            .to = to + bytes / n * i,
                                            .from = from + bytes / n * i,
                                            .bytes = bytes / n };
        while (fgets(line, sizeof(line), stdin)) {
                printf("%.6f\n", copy_all(shares, n));
                fflush(stdout);
        }
        return 0;
}
