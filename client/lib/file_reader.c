#include "file_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { MEMORY = READER_WINDOWS * READER_WINDOW, LARGE_PAGE = 2 << 20 };

/* Whether the page cache has a random byte of the window, and so most likely all. */
static bool is_cached(const struct file_reader *r, uint64_t at)
{
        uint64_t there = r->end - at < READER_WINDOW ? r->end - at : READER_WINDOW;
        struct timespec now;
        char byte;
        struct iovec one = { &byte, 1 };

        clock_gettime(CLOCK_MONOTONIC, &now);
        return preadv2(r->fd, &one, 1, (off_t)(at + (uint64_t)now.tv_nsec % there), RWF_NOWAIT) ==
               1;
}

static void window_await(struct file_reader *r, struct reader_window *w)
{
        struct io_event done = { .data = (uint64_t)(w - r->windows) };

        while (w->in_flight) {
                if (syscall(SYS_io_getevents, r->aio, 1L, 1L, &done, NULL) < 1) {
                        if (errno == EINTR)
                                continue;
                        done.res = -errno;
                }
                r->windows[done.data].in_flight = false;
                r->windows[done.data].bytes = done.res;
        }
}

static struct reader_window *window_start(struct file_reader *r, uint64_t at)
{
        uint64_t index = at / READER_WINDOW % READER_WINDOWS;
        struct reader_window *w = &r->windows[index];
        struct iocb *requests[] = { &w->request };

        if (w->at == at)
                return w;
        window_await(r, w);
        w->at = at;
        w->cached = is_cached(r, at);
        if (w->cached)
                return w;
        w->request = (struct iocb){ .aio_data = index,
                                    .aio_lio_opcode = IOCB_CMD_PREAD,
                                    .aio_fildes = (uint32_t)r->direct,
                                    .aio_buf = (uintptr_t)w->memory,
                                    .aio_nbytes = READER_WINDOW,
                                    .aio_offset = (int64_t)at };
        w->in_flight = syscall(SYS_io_submit, r->aio, 1L, requests) == 1;
        w->bytes = w->in_flight ? 0 : -errno;
        return w;
}

ssize_t file_reader_read(struct file_reader *r, uint8_t *to, size_t bytes, uint64_t at)
{
        uint64_t skip = at % READER_WINDOW, window = at - skip;
        struct reader_window *w;

        if (r->direct < 0 || at >= r->end)
                return pread(r->fd, to, bytes, (off_t)at);
        w = window_start(r, window);
        if (window - r->last <= READER_WINDOW) /* goes on there, or in the next one */
                for (uint32_t i = 1; i < READER_WINDOWS && window + i * READER_WINDOW < r->end; i++)
                        window_start(r, window + i * READER_WINDOW);
        r->last = window;
        window_await(r, w);
        if (bytes > READER_WINDOW - skip)
                bytes = READER_WINDOW - skip;
        /* an error is one of direct reads, or comes again; so does the end of the file */
        if (w->cached || w->bytes <= (int64_t)skip)
                return pread(r->fd, to, bytes, (off_t)at);
        if (bytes > (uint64_t)w->bytes - skip)
                bytes = (uint64_t)w->bytes - skip;
        memcpy(to, w->memory + skip, bytes);
        return (ssize_t)bytes;
}

/* 0, or -errno. */
static int direct_open(struct file_reader *r)
{
        char path[40];
        uint8_t *memory;

        snprintf(path, sizeof path, "/proc/self/fd/%d", r->fd);
        r->direct = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC); /* the caller's flags stay */
        if (r->direct < 0 || syscall(SYS_io_setup, READER_WINDOWS, &r->aio))
                return -errno;
        r->memory = mmap(NULL, MEMORY + LARGE_PAGE, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (r->memory == MAP_FAILED)
                return -errno;
        memory = r->memory + (-(uintptr_t)r->memory & (LARGE_PAGE - 1));
        (void)madvise(memory, MEMORY, MADV_HUGEPAGE);
        for (uint32_t i = 0; i < READER_WINDOWS; i++)
                r->windows[i] = (struct reader_window){ .memory = memory + i * READER_WINDOW,
                                                        .at = UINT64_MAX };
        return 0;
}

void file_reader_open(struct file_reader *ret, int fd, uint64_t end)
{
        *ret = (struct file_reader){
                .fd = fd, .direct = -1, .end = end, .last = UINT64_MAX / 2, .memory = MAP_FAILED
        };
        if (end < READER_WINDOW || direct_open(ret)) {
                file_reader_close(ret);
                /* the kernel reads ahead, in large folios */
                (void)posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
        }
}

void file_reader_close(struct file_reader *r)
{
        int error = errno;

        if (r->aio)
                syscall(SYS_io_destroy, r->aio); /* waits */
        if (r->memory != MAP_FAILED)
                munmap(r->memory, MEMORY + LARGE_PAGE);
        if (r->direct >= 0)
                close(r->direct);
        r->aio = 0;
        r->memory = MAP_FAILED;
        r->direct = -1;
        errno = error;
}
