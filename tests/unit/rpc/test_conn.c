/* A framed connection over a socket pair, the test at the other end. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/face/rpc/conn.h"
#include "proto/cleanup.h"

enum { TURNS_MAX = 100000 };

struct end {
        uv_loop_t loop;
        struct conns conns;
        struct budget budget;
        struct conn *conn;
        int peer;
        uint32_t frames, ends;
        size_t last_size;
        uint8_t last[64];
        int answer;        /* what the handler of frames returns */
        bool close_inside; /* the handler closes the connection */
        uint64_t works_ns; /* the time that the handler claims to take */
        bool closed;
        char why[64];
};

static void on_closed(void *arg)
{
        ((struct end *)arg)->closed = true;
}

static int on_frame(void *arg, const uint8_t *p, size_t n)
{
        struct end *e = arg;

        e->frames++;
        e->last_size = n;
        memcpy(e->last, p, n < sizeof e->last ? n : sizeof e->last);
        budget_worked(&e->budget, e->works_ns);
        if (e->close_inside)
                conn_close(e->conn, on_closed, e);
        return e->answer;
}

static void on_ended(void *arg, const char *why)
{
        struct end *e = arg;

        e->ends++;
        snprintf(e->why, sizeof e->why, "%s", why ? why : "closed by the client");
        conn_close(e->conn, on_closed, e);
}

static void open_end(struct end *e)
{
        struct conn_events events = { on_frame, on_ended, e };
        int pair[2];

        *e = (struct end){ 0 };
        cr_assert_eq(uv_loop_init(&e->loop), 0);
        cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
        e->peer = pair[0];
        cr_assert_eq(conns_init(&e->conns, &e->loop), 0);
        budget_init(&e->budget, uv_now(&e->loop));
        e->budget.quantum_ns = e->budget.credit_ns = 1000000000; /* however slow the machine is */
        cr_assert_eq(conn_new(&e->conns, pair[1], 0, &e->budget, FRAMES_MAX, &events, &e->conn), 0);
}

/* UV_RUN_ONCE would wait for ever behind the timer that lets a held connection go on. */
static void turn(struct end *e)
{
        uv_run(&e->loop, UV_RUN_NOWAIT);
}

/* Checks that nothing is left and that the loop is empty. */
static void close_end(struct end *e)
{
        if (!e->ends && !e->closed)
                conn_close(e->conn, on_closed, e);
        conns_close(&e->conns, NULL);
        uv_run(&e->loop, UV_RUN_DEFAULT);
        cr_assert(e->closed);
        cr_assert_eq(e->budget.replies, 0);
        cr_assert_eq(e->budget.frames, 0);
        cr_assert_eq(uv_loop_close(&e->loop), 0);
        if (e->peer >= 0)
                close(e->peer);
}

static void write_all(struct end *e, const void *p, size_t n, size_t piece)
{
        for (size_t at = 0; at < n;) {
                size_t some = piece < n - at ? piece : n - at;
                ssize_t written = send(e->peer, (const char *)p + at, some, MSG_NOSIGNAL);

                if (written > 0)
                        at += (size_t)written;
                else
                        cr_assert_eq(errno, EAGAIN);
                turn(e);
        }
}

static const uint8_t three[] = { 3, 0, 0, 0, 'a', 'b', 'c', 0, 0, 0, 0, 1, 0, 0, 0, 'd' };

Test(conn, frames_come_out_whole_however_they_are_cut)
{
        for (size_t piece = 1; piece <= sizeof three; piece++) {
                struct end e;

                open_end(&e);
                write_all(&e, three, sizeof three, piece);
                cr_assert_eq(e.frames, 3);
                cr_assert_eq(e.last_size, 1);
                cr_assert_eq(e.last[0], 'd');
                close_end(&e);
        }
}

Test(conn, a_length_above_the_limit_ends_it)
{
        static const uint8_t lie[] = { 1, 0, 0, 4, 'x' };
        struct end e;

        open_end(&e);
        write_all(&e, lie, sizeof lie, sizeof lie);
        cr_assert_eq(e.ends, 1);
        cr_assert_eq(e.frames, 0);
        cr_assert_str_eq(e.why, "a frame is larger than the limit");
        close_end(&e);
}

