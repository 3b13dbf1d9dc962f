/*
 * A framed connection on a unix stream socket, with descriptors attached to frames that it sends.
 *
 * libuv does not pass plain descriptors, so the socket is polled and read and written here.
 * Descriptors that a client sends end its connection; see disposal.h.
 *
 * A connection is held, that is, not read, while the budget of its user is spent, while
 * CONN_UNREAD bytes of its replies wait to be read, and while a large frame waits for its grant.
 * Held connections of one server wait in one line.  Replies that find no room in the user's
 * budget, and a large frame or unread replies that make no progress for CONN_STALL_MS, end the
 * connection.  Loop thread; no call but conn_check() runs a callback.
 */
#pragma once

#include <sys/types.h>
#include <uv.h>

#include "daemon/rpc/budget.h"
#include "proto/frame.h"
#include "proto/list.h"

enum { CONN_FDS_MAX = 4, CONN_UNREAD = 256 << 10, CONN_STALL_MS = 10000 };
/* What a user is charged for a nanosecond of the loop's time: a rank's steps go first. */
enum { PRICE_RANK = 1, PRICE_OTHERS = 4 };

/* What the connections of one server share. */
struct conns {
        uv_timer_t pace; /* runs while connections are held */
        struct list held;
        struct list tried; /* the end of those in the line that have not been tried in this turn */
};

struct conn;
struct conn_events {
        /* A frame has come; p is valid during the call only.  Not 0: cut the connection. */
        int (*frame)(void *arg, const uint8_t *p, size_t n);
        /* The connection has ended (never called after conn_close()); close it. */
        void (*ended)(void *arg, const char *why);
        void *arg;
};

int conns_init(struct conns *conns, uv_loop_t *loop);
/* Once all connections are closed. */
void conns_close(struct conns *conns, uv_close_cb closed);

/* Takes fd over on success.  uid and budget are the user's; the budget outlives the connection.
 * frame_limit: see conn_limit(). */
int conn_new(struct conns *conns, int fd, uid_t uid, struct budget *budget, size_t frame_limit,
             const struct conn_events *events, struct conn **ret);
/* The payload of the frames behind the one that is being handled; at most FRAMES_MAX. */
void conn_limit(struct conn *conn, size_t frame_limit);
/* PRICE_OTHERS at first. */
void conn_price(struct conn *conn, uint32_t price);
/* Sends one frame of n payload bytes; p begins with FRAME_HEADER bytes of room for the header,
 * which are filled in.  Descriptors are duplicated.  -ENOBUFS: the user's budget is full. */
int conn_send(struct conn *conn, uint8_t *p, size_t n, const int *fds, size_t n_fds);
/* Lets the connection end soon by itself: ended() comes from the loop. */
void conn_shutdown(struct conn *conn);
/* Ends the connection if it makes no progress. */
void conn_check(struct conn *conn, uint64_t now_ms);
/* Stops at once; freed later, then closed() is called. */
void conn_close(struct conn *conn, void (*closed)(void *arg), void *arg);
/* The credentials of the peer of a socket, as the kernel has them. */
int peer_credentials(int fd, uid_t *ret_uid, pid_t *ret_pid);
