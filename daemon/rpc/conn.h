/*
 * A framed connection on a unix stream socket, with descriptors attached to frames.
 *
 * libuv does not pass plain descriptors, so the socket is polled and read and written here.
 * What cannot be sent at once is queued, up to CONN_QUEUE_MAX; a peer that lets more
 * pile up is cut.  Loop thread; no call runs a callback.
 */
#pragma once

#include <sys/types.h>
#include <uv.h>

#include "proto/frame.h"
#include "proto/list.h"

enum { CONN_FRAME_MAX = 64 << 20, CONN_QUEUE_MAX = 64 << 20, CONN_FDS_MAX = 4 };

struct conn;
struct conn_events {
        /* A frame has come; p is valid during the call only.  Not 0: cut the connection. */
        int (*frame)(void *arg, const uint8_t *p, size_t n);
        /* The connection has ended (never called after conn_close()); close it. */
        void (*ended)(void *arg, const char *why);
        void *arg;
};

/* Takes fd over on success. */
int conn_new(uv_loop_t *loop, int fd, const struct conn_events *events, struct conn **ret);
/* Sends one frame of n payload bytes; p begins with FRAME_HEADER bytes of room for the header,
 * which are filled in.  Descriptors are duplicated.  -ENOBUFS: the queue is full. */
int conn_send(struct conn *conn, uint8_t *p, size_t n, const int *fds, size_t n_fds);
/* Lets the connection end soon by itself: ended() comes from the loop. */
void conn_shutdown(struct conn *conn);
/* Stops at once; freed later, then closed() is called. */
void conn_close(struct conn *conn, void (*closed)(void *arg), void *arg);
/* Peer credentials as the kernel has them. */
int conn_credentials(const struct conn *conn, uid_t *ret_uid, pid_t *ret_pid);
