/*
 * file_reader.h - reads a file, and ahead of who takes it from front to back.
 *
 * What the page cache does not have goes around it, in windows: while one is taken, the disk writes
 * the next one into memory in large pages, each in one request.  Reading through the page cache
 * takes new pages for the whole file, which may cost more than the disk.
 */
#pragma once

#include <linux/aio_abi.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { READER_WINDOW = 2 << 20, READER_WINDOWS = 4 };

struct reader_window {
        uint8_t *memory;
        uint64_t at;   /* in the file; UINT64_MAX: the window is empty */
        int64_t bytes; /* that were read, or -errno */
        bool in_flight, cached;
        struct iocb request;
};

struct file_reader {
        int fd;     /* the caller's */
        int direct; /* the same file, open for direct reads; -1: all goes through the page cache */
        uint64_t end;  /* of what is read */
        uint64_t last; /* the window that was read last */
        aio_context_t aio;
        uint8_t *memory;
        struct reader_window windows[READER_WINDOWS];
};

/* For reads of a regular file that end before `end`; 0: the file is of another kind. */
void file_reader_open(struct file_reader *ret, int fd, uint64_t end);
/* As pread(). */
ssize_t file_reader_read(struct file_reader *r, uint8_t *to, size_t bytes, uint64_t at);
/* Waits for the disk.  Keeps errno. */
void file_reader_close(struct file_reader *r);