Test(conn, a_refused_frame_ends_it_and_the_rest_is_not_read)
{
        struct end e;

        open_end(&e);
        e.answer = -EPROTO;
        write_all(&e, three, sizeof three, sizeof three);
        cr_assert_eq(e.frames, 1);
        cr_assert_eq(e.ends, 1);
        cr_assert_str_eq(e.why, "protocol violation");
        close_end(&e);
}

Test(conn, closed_inside_a_frame_it_hears_nothing_more)
{
        struct end e;

        open_end(&e);
        e.close_inside = true;
        write_all(&e, three, sizeof three, sizeof three);
        cr_assert_eq(e.frames, 1);
        cr_assert_eq(e.ends, 0);
        close_end(&e);
}

Test(conn, the_end_of_the_client_is_heard_once)
{
        struct end e;

        open_end(&e);
        write_all(&e, three, 5, 5); /* in the middle of a frame */
        close(e.peer);
        e.peer = -1;
        for (int i = 0; i < 10; i++)
                turn(&e);
        cr_assert_eq(e.ends, 1);
        cr_assert_str_eq(e.why, "closed by the client");
        close_end(&e);
}

static int send_filled(struct end *e, size_t n, uint8_t fill, const int *fds, size_t n_fds)
{
        uint8_t *p = malloc(FRAME_HEADER + n);
        int r;

        cr_assert(p);
        memset(p + FRAME_HEADER, fill, n);
        r = conn_send(e->conn, p, n, fds, n_fds);
        free(p);
        return r;
}

/* The client says three frames and closes; meanwhile n bytes are sent to it. */
static void say_and_close(struct end *e, size_t n)
{
        cr_assert_eq(send(e->peer, three, sizeof three, 0), sizeof three);
        close(e->peer);
        e->peer = -1;
        if (n)
                cr_assert_eq(send_filled(e, n, 2, NULL, 0), 0);
        for (int i = 0; i < TURNS_MAX && !e->ends; i++)
                turn(e);
        cr_assert_eq(e->frames, 3);
        cr_assert_eq(e->ends, 1);
        cr_assert_str_eq(e->why, "closed by the client");
}

/* A client is heard to its end, whatever it left unread, and whatever is sent to it meanwhile. */
Test(conn, the_last_words_of_a_client_that_is_gone_are_heard)
{
        for (int unread = 0; unread < 2; unread++)
                for (int sent = 0; sent < 2; sent++) {
                        struct end e;

                        open_end(&e);
                        if (unread)
                                cr_assert_eq(send_filled(&e, 40, 1, NULL, 0), 0);
                        say_and_close(&e, sent ? 40 : 0);
                        close_end(&e);
                }
}

Test(conn, replies_that_wait_for_a_client_that_is_gone_are_dropped)
{
        struct end e;

        open_end(&e);
        for (int i = 0; i < 64; i++)
                cr_assert_eq(send_filled(&e, 16384, 1, NULL, 0), 0);
        cr_assert_gt(e.budget.replies, 0, "the socket took all");
        say_and_close(&e, 0);
        close_end(&e);
}

Test(conn, shut_down_it_ends_from_the_loop)
{
        struct end e;

        open_end(&e);
        conn_shutdown(e.conn, -ENOBUFS);
        cr_assert_eq(e.ends, 0);
        for (int i = 0; i < 10; i++)
                turn(&e);
        cr_assert_eq(e.ends, 1);
        cr_assert_str_eq(e.why, "its user reads too few replies");
        close_end(&e);
}

/* ---- sending ---- */

/* Reads what is there; descriptors go to fds. */
static ssize_t receive(int from, uint8_t *p, size_t n, int *fds, size_t *n_fds)
{
        union {
                struct cmsghdr align;
                char space[CMSG_SPACE(CONN_FDS_MAX * sizeof(int))];
        } control;
        struct iovec iov = { p, n };
        struct msghdr m = { .msg_iov = &iov,
                            .msg_iovlen = 1,
                            .msg_control = control.space,
                            .msg_controllen = sizeof control.space };
        ssize_t got = recvmsg(from, &m, MSG_DONTWAIT);

        for (struct cmsghdr *c = got >= 0 ? CMSG_FIRSTHDR(&m) : NULL; c; c = CMSG_NXTHDR(&m, c)) {
                size_t k = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

                memcpy(fds + *n_fds, CMSG_DATA(c), k * sizeof(int));
                *n_fds += k;
        }
        return got;
}

