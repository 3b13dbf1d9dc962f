/* A framed unix-socket connection under uv_poll. */
#include "daemon/rpc/conn.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "proto/cleanup.h"

enum { READ_BYTES = 65536 };

/* Bytes that the socket did not take yet. */
struct pending {
        struct list link;
        size_t size, sent;
        int fds[CONN_FDS_MAX];
        size_t n_fds;
        uint8_t data[];
};

struct conn {
        uv_poll_t poll;
        int fd;
        struct frame_reader reader;
        struct conn_events events;
        struct list queue;
        size_t queued;
        bool closing;
        void (*closed)(void *arg);
        void *closed_arg;
};

static void conn_polled(uv_poll_t *poll, int status, int events);

static void conn_watch(struct conn *conn)
{
        uv_poll_start(&conn->poll, UV_READABLE | (list_empty(&conn->queue) ? 0 : UV_WRITABLE),
                      conn_polled);
}

static void conn_end(struct conn *conn, const char *why)
{
        if (conn->closing)
                return;
        uv_poll_stop(&conn->poll);
        conn->events.ended(conn->events.arg, why);
}

/* ---- reading --------------------------------------------------------------- */

/* 0 or the error that ends the connection. */
static int conn_feed(struct conn *conn, const uint8_t *p, size_t n)
{
        while (n) {
                size_t taken, size;
                const uint8_t *payload;
                int r = frame_reader_feed(&conn->reader, p, n, &taken);

                if (r < 0)
                        return r;
                p += taken;
                n -= taken;
                if (r == 0)
                        continue;
                payload = frame_reader_payload(&conn->reader, &size);
                r = conn->events.frame(conn->events.arg, payload, size);
                if (conn->closing)
                        return 0;
                frame_reader_next(&conn->reader);
                if (r)
                        return r;
        }
        return 0;
}

/* Clients have no descriptors to give: what they send is closed. */
static void conn_drop_fds(struct msghdr *message)
{
        for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
                size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

                if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
                        continue;
                for (size_t i = 0; i < n; i++) {
                        int fd;

                        memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
                        close(fd);
                }
        }
}

static void conn_read(struct conn *conn)
{
        uint8_t buffer[READ_BYTES];
        union {
                struct cmsghdr align;
                char space[CMSG_SPACE(CONN_FDS_MAX * sizeof(int))];
        } control;
        struct iovec iov = { buffer, sizeof buffer };
        struct msghdr message = { .msg_iov = &iov,
                                  .msg_iovlen = 1,
                                  .msg_control = control.space,
                                  .msg_controllen = sizeof control.space };
        ssize_t n = recvmsg(conn->fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        int r;

        if (n < 0) {
                if (errno != EAGAIN && errno != EINTR)
                        conn_end(conn, strerror(errno));
                return;
        }
        conn_drop_fds(&message);
        if (n == 0) {
                conn_end(conn, "closed by the client");
                return;
        }
        r = conn_feed(conn, buffer, (size_t)n);
        if (r)
                conn_end(conn, r == -EMSGSIZE ? "frame above the limit" : "protocol violation");
}

/* ---- writing ----------------------------------------------------------------- */

static ssize_t send_some(int fd, const uint8_t *p, size_t n, const int *fds, size_t n_fds)
{
        union {
                struct cmsghdr align;
                char space[CMSG_SPACE(CONN_FDS_MAX * sizeof(int))];
        } control = { 0 };
        struct iovec iov = { (void *)(uintptr_t)p, n };
        struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1 };
        ssize_t sent;

        if (n_fds) {
                struct cmsghdr *c = &control.align;

                message.msg_control = control.space;
                message.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
                c->cmsg_level = SOL_SOCKET;
                c->cmsg_type = SCM_RIGHTS;
                c->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
                memcpy(CMSG_DATA(c), fds, n_fds * sizeof(int));
        }
        sent = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0)
                return errno == EAGAIN || errno == EINTR ? 0 : -errno;
        return sent;
}

static void pending_free(struct conn *conn, struct pending *p)
{
        for (size_t i = 0; i < p->n_fds; i++)
                close(p->fds[i]);
        conn->queued -= p->size;
        list_remove(&p->link);
        free(p);
}

