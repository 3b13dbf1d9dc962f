/* A framed unix-socket connection under uv_poll. */
#include "daemon/face/rpc/conn.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "daemon/face/rpc/disposal.h"
#include "proto/cleanup.h"

enum { READ_BYTES = 65536 };

/* Bytes that the socket has not taken yet. */
struct pending {
        struct list link;
        size_t size, sent;
        int fds[CONN_FDS_MAX];
        size_t n_fds;
        uint8_t data[];
};

struct conn {
        uv_poll_t poll;
        struct conns *conns;
        struct list link; /* conns.held */
        bool owes;        /* held for its user's debt; the user's other connections wait behind */
        struct budget *budget; /* the user's */
        int fd;
        uid_t uid;
        int watched; /* events of the socket */
        bool fds_may_come;
        struct frame_reader reader;
        size_t granted; /* to the large frame that is being read */
        uint8_t *left;  /* bytes that were read before the connection was held */
        size_t left_at, left_end;
        uint64_t progress_ms; /* when bytes last went through the socket */
        uint64_t begun_ns;    /* of work that is not charged yet */
        uint32_t price;
        struct conn_events events;
        struct list queue;
        size_t queued;
        int shut; /* the error by which it ends soon */
        bool ended, closing;
        void (*closed)(void *arg);
        void *closed_arg;
};

static void conn_polled(uv_poll_t *poll, int status, int events);

static uint64_t conn_now(const struct conn *conn)
{
        return uv_now(conn->poll.loop);
}

bool conn_held(const struct conn *conn)
{
        return !list_empty(&conn->link);
}

/* Skips uv_poll_start() if nothing changes: it enters the kernel, and connections are held again
 * every millisecond. */
static void conn_watch(struct conn *conn)
{
        int events =
                (conn_held(conn) ? 0 : UV_READABLE) | (list_empty(&conn->queue) ? 0 : UV_WRITABLE);

        if (conn->ended || conn->closing || events == conn->watched)
                return;
        conn->watched = events;
        uv_poll_start(&conn->poll, events, conn_polled);
}

static void conn_let_go(struct conn *conn)
{
        list_remove(&conn->link);
        conn->budget->n_owing -= conn->owes;
        conn->owes = false;
}

/* NULL: the client closed it, or has died. */
static const char *conn_why(int error)
{
        switch (error) {
        case 0:
        case -ECONNRESET:
        case -EPIPE:
                return NULL;
        case -EACCES:
                return "its first request was refused";
        case -EDQUOT:
                return "it has as many requests in progress as a session may have";
        case -EMSGSIZE:
                return "a frame is larger than the limit";
        case -ENOBUFS:
                return "its user reads too few replies";
        case -EPERM:
                return "the client sent descriptors";
        case -EPROTO:
                return "protocol violation";
        default:
                return strerror(-error);
        }
}

static void conn_end(struct conn *conn, const char *why)
{
        if (conn->closing || conn->ended)
                return;
        if (conn->shut)
                why = conn_why(conn->shut);
        conn->ended = true;
        uv_poll_stop(&conn->poll);
        conn_let_go(conn);
        conn->events.ended(conn->events.arg, why);
}

/* ---- holding --------------------------------------------------------------- */

static void conns_paced(uv_timer_t *timer);

static bool conn_owes(struct conn *conn)
{
        return !budget_may_work(conn->budget, conn_now(conn)) ||
               (conn->price != PRICE_RANK && !budget_may_read(conn->budget));
}

static void conn_hold(struct conn *conn)
{
        struct conns *conns = conn->conns;

        list_insert(&conns->held, &conn->link);
        conn->owes = (conn->price != PRICE_RANK && conn->budget->n_owing) || conn_owes(conn);
        conn->budget->n_owing += conn->owes;
        if (!uv_is_active((uv_handle_t *)&conns->pace))
                uv_timer_start(&conns->pace, conns_paced, 1, 1);
        conn_watch(conn);
}