/* Reads exactly n bytes, the loop turning. */
static void receive_all(struct end *e, uint8_t *p, size_t n, int *fds, size_t *n_fds)
{
        size_t at = 0;

        for (int i = 0; at < n && i < TURNS_MAX; i++) {
                ssize_t got = receive(e->peer, p + at, n - at, fds, n_fds);

                if (got > 0)
                        at += (size_t)got;
                turn(e);
        }
        cr_assert_eq(at, n);
}

Test(conn, what_the_socket_does_not_take_follows_in_order)
{
        enum { FRAMES = 20, SIZE = 300000 };
        uint8_t *p = malloc(FRAME_HEADER + SIZE);
        struct end e;
        int fds[CONN_FDS_MAX];
        size_t n_fds = 0;

        open_end(&e);
        for (int i = 0; i < FRAMES; i++)
                cr_assert_eq(send_filled(&e, SIZE, (uint8_t)(i + 1), NULL, 0), 0);
        for (int i = 0; i < FRAMES; i++) {
                receive_all(&e, p, FRAME_HEADER + SIZE, fds, &n_fds);
                cr_assert_eq(p[0] + (p[1] << 8) + (p[2] << 16), SIZE);
                for (size_t k = 0; k < SIZE; k++)
                        cr_assert_eq(p[FRAME_HEADER + k], i + 1);
        }
        cr_assert_eq(n_fds, 0);
        free(p);
        close_end(&e);
}

Test(conn, a_client_that_does_not_read_reaches_the_limit)
{
        struct end e;
        size_t sent = 0;
        int r;

        open_end(&e);
        while ((r = send_filled(&e, 1 << 20, 'x', NULL, 0)) == 0)
                cr_assert_lt(sent += 1 << 20, (size_t)REPLIES_MAX + (8 << 20));
        cr_assert_eq(r, -ENOBUFS);
        cr_assert_gt(sent, (size_t)REPLIES_MAX - (2 << 20));
        close_end(&e);
}

/* True once nobody holds the other end of the pipe. */
static bool pipe_is_over(int fd)
{
        char c;

        return read(fd, &c, 1) == 0;
}

Test(conn, descriptors_come_once_with_their_frame_and_are_duplicates)
{
        for (int queued = 0; queued < 2; queued++) {
                uint8_t *p = malloc((4 << 20) + 64);
                int pipes[2], fds[2 * CONN_FDS_MAX];
                size_t n_fds = 0, before = queued ? (4 << 20) + FRAME_HEADER : 0;
                struct end e;

                open_end(&e);
                cr_assert_eq(pipe2(pipes, O_CLOEXEC | O_NONBLOCK), 0);
                if (queued)
                        cr_assert_eq(send_filled(&e, 4 << 20, 'x', NULL, 0), 0);
                cr_assert_eq(send_filled(&e, 10, 'y', (int[]){ pipes[1], pipes[1] }, 2), 0);
                close(pipes[1]);
                receive_all(&e, p, before, fds, &n_fds);
                cr_assert_eq(n_fds, 0);
                receive_all(&e, p, FRAME_HEADER + 10, fds, &n_fds);
                cr_assert_eq(n_fds, 2);
                cr_assert_eq(write(fds[0], "z", 1), 1);
                cr_assert(!pipe_is_over(pipes[0]));
                close(fds[0]);
                close(fds[1]);
                cr_assert(pipe_is_over(pipes[0]), "the daemon kept a duplicate");
                close(pipes[0]);
                free(p);
                close_end(&e);
        }
}

Test(conn, closed_with_descriptors_in_the_queue_it_keeps_none)
{
        struct end e;
        int pipes[2];

        open_end(&e);
        cr_assert_eq(pipe2(pipes, O_CLOEXEC | O_NONBLOCK), 0);
        cr_assert_eq(send_filled(&e, 4 << 20, 'x', NULL, 0), 0);
        cr_assert_eq(send_filled(&e, 10, 'y', &pipes[1], 1), 0);
        close(pipes[1]);
        close_end(&e);
        cr_assert(pipe_is_over(pipes[0]));
        close(pipes[0]);
}