static void conn_write(struct conn *conn)
{
        while (!list_empty(&conn->queue)) {
                struct pending *p = CONTAINER_OF(conn->queue.next, struct pending, link);
                ssize_t n = send_some(conn->fd, p->data + p->sent, p->size - p->sent, p->fds,
                                      p->sent ? 0 : p->n_fds);

                if (n < 0) {
                        conn_end(conn, strerror((int)-n));
                        return;
                }
                if (n == 0)
                        return;
                p->sent += (size_t)n;
                if (p->sent == p->size)
                        pending_free(conn, p);
        }
        conn_watch(conn);
}

static int conn_queue(struct conn *conn, const uint8_t *p, size_t n, const int *fds, size_t n_fds)
{
        struct pending *pending;

        if (conn->queued + n > CONN_QUEUE_MAX)
                return -ENOBUFS;
        pending = calloc(1, sizeof *pending + n);
        if (!pending)
                return -ENOMEM;
        memcpy(pending->data, p, n);
        pending->size = n;
        list_insert(&conn->queue, &pending->link);
        conn->queued += n;
        for (size_t i = 0; i < n_fds; i++) {
                pending->fds[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 0);
                if (pending->fds[i] < 0) {
                        int error = errno;

                        pending_free(conn, pending);
                        return -error;
                }
                pending->n_fds++;
        }
        conn_watch(conn);
        return 0;
}

int conn_send(struct conn *conn, uint8_t *p, size_t n, const int *fds, size_t n_fds)
{
        ssize_t sent = 0;

        if (conn->closing)
                return -ENOTCONN;
        frame_write_header(p, (uint32_t)n);
        n += FRAME_HEADER;
        if (list_empty(&conn->queue))
                sent = send_some(conn->fd, p, n, fds, n_fds);
        if (sent < 0)
                return (int)sent;
        if ((size_t)sent == n)
                return 0;
        return conn_queue(conn, p + sent, n - (size_t)sent, fds, sent ? 0 : n_fds);
}

void conn_shutdown(struct conn *conn)
{
        shutdown(conn->fd, SHUT_RDWR);
}

/* ---- lifetime -------------------------------------------------------------------- */

static void conn_polled(uv_poll_t *poll, int status, int events)
{
        struct conn *conn = CONTAINER_OF(poll, struct conn, poll);

        if (status < 0) {
                conn_end(conn, uv_strerror(status));
                return;
        }
        if (events & UV_WRITABLE)
                conn_write(conn);
        if (!conn->closing && uv_is_active((uv_handle_t *)&conn->poll) && (events & UV_READABLE))
                conn_read(conn);
}

int conn_new(uv_loop_t *loop, int fd, const struct conn_events *events, struct conn **ret)
{
        struct conn *conn = calloc(1, sizeof *conn);
        int r;

        if (!conn)
                return -ENOMEM;
        r = uv_poll_init(loop, &conn->poll, fd);
        if (r) {
                free(conn);
                return r;
        }
        conn->fd = fd;
        conn->events = *events;
        list_init(&conn->queue);
        frame_reader_init(&conn->reader, CONN_FRAME_MAX);
        conn_watch(conn);
        *ret = conn;
        return 0;
}

static void conn_closed(uv_handle_t *handle)
{
        struct conn *conn = CONTAINER_OF((uv_poll_t *)handle, struct conn, poll);
        void (*closed)(void *) = conn->closed;
        void *arg = conn->closed_arg;

        close(conn->fd);
        while (!list_empty(&conn->queue))
                pending_free(conn, CONTAINER_OF(conn->queue.next, struct pending, link));
        frame_reader_deinit(&conn->reader);
        free(conn);
        closed(arg);
}

void conn_close(struct conn *conn, void (*closed)(void *arg), void *arg)
{
        if (conn->closing)
                return;
        conn->closing = true;
        conn->closed = closed;
        conn->closed_arg = arg;
        uv_close((uv_handle_t *)&conn->poll, conn_closed);
}

int conn_credentials(const struct conn *conn, uid_t *ret_uid, pid_t *ret_pid)
{
        struct ucred credentials;
        socklen_t size = sizeof credentials;

        if (getsockopt(conn->fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size))
                return -errno;
        *ret_uid = credentials.uid;
        *ret_pid = credentials.pid;
        return 0;
}
