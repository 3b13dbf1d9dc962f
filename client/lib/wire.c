/* See wire.h. */
#include "wire.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { CONTROL_FDS = 8 };

void wire_init(struct wire *w, int fd)
{
        memset(w, 0, sizeof(*w));
        w->fd = fd;
        frame_reader_init(&w->reader, WIRE_FRAME_MAX);
}

void wire_deinit(struct wire *w)
{
        wire_expect_fds(w, false);
        frame_reader_deinit(&w->reader);
        free(w->out);
        if (w->fd >= 0)
                close(w->fd);
        w->fd = -1;
}

void wire_expect_fds(struct wire *w, bool expect)
{
        for (unsigned i = 0; i < WIRE_FDS; i++) {
                int fd = wire_take_fd(w, i);

                if (fd >= 0)
                        close(fd);
        }
        w->n_fds = 0;
        w->expect_fds = expect;
}

int wire_take_fd(struct wire *w, unsigned i)
{
        int fd;

        if (i >= WIRE_FDS || i >= w->n_fds)
                return -1;
        fd = w->fds[i];
        w->fds[i] = -1;
        return fd;
}

static int out_reserve(struct wire *w, size_t n)
{
        size_t capacity = w->out_capacity ? w->out_capacity : 1024;
        uint8_t *out;

        while (capacity - w->out_end < n)
                capacity *= 2;
        if (capacity == w->out_capacity)
                return 0;
        out = realloc(w->out, capacity);
        if (!out)
                return -ENOMEM;
        w->out = out;
        w->out_capacity = capacity;
        return 0;
}

int wire_queue(struct wire *w, const ProtobufCMessage *message)
{
        size_t size = protobuf_c_message_get_packed_size(message);
        int r;

        if (size > WIRE_FRAME_MAX)
                return -EMSGSIZE;
        r = out_reserve(w, FRAME_HEADER + size);
        if (r < 0)
                return r;
        frame_write_header(w->out + w->out_end, (uint32_t)size);
        protobuf_c_message_pack(message, w->out + w->out_end + FRAME_HEADER);
        w->out_end += FRAME_HEADER + size;
        return 0;
}

int wire_flush(struct wire *w)
{
        while (w->out_begin < w->out_end) {
                ssize_t n = send(w->fd, w->out + w->out_begin, w->out_end - w->out_begin,
                                 MSG_DONTWAIT | MSG_NOSIGNAL);

                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0)
                        return errno == EAGAIN || errno == EWOULDBLOCK ? 1 : -errno;
                w->out_begin += (size_t)n;
        }
        w->out_begin = w->out_end = 0;
        return 0;
}

static void keep_fd(struct wire *w, int fd)
{
        if (w->expect_fds && w->n_fds < WIRE_FDS)
                w->fds[w->n_fds] = fd;
        else
                close(fd);
        w->n_fds += w->expect_fds;
}

static void collect_fds(struct wire *w, struct msghdr *message)
{
        for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
                size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

                if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
                        continue;
                for (size_t i = 0; i < n; i++) {
                        int fd;

                        memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
                        keep_fd(w, fd);
                }
        }
}

int wire_read(struct wire *w)
{
        union {
                char bytes[CMSG_SPACE(CONTROL_FDS * sizeof(int))];
                struct cmsghdr align;
        } control;
        struct iovec iov = { w->in, sizeof(w->in) };
        struct msghdr message = {
                .msg_iov = &iov,
                .msg_iovlen = 1,
                .msg_control = control.bytes,
                .msg_controllen = sizeof(control.bytes),
        };
        ssize_t n;

        do {
                n = recvmsg(w->fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        } while (n < 0 && errno == EINTR);
        if (n < 0)
                return errno == EAGAIN || errno == EWOULDBLOCK ? 1 : -errno;
        if (message.msg_controllen > 0)
                collect_fds(w, &message);
        if (n == 0)
                return -EPIPE;
        w->in_begin = 0;
        w->in_end = (size_t)n;
        return 0;
}

int wire_next(struct wire *w, const uint8_t **ret_payload, size_t *ret_size)
{
        if (w->whole)
                frame_reader_next(&w->reader);
        w->whole = false;
        while (w->in_begin < w->in_end) {
                size_t taken;
                int r = frame_reader_feed(&w->reader, w->in + w->in_begin, w->in_end - w->in_begin,
                                          &taken);

                if (r < 0)
                        return r;
                w->in_begin += taken;
                if (r == 1) {
                        w->whole = true;
                        *ret_payload = frame_reader_payload(&w->reader, ret_size);
                        return 1;
                }
        }
        return 0;
}

/* 0, -ETIMEDOUT, -ECANCELED, -errno. */
static int wait_for(struct pollfd p[static 2], int64_t until_ms)
{
        for (;;) {
                int64_t left = until_ms - wire_now();
                int n = poll(p, 2, left < 0 ? 0 : left > INT_MAX ? INT_MAX : (int)left);

                if (n > 0)
                        return p[1].revents ? -ECANCELED : 0;
                if (n < 0 && errno != EINTR)
                        return -errno;
                if (n == 0 && left <= 0)
                        return -ETIMEDOUT;
        }
}

int wire_wait(struct wire *w, int interrupt_fd, int64_t deadline_ms)
{
        struct pollfd p[2] = { { .fd = w->fd, .events = POLLIN },
                               { .fd = interrupt_fd, .events = POLLIN } };

        if (w->out_begin < w->out_end)
                p[0].events |= POLLOUT;
        return wait_for(p, deadline_ms);
}

int wire_wait_for(int fd, int interrupt_fd, int64_t deadline_ms)
{
        struct pollfd p[2] = { { .fd = fd, .events = POLLIN },
                               { .fd = interrupt_fd, .events = POLLIN } };

        return wait_for(p, deadline_ms);
}

int wire_nap(int interrupt_fd, int64_t us)
{
        const struct timespec t = { .tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000 };
        struct pollfd p = { .fd = interrupt_fd, .events = POLLIN };

        return ppoll(&p, 1, &t, NULL) > 0 ? -ECANCELED : 0;
}

int wire_sleep(int interrupt_fd, int64_t until_ms)
{
        struct pollfd p[2] = { { .fd = -1 }, { .fd = interrupt_fd, .events = POLLIN } };

        return wait_for(p, until_ms) == -ECANCELED ? -ECANCELED : 0;
}

int64_t wire_now(void)
{
        struct timespec t;

        clock_gettime(CLOCK_MONOTONIC, &t);
        return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}