/* A large frame, once its length is known, needs a grant. */
static bool conn_grant(struct conn *conn)
{
        size_t size = frame_reader_size(&conn->reader);

        if (size <= FRAME_SMALL || size > conn->reader.limit || conn->granted)
                return true;
        if (!budget_grant(conn->budget, size))
                return false;
        conn->granted = size;
        return true;
}

static void conn_give_back(struct conn *conn)
{
        conn->budget->frames -= conn->granted;
        conn->granted = 0;
}

static bool conn_may_go_on(struct conn *conn)
{
        return conn->queued <= CONN_UNREAD && !conn_owes(conn) && conn_grant(conn);
}

/* ---- reading --------------------------------------------------------------- */

static void conn_begin_work(struct conn *conn)
{
        conn->begun_ns = uv_hrtime();
}

/* Charges the time since the last charge. */
static void conn_worked(struct conn *conn)
{
        uint64_t now = uv_hrtime();

        budget_worked(conn->budget, conn->price * (now - conn->begun_ns));
        conn->begun_ns = now;
}

static int conn_frame(struct conn *conn)
{
        size_t size;
        const uint8_t *payload = frame_reader_payload(&conn->reader, &size);
        int r = conn->events.frame(conn->events.arg, payload, size);

        conn_give_back(conn);
        if (!conn->closing)
                frame_reader_next(&conn->reader);
        return r;
}

/* Takes *ret_taken bytes, as long as the connection may go on.  0, or the error that ends the
 * connection. */
static int conn_feed(struct conn *conn, const uint8_t *p, size_t n, size_t *ret_taken)
{
        size_t at = 0;

        while (at < n && !conn->closing && conn_may_go_on(conn)) {
                size_t some = n - at, taken;
                int r;

                if (conn->reader.length < FRAME_HEADER && some > FRAME_HEADER - conn->reader.length)
                        some = FRAME_HEADER - conn->reader.length;
                r = frame_reader_feed(&conn->reader, p + at, some, &taken);
                if (r < 0)
                        return r;
                at += taken;
                if (r == 0)
                        continue;
                r = conn_frame(conn);
                conn_worked(conn);
                if (r || conn->shut)
                        return r ? r : conn->shut;
        }
        *ret_taken = at;
        return 0;
}

/* Feeds the bytes of a read as long as the connection may go on, and keeps the rest. */
static int conn_take(struct conn *conn, const uint8_t *p, size_t n)
{
        size_t taken;
        int r = conn_feed(conn, p, n, &taken);

        if (r || conn->closing || taken == n)
                return r;
        conn->left = malloc(n - taken);
        if (!conn->left)
                return -ENOMEM;
        memcpy(conn->left, p + taken, n - taken);
        conn->left_at = 0;
        conn->left_end = n - taken;
        conn_hold(conn);
        return 0;
}

/* As recv().  -EPERM if descriptors came along; they stay in the socket. */
static ssize_t conn_receive(const struct conn *conn, uint8_t *p, size_t size)
{
        struct iovec iov = { p, size };
        struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1 };
        ssize_t n;

        if (conn->fds_may_come) {
                n = recvmsg(conn->fd, &m, MSG_DONTWAIT | MSG_PEEK);
                if (n <= 0)
                        return n < 0 ? -errno : 0;
                if (m.msg_flags & MSG_CTRUNC)
                        return -EPERM;
                size = (size_t)n;
        }
        n = recv(conn->fd, p, size, MSG_DONTWAIT);
        return n < 0 ? -errno : n;
}

/* False: the socket has nothing now. */
static bool conn_read(struct conn *conn)
{
        uint8_t buffer[READ_BYTES];
        ssize_t n;
        int r;

        if (!conn_may_go_on(conn)) {
                conn_hold(conn);
                return true;
        }
        n = conn_receive(conn, buffer, sizeof buffer);
        if (n == -EAGAIN || n == -EINTR)
                return false;
        if (n <= 0) {
                conn_end(conn, conn_why((int)n));
                return true;
        }
        conn->progress_ms = conn_now(conn);
        r = conn_take(conn, buffer, (size_t)n);
        if (r)
                conn_end(conn, conn_why(r));
        return true;
}

