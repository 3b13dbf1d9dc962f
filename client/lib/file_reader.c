#include "file_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
#ifdef __x86_64__
#include <emmintrin.h>
#endif

enum { MEMORY = READER_WINDOWS * READER_WINDOW, LARGE_PAGE = 2 << 20, CACHE_LINE = 64 };

/*
 * A core of the host writes what a virtual machine reads from its disk.  That takes twice the time
 * if a core of the machine has the memory in its cache.
 */
static void uncache(const uint8_t *memory, size_t bytes)
{
#ifdef __x86_64__
        for (size_t i = 0; i < bytes; i += CACHE_LINE)
                _mm_clflush(memory + i);
#endif
}

static void reader_free(struct file_reader *r)
{
        if (r->memory != MAP_FAILED)
                munmap(r->memory, MEMORY + LARGE_PAGE);
        if (r->plain >= 0)
                close(r->plain);
        if (r->direct >= 0)
                close(r->direct);
        if (r->arrived >= 0)
                close(r->arrived);
        free(r);
}

static ssize_t read_cached(const struct file_reader *r, void *to, size_t bytes, uint64_t at)
{
        struct iovec one = { to, bytes };

        return preadv2(r->plain, &one, 1, (off_t)at, RWF_NOWAIT);
}

/* ---- the thread ------------------------------------------------------------ */

/* Whether the page cache has a random byte of the window, and so most likely all. */
static bool is_cached(const struct file_reader *r, uint64_t at, uint64_t bytes)
{
        struct timespec now;
        char byte;

        clock_gettime(CLOCK_MONOTONIC, &now);
        return read_cached(r, &byte, 1, at + (uint64_t)now.tv_nsec % bytes) == 1;
}

/* Through the page cache, until the window is full, the file ends or the disk fails. */
static void window_complete(const struct file_reader *r, struct reader_window *w, uint64_t wanted)
{
        ssize_t n = 1;

        while (w->bytes < wanted && n > 0) {
                n = pread(r->plain, w->memory + w->bytes, wanted - w->bytes,
                          (off_t)(w->at + w->bytes));
                w->bytes += n > 0 ? (uint64_t)n : 0;
        }
        w->error = n < 0 ? errno : 0;
}

static void window_read(const struct file_reader *r, struct reader_window *w)
{
        uint64_t left = r->end - w->at, bytes = left < READER_WINDOW ? left : READER_WINDOW;
        ssize_t n = 0;

        w->cached = !w->again && is_cached(r, w->at, bytes);
        if (w->cached)
                return;
        if (r->direct >= 0)
                n = pread(r->direct, w->memory, READER_WINDOW, (off_t)w->at);
        w->bytes = n > 0 ? (uint64_t)n : 0;
        /* an error of direct reads, or one that comes again, as the end does */
        window_complete(r, w, bytes);
}

/* The last one frees the reader.  The caller holds the mutex. */
static void reader_leave(struct file_reader *r)
{
        bool last = r->closing;

        r->closing = true;
        pthread_cond_signal(&r->changed);
        pthread_mutex_unlock(&r->mutex);
        if (last)
                reader_free(r);
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
                eventfd_write(r->arrived, 1);
        }
        reader_leave(r);
        return NULL;
}

/* Signals are the caller's. */
static int reader_start(struct file_reader *r)
{
        pthread_attr_t detached;
        pthread_t thread;
        sigset_t all, old;
        int error;

        pthread_attr_init(&detached);
        pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &old);
        error = pthread_create(&thread, &detached, reader_main, r);
        pthread_sigmask(SIG_SETMASK, &old, NULL);
        pthread_attr_destroy(&detached);
        return -error;
}

/* ---- the caller ------------------------------------------------------------ */

static bool has_arrived(struct file_reader *r, const struct reader_window *w)
{
        bool there;

        pthread_mutex_lock(&r->mutex);
        there = r->read >= w->asked;
        pthread_mutex_unlock(&r->mutex);
        return there;
}

static void window_queue(struct file_reader *r, struct reader_window *w)
{
        pthread_mutex_lock(&r->mutex);
        r->queue[r->asked++ % READER_WINDOWS] = w;
        w->asked = r->asked;
        pthread_cond_signal(&r->changed);
        pthread_mutex_unlock(&r->mutex);
}

/* Whether the window is there now; else the thread reads it, as soon as it has read what lies in
 * its memory. */
