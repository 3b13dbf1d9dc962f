/* A forked process at the other end of a socket; blocking reads and writes on both sides. */
#include "tests/bench/fetch/peer.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { DEADLINE_S = 600 };

double clock_us(void)
{
        struct timespec t;

        clock_gettime(CLOCK_MONOTONIC, &t);
        return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

double copy_us(char *to, const char *from, size_t n)
{
        double begun = clock_us();

        memcpy(to, from, n);
        return clock_us() - begun;
}

static bool read_all(int fd, char *p, size_t n)
{
        while (n > 0) {
                ssize_t r = recv(fd, p, n, 0);

                if (r <= 0)
                        return false;
                p += r;
                n -= (size_t)r;
        }
        return true;
}

static bool write_all(int fd, const char *p, size_t n)
{
        while (n > 0) {
                ssize_t w = send(fd, p, n, MSG_NOSIGNAL);

                if (w <= 0)
                        return false;
                p += w;
                n -= (size_t)w;
        }
        return true;
}

/* Two ends of a connection over loopback. */
static int tcp_pair(int ret[2])
{
        struct sockaddr_in address = { .sin_family = AF_INET };
        socklen_t size = sizeof address;
        int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;

        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        ret[0] = socket(AF_INET, SOCK_STREAM, 0);
        ret[1] = -1;
        if (!bind(listener, (struct sockaddr *)&address, sizeof address) && !listen(listener, 1) &&
            !getsockname(listener, (struct sockaddr *)&address, &size) &&
            !connect(ret[0], (struct sockaddr *)&address, sizeof address))
                ret[1] = accept(listener, NULL, NULL);
        close(listener);
        if (ret[1] < 0) {
                close(ret[0]);
                return -errno;
        }
        for (int i = 0; i < 2; i++)
                setsockopt(ret[i], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        return 0;
}

static void answer(int fd, char *buffer, size_t bytes)
{
        uint64_t n;

        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(DEADLINE_S);
        memset(buffer, 1, bytes);
        while (read_all(fd, (char *)&n, sizeof n) && n <= bytes && write_all(fd, buffer, n))
                ;
        _exit(0);
}

int peer_start(bool tcp, size_t bytes, struct peer *ret_peer)
{
        struct peer peer = { .bytes = bytes, .buffer = malloc(bytes) };
        int fds[2], r;

        if (!peer.buffer)
                return -ENOMEM;
        r = tcp ? tcp_pair(fds) : socketpair(AF_UNIX, SOCK_STREAM, 0, fds) ? -errno : 0;
        if (r) {
                free(peer.buffer);
                return r;
        }
        peer.process = fork();
        if (peer.process == 0) {
                close(fds[0]);
                answer(fds[1], peer.buffer, bytes);
        }
        memset(peer.buffer, 2, bytes);
        close(fds[1]);
        peer.fd = fds[0];
        *ret_peer = peer;
        return peer.process < 0 ? -EAGAIN : 0;
}

void peer_stop(struct peer *peer)
{
        close(peer->fd);
        if (peer->process > 0)
                waitpid(peer->process, NULL, 0);
        free(peer->buffer);
}

double peer_ask_us(struct peer *peer, size_t n)
{
        uint64_t request = n;
        double begun = clock_us();

        if (n > peer->bytes || !write_all(peer->fd, (const char *)&request, sizeof request) ||
            !read_all(peer->fd, peer->buffer, n))
                return -1;
        return clock_us() - begun;
}