/*
 * The client is gone.  What it said before counts: that its rank leaves in order, for one.  A
 * client that closes with replies unread leaves an error at this end, beside the bytes that it
 * sent.
 */
static void conn_read_rest(struct conn *conn)
{
        while (!conn->closing && !conn->ended && !conn_held(conn))
                if (!conn_read(conn))
                        conn_end(conn, NULL);
}

/* A held connection continues where it stopped, if it may. */
static void conn_resume(struct conn *conn)
{
        const uint8_t *left =
                conn->left ? conn->left + conn->left_at : NULL; /* a hold may have none */
        size_t taken = 0;
        int r;

        conn_let_go(conn);
        r = conn_feed(conn, left, conn->left_end - conn->left_at, &taken);
        if (r) {
                conn_end(conn, conn_why(r));
                return;
        }
        if (conn->closing)
                return;
        conn->left_at += taken;
        if (conn->left_at < conn->left_end || !conn_may_go_on(conn)) {
                conn_hold(conn);
                return;
        }
        free(STEAL(conn->left));
        conn->left_at = conn->left_end = 0;
        conn_watch(conn);
        conn_read(conn);
}

static void conn_retry(struct conn *conn)
{
        conn_begin_work(conn);
        conn_resume(conn);
        conn_worked(conn);
}