static void send_descriptors(int to, int fd, int n)
{
        union {
                struct cmsghdr align;
                char space[CMSG_SPACE(200 * sizeof(int))];
        } control = { 0 };
        struct iovec iov = { (void *)(uintptr_t)three, sizeof three };
        struct msghdr m = { .msg_iov = &iov,
                            .msg_iovlen = 1,
                            .msg_control = control.space,
                            .msg_controllen = CMSG_SPACE((size_t)n * sizeof(int)) };
        struct cmsghdr *c = &control.align;

        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN((size_t)n * sizeof(int));
        for (int i = 0; i < n; i++)
                memcpy(CMSG_DATA(c) + (size_t)i * sizeof fd, &fd, sizeof fd);
        cr_assert_eq(sendmsg(to, &m, 0), (ssize_t)sizeof three);
}

/* True once nobody holds the other end of the pipe; within ten seconds. */
static bool pipe_ends(int fd)
{
        struct pollfd p = { .fd = fd };

        return poll(&p, 1, 10000) == 1 && (p.revents & POLLHUP);
}

/* Any number of descriptors, with or without whole frames before them, noticed or not when the
 * connection closes. */
Test(conn, descriptors_end_the_connection_and_are_closed)
{
        static const int counts[] = { 1, 4, 5, 100 };

        for (size_t i = 0; i < 3 * sizeof counts / sizeof counts[0]; i++) {
                struct end e;
                int pipes[2], n = counts[i / 3], how = (int)(i % 3);

                open_end(&e);
                cr_assert_eq(pipe2(pipes, O_CLOEXEC | O_NONBLOCK), 0);
                if (how)
                        write_all(&e, three, sizeof three, sizeof three);
                send_descriptors(e.peer, pipes[1], n);
                close(pipes[1]);
                if (how < 2) {
                        for (int k = 0; k < 5; k++)
                                turn(&e);
                        cr_assert_eq(e.ends, 1);
                        cr_assert_str_eq(e.why, "the client sent descriptors");
                }
                cr_assert_eq(e.frames, how ? 3 : 0);
                close_end(&e);
                cr_assert(pipe_ends(pipes[0]), "of %d", n);
                close(pipes[0]);
        }
}

Test(conn, the_close_of_a_descriptor_does_not_hold_up_the_loop)
{
        static const struct linger long_ago = { 1, 3600 };
        int listener = socket(AF_INET, SOCK_STREAM, 0), sender, taker;
        struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr = { htonl(0x7f000001) } };
        socklen_t size = sizeof address;
        char rest[4096] = "";
        struct end e;

        cr_assert_eq(bind(listener, (struct sockaddr *)&address, size), 0);
        cr_assert_eq(listen(listener, 1), 0);
        cr_assert_eq(getsockname(listener, (struct sockaddr *)&address, &size), 0);
        sender = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        cr_assert_eq(connect(sender, (struct sockaddr *)&address, size), 0);
        taker = accept(listener, NULL, NULL);
        while (send(sender, rest, sizeof rest, MSG_DONTWAIT) > 0)
                ; /* until there is something that nobody reads */
        cr_assert_eq(setsockopt(sender, SOL_SOCKET, SO_LINGER, &long_ago, sizeof long_ago), 0);
        open_end(&e);
        send_descriptors(e.peer, sender, 1);
        close(sender);
        close_end(&e); /* would take an hour */
        close(taker);
        close(listener);
}

/* ---- holding ---- */

Test(conn, a_user_without_credit_is_not_read)
{
        struct end e;

        open_end(&e);
        e.budget.quantum_ns = 0; /* no time brings credit */
        e.budget.credit_ns = -1;
        cr_assert_eq(write(e.peer, three, sizeof three), (ssize_t)sizeof three);
        for (int i = 0; i < 20; i++)
                uv_run(&e.loop, UV_RUN_ONCE);
        cr_assert_eq(e.frames, 0);
        e.budget.quantum_ns = QUANTUM_ALONE_NS;
        for (int i = 0; e.frames < 3 && i < TURNS_MAX; i++)
                turn(&e);
        cr_assert_eq(e.frames, 3);
        close_end(&e);
}

