#include "file_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
#ifdef __x86_64__
#include <emmintrin.h>
#endif

enum { MEMORY = READER_WINDOWS * READER_WINDOW, LARGE_PAGE = 2 << 20, CACHE_LINE = 64 };

/*
 * A virtual machine's disk is a core of the host, which takes twice the time to write to memory
 * that a core of the machine has in its cache.
 */
static void uncache(const uint8_t *memory, size_t bytes)
{
#ifdef __x86_64__
        for (size_t i = 0; i < bytes; i += CACHE_LINE)
                _mm_clflush(memory + i);
#endif
}

/* ---- the thread ------------------------------------------------------------ */

/* Whether the page cache has a random byte of the window, and so most likely all. */
static bool is_cached(const struct file_reader *r, uint64_t at)
{
        uint64_t there = r->end - at < READER_WINDOW ? r->end - at : READER_WINDOW;
        struct timespec now;
        char byte;
        struct iovec one = { &byte, 1 };

        clock_gettime(CLOCK_MONOTONIC, &now);
        return preadv2(r->cached, &one, 1, (off_t)(at + (uint64_t)now.tv_nsec % there),
                       RWF_NOWAIT) == 1;
}

static void window_read(const struct file_reader *r, struct reader_window *w)
{
        w->bytes = 0;
        w->cached = is_cached(r, w->at);
        if (!w->cached)
                w->bytes = pread(r->direct, w->memory, READER_WINDOW, (off_t)w->at);
}

static void *reader_main(void *arg)
{
        struct file_reader *r = arg;

        pthread_mutex_lock(&r->mutex);
        while (!r->closing) {
                if (r->read == r->asked) {
                        pthread_cond_wait(&r->changed, &r->mutex);
                        continue;
                }
                pthread_mutex_unlock(&r->mutex);
                window_read(r, r->queue[r->read % READER_WINDOWS]);
                pthread_mutex_lock(&r->mutex);
                r->read++;
                pthread_cond_signal(&r->changed);
        }
        pthread_mutex_unlock(&r->mutex);
        return NULL;
}

/* Signals are the caller's. */
static int reader_start(struct file_reader *r)
{
        sigset_t all, old;
        int error;

        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &old);
        error = pthread_create(&r->thread, NULL, reader_main, r);
        pthread_sigmask(SIG_SETMASK, &old, NULL);
        return -error;
}

/* ---- the caller ------------------------------------------------------------ */

static void window_await(struct file_reader *r, const struct reader_window *w)
{
        pthread_mutex_lock(&r->mutex);
        while (r->read < w->asked)
                pthread_cond_wait(&r->changed, &r->mutex);
        pthread_mutex_unlock(&r->mutex);
}

static struct reader_window *window_ask(struct file_reader *r, uint64_t at)
{
        struct reader_window *w = &r->windows[at / READER_WINDOW % READER_WINDOWS];

        if (w->at == at)
                return w;
        window_await(r, w);
        w->at = at;
        w->asked = r->asked + 1;
        pthread_mutex_lock(&r->mutex);
        r->queue[r->asked++ % READER_WINDOWS] = w;
        pthread_cond_signal(&r->changed);
        pthread_mutex_unlock(&r->mutex);
        return w;
}

ssize_t file_reader_read(struct file_reader *r, uint8_t *to, size_t bytes, uint64_t at)
{
        uint64_t skip = at % READER_WINDOW, window = at - skip;
        struct reader_window *w;

        if (r->direct < 0 || at >= r->end)
                return pread(r->fd, to, bytes, (off_t)at);
        w = window_ask(r, window);
        if (window - r->last <= READER_WINDOW) /* goes on there, or in the next one */
                for (uint32_t i = 1; i < READER_WINDOWS && window + i * READER_WINDOW < r->end; i++)
                        window_ask(r, window + i * READER_WINDOW);
        r->last = window;
        window_await(r, w);
        if (bytes > READER_WINDOW - skip)
                bytes = READER_WINDOW - skip;
        /* an error is one of direct reads, or comes again; so does the end of the file */
        if (w->cached || w->bytes <= (int64_t)skip)
                return pread(r->cached, to, bytes, (off_t)at);
        if (bytes > (uint64_t)w->bytes - skip)
                bytes = (uint64_t)w->bytes - skip;
        memcpy(to, w->memory + skip, bytes);
        uncache(w->memory + skip, bytes);
        return (ssize_t)bytes;
}

/* 0, or -errno. */
static int direct_open(struct file_reader *r)
{
        char path[40];
        uint8_t *memory;
        int error;

        snprintf(path, sizeof path, "/proc/self/fd/%d", r->fd); /* the caller's flags stay */
        r->direct = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
        r->cached = open(path, O_RDONLY | O_CLOEXEC);
        if (r->direct < 0 || r->cached < 0)
                return -errno;
        /* or the kernel reads ahead, and finds all that follows in the page cache again */
        (void)posix_fadvise(r->cached, 0, 0, POSIX_FADV_RANDOM);
        r->memory = mmap(NULL, MEMORY + LARGE_PAGE, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (r->memory == MAP_FAILED)
                return -errno;
        memory = r->memory + (-(uintptr_t)r->memory & (LARGE_PAGE - 1));
        (void)madvise(memory, MEMORY, MADV_HUGEPAGE);
        for (uint32_t i = 0; i < READER_WINDOWS; i++)
                r->windows[i] = (struct reader_window){ .memory = memory + i * READER_WINDOW,
                                                        .at = UINT64_MAX };
        error = reader_start(r);
        r->running = !error;
        return error;
}

void file_reader_open(struct file_reader *ret, int fd, uint64_t end)
{
        *ret = (struct file_reader){ .fd = fd,
                                     .direct = -1,
                                     .cached = -1,
                                     .end = end,
                                     .last = UINT64_MAX / 2,
                                     .memory = MAP_FAILED };
        pthread_mutex_init(&ret->mutex, NULL);
        pthread_cond_init(&ret->changed, NULL);
        if (end < READER_WINDOW || direct_open(ret)) {
                file_reader_close(ret);
                /* the kernel reads ahead, in large folios */
                (void)posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
        }
}

void file_reader_close(struct file_reader *r)
{
        int error = errno;

        pthread_mutex_lock(&r->mutex);
        r->closing = true;
        pthread_cond_signal(&r->changed);
        pthread_mutex_unlock(&r->mutex);
        if (r->running)
                pthread_join(r->thread, NULL);
        r->running = false;
        if (r->memory != MAP_FAILED)
                munmap(r->memory, MEMORY + LARGE_PAGE);
        if (r->direct >= 0)
                close(r->direct);
        if (r->cached >= 0)
                close(r->cached);
        r->memory = MAP_FAILED;
        r->direct = r->cached = -1;
        errno = error;
}