static void conns_paced(uv_timer_t *timer)
{
        struct conns *conns = CONTAINER_OF(timer, struct conns, pace);

        list_insert(&conns->held, &conns->tried); /* connections held again go behind it */
        while (conns->held.next != &conns->tried) {
                struct conn *conn = CONTAINER_OF(conns->held.next, struct conn, link);

                if (conn->owes && conn_owes(conn)) {
                        /* without a try: hundreds may wait for one user's debt */
                        list_remove(&conn->link);
                        list_insert(&conns->held, &conn->link);
                } else {
                        conn_retry(conn);
                }
        }
        list_remove(&conns->tried);
        if (list_empty(&conns->held))
                uv_timer_stop(timer);
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

/* Nobody reads replies any more.  The end comes from reading: requests may be on their way. */
static bool client_left(ssize_t error)
{
        return error == -EPIPE || error == -ECONNRESET;
}

static void pending_free(struct conn *conn, struct pending *p)
{
        for (size_t i = 0; i < p->n_fds; i++)
                close(p->fds[i]);
        conn->queued -= p->size;
        conn->budget->replies -= p->size;
        list_remove(&p->link);
        free(p);
}

static void conn_write(struct conn *conn)
{
        while (!list_empty(&conn->queue)) {
                struct pending *p = CONTAINER_OF(conn->queue.next, struct pending, link);
                ssize_t n = send_some(conn->fd, p->data + p->sent, p->size - p->sent, p->fds,
                                      p->sent ? 0 : p->n_fds);

                if (client_left(n)) {
                        pending_free(conn, p);
                        continue;
                }
                if (n < 0) {
                        conn_end(conn, conn_why((int)n));
                        return;
                }
                if (n == 0)
                        return;
                p->sent += (size_t)n;
                conn->progress_ms = conn_now(conn);
                if (p->sent == p->size)
                        pending_free(conn, p);
        }
        conn_watch(conn);
}

static int conn_queue(struct conn *conn, const uint8_t *p, size_t n, const int *fds, size_t n_fds)
{
        struct pending *pending;

        if (conn->budget->replies + n > REPLIES_MAX)
                return -ENOBUFS;
        pending = calloc(1, sizeof *pending + n);
        if (!pending)
                return -ENOMEM;
        memcpy(pending->data, p, n);
        pending->size = n;
        list_insert(&conn->queue, &pending->link);
        conn->queued += n;
        conn->budget->replies += n;
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
        if (list_empty(&conn->queue)) {
                conn->progress_ms = conn_now(conn);
                sent = send_some(conn->fd, p, n, fds, n_fds);
        }
        if (sent < 0)
                return client_left(sent) ? 0 : (int)sent;
        if ((size_t)sent == n)
                return 0;
        return conn_queue(conn, p + sent, n - (size_t)sent, fds, sent ? 0 : n_fds);
}

void conn_shutdown(struct conn *conn, int error)
{
        conn->shut = error; /* nobody waits for requests that were read: they are not carried out */
        shutdown(conn->fd, SHUT_RDWR);
}

void conn_read_out(const struct conn *conn)
{
        shutdown(conn->fd, SHUT_RD);
}

/* ---- lifetime -------------------------------------------------------------------- */

static void conn_polled(uv_poll_t *poll, int status, int events)
{
        struct conn *conn = CONTAINER_OF(poll, struct conn, poll);

        conn_begin_work(conn);
        if (status < 0 || events & UV_WRITABLE)
                conn_write(conn);
        if (status < 0)
                conn_read_rest(conn);
        if (!conn->closing && !conn->ended && (events & UV_READABLE)) {
                if (conn->price != PRICE_RANK && conn->budget->n_owing)
                        conn_hold(conn); /* the line sees that a rank left before it comes again */
                else
                        conn_read(conn);
        }
        conn_worked(conn);
}

int conns_init(struct conns *conns, uv_loop_t *loop)
{
        list_init(&conns->held);
        list_init(&conns->tried);
        return uv_timer_init(loop, &conns->pace);
}

void conns_close(struct conns *conns, uv_close_cb closed)
{
        uv_close((uv_handle_t *)&conns->pace, closed);
}

int conn_new(struct conns *conns, int fd, uid_t uid, struct budget *budget, size_t frame_limit,
             const struct conn_events *events, struct conn **ret)
{
        struct conn *conn = calloc(1, sizeof *conn);
        int r;

        if (!conn)
                return -ENOMEM;
        r = uv_poll_init(conns->pace.loop, &conn->poll, fd);
        if (r) {
                free(conn);
                return r;
        }
        conn->conns = conns;
        conn->budget = budget;
        conn->fd = fd;
        conn->uid = uid;
        conn->price = PRICE_OTHERS;
        conn->fds_may_come = descriptors_may_come(fd);
        conn->events = *events;
        list_init(&conn->link);
        list_init(&conn->queue);
        frame_reader_init(&conn->reader, frame_limit);
        conn_watch(conn);
        *ret = conn;
        return 0;
}

void conn_limit(struct conn *conn, size_t frame_limit)
{
        conn->reader.limit = frame_limit;
}

void conn_price(struct conn *conn, uint32_t price)
{
        conn->price = price;
}

void conn_check(struct conn *conn, uint64_t now_ms)
{
        if (now_ms - conn->progress_ms < CONN_STALL_MS)
                return;
        if (conn->queued > CONN_UNREAD)
                conn_end(conn, "the client does not read its replies");
        else if (conn->granted && !conn_held(conn))
                conn_end(conn, "the client does not finish its frame");
}

static void conn_closed(uv_handle_t *handle)
{
        struct conn *conn = CONTAINER_OF((uv_poll_t *)handle, struct conn, poll);
        void (*closed)(void *) = conn->closed;
        void *arg = conn->closed_arg;

        conn_begin_work(conn);
        disposal_close(conn->fd, conn->uid);
        while (!list_empty(&conn->queue))
                pending_free(conn, CONTAINER_OF(conn->queue.next, struct pending, link));
        conn_give_back(conn);
        frame_reader_deinit(&conn->reader);
        free(conn->left);
        conn_worked(conn);
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
        conn_let_go(conn);
        uv_close((uv_handle_t *)&conn->poll, conn_closed);
}

int peer_credentials(int fd, uid_t *ret_uid, pid_t *ret_pid)
{
        struct ucred credentials;
        socklen_t size = sizeof credentials;

        if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size))
                return -errno;
        *ret_uid = credentials.uid;
        *ret_pid = credentials.pid;
        return 0;
}