/* Each frame takes more than all credit: between two of them the loop turns. */
Test(conn, a_client_that_floods_has_one_turn_at_a_time)
{
        struct end e;

        open_end(&e);
        e.budget.quantum_ns = QUANTUM_ALONE_NS;
        e.works_ns = 2 * QUANTUM_ALONE_NS;
        cr_assert_eq(write(e.peer, three, sizeof three), (ssize_t)sizeof three);
        for (uint32_t before = 0; before < 3; before = e.frames) {
                turn(&e);
                cr_assert_leq(e.frames, before + 1);
        }
        close_end(&e);
}

Test(conn, a_client_that_does_not_read_its_replies_is_not_read)
{
        uint8_t *p = malloc(FRAME_HEADER + 4 * CONN_UNREAD);
        struct end e;
        int fds[CONN_FDS_MAX];
        size_t n_fds = 0;

        open_end(&e);
        cr_assert_eq(send_filled(&e, 4 * CONN_UNREAD, 'x', NULL, 0), 0);
        cr_assert_eq(write(e.peer, three, sizeof three), (ssize_t)sizeof three);
        for (int i = 0; i < 20; i++)
                uv_run(&e.loop, UV_RUN_ONCE);
        cr_assert_eq(e.frames, 0);
        receive_all(&e, p, FRAME_HEADER + 4 * CONN_UNREAD, fds, &n_fds);
        for (int i = 0; e.frames < 3 && i < TURNS_MAX; i++)
                turn(&e);
        cr_assert_eq(e.frames, 3);
        free(p);
        close_end(&e);
}

Test(conn, a_client_that_never_reads_its_replies_is_cut)
{
        struct end e;

        open_end(&e);
        cr_assert_eq(send_filled(&e, 4 * CONN_UNREAD, 'x', NULL, 0), 0);
        conn_check(e.conn, uv_now(&e.loop));
        cr_assert_eq(e.ends, 0);
        conn_check(e.conn, uv_now(&e.loop) + CONN_STALL_MS);
        cr_assert_eq(e.ends, 1);
        close_end(&e);
}

static void begin_frame(struct end *e, uint32_t size)
{
        uint8_t begun[FRAME_HEADER + 1] = { 0 };

        frame_write_header(begun, size);
        write_all(e, begun, sizeof begun, sizeof begun);
}

Test(conn, a_large_frame_waits_for_its_grant)
{
        struct end e;

        open_end(&e);
        e.budget.frames = FRAMES_MAX; /* other connections of the user */
        begin_frame(&e, FRAME_SMALL + 1);
        cr_assert_eq(e.budget.frames, FRAMES_MAX);
        conn_check(e.conn, uv_now(&e.loop) + CONN_STALL_MS);
        cr_assert_eq(e.ends, 0, "it waits for others");
        e.budget.frames = 0;
        for (int i = 0; e.budget.frames == 0 && i < TURNS_MAX; i++)
                turn(&e);
        cr_assert_eq(e.budget.frames, FRAME_SMALL + 1);
        conn_check(e.conn, uv_now(&e.loop) + CONN_STALL_MS);
        cr_assert_eq(e.ends, 1, "others wait for it");
        close_end(&e);
}

Test(conn, a_small_frame_needs_no_grant)
{
        struct end e;

        open_end(&e);
        e.budget.frames = FRAMES_MAX;
        write_all(&e, three, sizeof three, sizeof three);
        cr_assert_eq(e.frames, 3);
        e.budget.frames = 0;
        close_end(&e);
}

Test(conn, before_a_greeting_frames_are_short)
{
        struct end e;

        open_end(&e);
        conn_limit(e.conn, 100);
        begin_frame(&e, 101);
        cr_assert_eq(e.ends, 1);
        cr_assert_str_eq(e.why, "a frame is larger than the limit");
        close_end(&e);
}

Test(conn, the_kernel_says_who_is_there)
{
        struct end e;
        uid_t uid;
        pid_t pid;

        open_end(&e);
        cr_assert_eq(peer_credentials(e.peer, &uid, &pid), 0);
        cr_assert_eq(uid, getuid());
        cr_assert_eq(pid, getpid());
        close_end(&e);
}
