/*
 * Frames and descriptors over one unix stream socket; the contents of frames are the owner's
 * business.  Only wire_wait(), wire_wait_for(), wire_sleep() and wire_nap() block.
 *
 * Descriptors are kept only while the owner expects some, and else closed at
 * once, so that a peer cannot fill the process's descriptor table.
 */
#pragma once

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/frame.h"

enum { WIRE_FDS = 5, WIRE_READ = 16384, WIRE_FRAME_MAX = 64 << 20 };

struct wire {
        int fd; /* owned; -1: none */
        struct frame_reader reader;
        bool whole; /* the reader holds a frame that wire_next() returned */
        uint8_t in[WIRE_READ];
        size_t in_begin, in_end;
        uint8_t *out;
        size_t out_begin, out_end, out_capacity;
        bool expect_fds;
        unsigned n_fds; /* received while expected; the first WIRE_FDS are kept */
        int fds[WIRE_FDS];
};

void wire_init(struct wire *w, int fd);
void wire_deinit(struct wire *w);

/* From now on keeps descriptors, or not; closes those that nobody took. */
void wire_expect_fds(struct wire *w, bool expect);
/* Gives the i-th descriptor received to the caller; -1 if there is none. */
int wire_take_fd(struct wire *w, unsigned i);

/* Queues a message.  -EMSGSIZE: above WIRE_FRAME_MAX, -ENOMEM. */
int wire_queue(struct wire *w, const ProtobufCMessage *message);
/* Sends as much as the socket takes.  0: all, 1: some is left, -errno. */
int wire_flush(struct wire *w);
/* Reads once, after wire_next() returned 0.  0, 1: nothing to read, -EPIPE: end of file, -errno. */
int wire_read(struct wire *w);
/* 1: *ret_payload is the next whole frame, valid until the next call; 0: read more first;
 * -errno (frame_reader_feed()). */
int wire_next(struct wire *w, const uint8_t **ret_payload, size_t *ret_size);
/* Waits until the socket can be read, or written if something is left to send.  deadline_ms is
 * on wire_now()'s clock.  0, -ETIMEDOUT, -ECANCELED: interrupt_fd can be read, -errno. */
int wire_wait(struct wire *w, int interrupt_fd, int64_t deadline_ms);
/* The same for another descriptor that is to be read. */
int wire_wait_for(int fd, int interrupt_fd, int64_t deadline_ms);
/* Sleeps until then.  0, -ECANCELED: interrupt_fd can be read. */
int wire_sleep(int interrupt_fd, int64_t until_ms);
/* Sleeps for at most so many microseconds.  As wire_sleep(). */
int wire_nap(int interrupt_fd, int64_t us);
/* Milliseconds of the monotonic clock. */
int64_t wire_now(void);
