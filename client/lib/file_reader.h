/*
 * file_reader.h - reads a file, and ahead of who takes it from front to back.
 *
 * A thread reads the file in windows, so that nobody waits for a disk without a deadline.  What the
 * page cache does not have bypasses it, if the file system can, and goes into memory in large
 * pages.  Through the cache the whole file would take new pages, which may cost more than the disk.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { READER_WINDOW = 4 << 20, READER_WINDOWS = 4 };

struct reader_window {
        uint8_t *memory;
        uint64_t at;    /* in the file; UINT64_MAX: the window is empty */
        uint64_t asked; /* the thread has read it when it has read so many */
        uint64_t bytes; /* that are in memory */
        int error;      /* behind them; 0: the file ends there, or the window */
        bool cached;    /* the page cache has it, and memory does not */
        bool again;     /* the page cache does not have it after all */
};

/* The mutex guards `closing` and the queue.  Windows in the queue belong to the thread. */
struct file_reader {
        /* The same file as the caller's, open for reads through the page cache and for direct ones;
         * direct -1: there are none. */
        int plain, direct;
        int arrived;   /* an eventfd: a window was read */
        uint64_t end;  /* of what is read */
        uint64_t last; /* the window that was taken last */
        uint8_t *memory;
        struct reader_window windows[READER_WINDOWS];
        pthread_mutex_t mutex;
        pthread_cond_t changed;
        bool closing;                                /* who sees that second frees the reader */
        struct reader_window *queue[READER_WINDOWS]; /* window i in place i % READER_WINDOWS */
        uint64_t asked, read;                        /* windows, since the file was opened */
};

/* For reads that end before `end`; fd stays the caller's.  -errno. */
int file_reader_open(int fd, uint64_t end, struct file_reader **ret);
/* As pread(), but never waits: EAGAIN, and `arrived` can be read when it is worth another try. */
ssize_t file_reader_read(struct file_reader *r, uint8_t *to, size_t bytes, uint64_t at);
/* Does not wait for the disk either: the thread ends when the disk answers.  NULL is fine. */
void file_reader_close(struct file_reader *r);
