/*
 * A framed connection on a unix stream socket, with descriptors attached to frames that it sends.
 *
 * libuv cannot pass plain descriptors, so this module polls, reads and writes the socket itself.  A
 * client that sends descriptors loses its connection; see disposal.h.
 *
 * A connection is held, that is, not read, while its user's budget is spent, while CONN_UNREAD
 * bytes of its replies wait to be read, and while a large frame waits for its grant.  Held
 * connections of one server wait in one line.  A connection ends when its user's budget has no room
 * for a reply, and when a large frame or unread replies make no progress for CONN_STALL_MS.
 *
 * Loop thread; only conn_check() runs a callback.
 */
#pragma once

#include <sys/types.h>
#include <uv.h>

#include "daemon/face/rpc/budget.h"
#include "proto/frame.h"
#include "proto/list.h"

enum { CONN_FDS_MAX = 5, CONN_UNREAD = 256 << 10, CONN_STALL_MS = 10000 };
/* What a nanosecond of loop time costs a user: ranks pay less, so that their steps come first. */
enum { PRICE_RANK = 1, PRICE_OTHERS = 4 };

/* What the connections of one server share. */
struct conns {
        uv_timer_t pace; /* runs while connections are held */
        struct list held;
        struct list tried; /* in the line: the end of those that this turn has not tried yet */
};

struct conn;
struct conn_events {
        /* A frame has come; p is valid during the call only.  Any result but 0 ends the connection.
         */
        int (*frame)(void *arg, const uint8_t *p, size_t n);
        /* The connection has ended and must be closed.  why: NULL if the client closed it.  Never
         * called after conn_close(). */
        void (*ended)(void *arg, const char *why);
        void *arg;
};

int conns_init(struct conns *conns, uv_loop_t *loop);
/* All connections must be closed. */
void conns_close(struct conns *conns, uv_close_cb closed);

/* On success the connection owns fd.  uid and budget are the user's; the budget outlives the
 * connection.  frame_limit: see conn_limit(). */
int conn_new(struct conns *conns, int fd, uid_t uid, struct budget *budget, size_t frame_limit,
             const struct conn_events *events, struct conn **ret);
/* The largest payload of the frames that follow; at most FRAMES_MAX. */
void conn_limit(struct conn *conn, size_t frame_limit);
/* PRICE_OTHERS at first. */
void conn_price(struct conn *conn, uint32_t price);
/* Sends one frame of n payload bytes and writes its header to the first FRAME_HEADER bytes of p.
 * Duplicates the descriptors.  -ENOBUFS: the user's budget is full. */
int conn_send(struct conn *conn, uint8_t *p, size_t n, const int *fds, size_t n_fds);
/* Makes the connection end soon, by this error: the loop calls ended(). */
void conn_shutdown(struct conn *conn, int error);
/* The connection ends when all that has come is read. */
void conn_read_out(const struct conn *conn);
/* Whether the connection waits in the line, for its user's budget or a grant. */
bool conn_held(const struct conn *conn);
/* Ends the connection if it makes no progress. */
void conn_check(struct conn *conn, uint64_t now_ms);
/* Stops the connection at once; frees it later and then calls closed(). */
void conn_close(struct conn *conn, void (*closed)(void *arg), void *arg);
/* The credentials that the kernel has for the socket's peer. */
int peer_credentials(int fd, uid_t *ret_uid, pid_t *ret_pid);
