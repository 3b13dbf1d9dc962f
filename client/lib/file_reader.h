/*
 * file_reader.h - reads a file, and ahead of who takes it from front to back.
 *
 * What the page cache does not have goes around it, in windows: while one is taken, a thread reads
 * the next one into memory in large pages, in one request.  Reading through the page cache takes
 * new pages for the whole file, which may cost more than the disk.
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
        int64_t bytes;  /* that were read; -1: an error */
        bool cached;
};

/* The mutex guards `closing` and the queue.  Windows in the queue belong to the thread. */
struct file_reader {
        int fd; /* the caller's */
        /* The same file, open for direct reads and for bytes of the page cache; direct -1: all goes
         * through the caller's descriptor. */
        int direct, cached;
        uint64_t end;  /* of what is read */
        uint64_t last; /* the window that was read last */
        uint8_t *memory;
        struct reader_window windows[READER_WINDOWS];
        pthread_t thread;
        bool running, closing;
        pthread_mutex_t mutex;
        pthread_cond_t changed;
        struct reader_window *queue[READER_WINDOWS]; /* window i in place i % READER_WINDOWS */
        uint64_t asked, read;                        /* windows, since the file was opened */
};

/* For reads of a regular file that end before `end`; 0: the file is of another kind. */
void file_reader_open(struct file_reader *ret, int fd, uint64_t end);
/* As pread(). */
ssize_t file_reader_read(struct file_reader *r, uint8_t *to, size_t bytes, uint64_t at);
/* Waits for a read that has begun.  Keeps errno. */
void file_reader_close(struct file_reader *r);