static bool window_ask(struct file_reader *r, uint64_t at)
{
        struct reader_window *w = &r->windows[at / READER_WINDOW % READER_WINDOWS];

        if (!has_arrived(r, w))
                return false;
        if (w->at == at)
                return true;
        w->at = at;
        w->again = false;
        window_queue(r, w);
        return false;
}

static ssize_t fail(int error)
{
        errno = error;
        return -1;
}

static ssize_t window_take(struct file_reader *r, struct reader_window *w, uint8_t *to,
                           size_t bytes, uint64_t skip)
{
        ssize_t n;

        if (bytes > READER_WINDOW - skip)
                bytes = READER_WINDOW - skip;
        if (w->cached) {
                n = read_cached(r, to, bytes, w->at + skip);
                if (n >= 0)
                        return n;
                w->again = true;
                window_queue(r, w);
                return fail(EAGAIN);
        }
        if (w->bytes <= skip)
                return w->error ? fail(w->error) : 0;
        if (bytes > w->bytes - skip)
                bytes = w->bytes - skip;
        memcpy(to, w->memory + skip, bytes);
        if (r->direct >= 0)
                uncache(w->memory + skip, bytes);
        return (ssize_t)bytes;
}

ssize_t file_reader_read(struct file_reader *r, uint8_t *to, size_t bytes, uint64_t at)
{
        uint64_t skip = at % READER_WINDOW, window = at - skip;
        eventfd_t arrived;
        bool there;

        if (at >= r->end)
                return 0;
        (void)eventfd_read(r->arrived, &arrived); /* before the looks: what comes then is told */
        there = window_ask(r, window);
        if (window - r->last <= READER_WINDOW) /* goes on there, or in the next one */
                for (uint32_t i = 1; i < READER_WINDOWS && window + i * READER_WINDOW < r->end; i++)
                        window_ask(r, window + i * READER_WINDOW);
        if (!there)
                return fail(EAGAIN);
        r->last = window;
        return window_take(r, &r->windows[window / READER_WINDOW % READER_WINDOWS], to, bytes,
                           skip);
}

/* The thread may outlive the caller's descriptor, whose flags stay.  Who has read a header by that
 * descriptor has made the kernel read ahead there, into the page cache, and on and on. */
static int open_again(struct file_reader *r, int fd)
{
        char path[40];

        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        r->direct = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC | O_NONBLOCK);
        r->plain = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (r->plain < 0) { /* no /proc, say */
                r->plain = fcntl(fd, F_DUPFD_CLOEXEC, 0);
                return r->plain < 0 ? -errno : 0;
        }
        if (r->direct < 0)
                (void)posix_fadvise(r->plain, 0, 0, POSIX_FADV_SEQUENTIAL);
        return 0;
}

static int memory_open(struct file_reader *r)
{
        uint8_t *memory;

        r->memory = mmap(NULL, MEMORY + LARGE_PAGE, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        r->arrived = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (r->memory == MAP_FAILED || r->arrived < 0)
                return -errno;
        memory = r->memory + (-(uintptr_t)r->memory & (LARGE_PAGE - 1));
        (void)madvise(memory, MEMORY, MADV_HUGEPAGE);
        for (uint32_t i = 0; i < READER_WINDOWS; i++)
                r->windows[i] = (struct reader_window){ .memory = memory + i * READER_WINDOW,
                                                        .at = UINT64_MAX };
        return 0;
}

int file_reader_open(int fd, uint64_t end, struct file_reader **ret)
{
        struct file_reader *r = malloc(sizeof *r);
        int error;

        if (!r)
                return -ENOMEM;
        *r = (struct file_reader){ .plain = -1,
                                   .direct = -1,
                                   .arrived = -1,
                                   .end = end,
                                   .last = UINT64_MAX / 2,
                                   .memory = MAP_FAILED };
        pthread_mutex_init(&r->mutex, NULL);
        pthread_cond_init(&r->changed, NULL);
        error = open_again(r, fd);
        if (!error)
                error = memory_open(r);
        if (!error)
                error = reader_start(r);
        if (error)
                reader_free(r);
        else
                *ret = r;
        return error;
}

void file_reader_close(struct file_reader *r)
{
        if (!r)
                return;
        pthread_mutex_lock(&r->mutex);
        reader_leave(r);
}
