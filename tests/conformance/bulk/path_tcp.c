/* The suite's end of the path over TCP: channels made of a loopback connection and random
 * keys, as if a handshake had passed. */
#include "tests/conformance/bulk/bulk_path.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void must(int ok)
{
        if (!ok)
                abort();
}

static struct channel *channel_on(uv_loop_t *loop, int fd, const uint8_t key[32], int side)
{
        struct channel *channel = calloc(1, sizeof *channel);

        must(sodium_init() >= 0); /* else it computes without vectors */
        must(channel && uv_tcp_init(loop, &channel->tcp) == 0);
        must(uv_tcp_open(&channel->tcp, fd) == 0);
        channel->role = CHANNEL_BULK;
        memcpy(channel->send_key, key, CHANNEL_KEY);
        memcpy(channel->receive_key, key, CHANNEL_KEY);
        channel->send_key[0] = (uint8_t)side;
        channel->receive_key[0] = (uint8_t)!side;
        return channel;
}

static int listen_on_loopback(struct sockaddr_in *ret)
{
        socklen_t size = sizeof *ret;
        int fd = socket(AF_INET, SOCK_STREAM, 0);

        *ret = (struct sockaddr_in){ .sin_family = AF_INET };
        ret->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        must(fd >= 0 && bind(fd, (struct sockaddr *)ret, sizeof *ret) == 0);
        must(listen(fd, 1) == 0 && getsockname(fd, (struct sockaddr *)ret, &size) == 0);
        return fd;
}

static int dial(const struct sockaddr_in *to)
{
        int fd = socket(AF_INET, SOCK_STREAM, 0);

        must(fd >= 0 && connect(fd, (const struct sockaddr *)to, sizeof *to) == 0);
        return fd;
}

static void pair(enum bulk_seal seal, uv_loop_t *loop, const uint64_t token[2],
                 struct bulk_path **ret, struct bulk_peer *ret_peer[2])
{
        struct sockaddr_in address;
        int listener = listen_on_loopback(&address), fd[2] = { dial(&address) };
        uint8_t key[32];

        fd[1] = accept(listener, NULL, NULL);
        close(listener);
        randombytes_buf(key, sizeof key);
        for (int i = 0; i < 2; i++)
                must(bulk_tcp_peer_new(channel_on(loop, fd[i], key, i), token[i], seal,
                                       bulk_tcp_has_aes(), NULL, NULL, &ret_peer[i]) == 0);
        *ret = NULL;
}

/* Side 0 listens and tells its port, side 1 dials. */
static void side_open(enum bulk_seal seal, uv_loop_t *loop, const struct bulk_rendezvous *at,
                      int side, uint64_t token, struct bulk_path **ret, struct bulk_peer **ret_peer)
{
        struct sockaddr_in address;
        int fd;

        if (side == 0) {
                int listener = listen_on_loopback(&address);
                must(write(at->fd[0], &address, sizeof address) == sizeof address);
                fd = accept(listener, NULL, NULL);
                close(listener);
        } else {
                must(read(at->fd[1], &address, sizeof address) == sizeof address);
                fd = dial(&address);
        }
        must(bulk_tcp_peer_new(channel_on(loop, fd, at->key, side), token, seal, bulk_tcp_has_aes(),
                               NULL, NULL, ret_peer) == 0);
        *ret = NULL;
}

static void path_free(struct bulk_path *path)
{
}

#define TCP_PATH(name, seal)                                                                      \
        static void name##_pair(uv_loop_t *loop, const uint64_t token[2], struct bulk_path **ret, \
                                struct bulk_peer *ret_peer[2])                                    \
        {                                                                                         \
                pair(seal, loop, token, ret, ret_peer);                                           \
        }                                                                                         \
        static void name##_side(uv_loop_t *loop, const struct bulk_rendezvous *at, int side,      \
                                uint64_t token, struct bulk_path **ret,                           \
                                struct bulk_peer **ret_peer)                                      \
        {                                                                                         \
                side_open(seal, loop, at, side, token, ret, ret_peer);                            \
        }                                                                                         \
        const struct bulk_path_ops bulk_path_##name = {                                           \
                .remote = true, .pair = name##_pair, .side = name##_side, .free = path_free       \
        };

TCP_PATH(tcp, BULK_AUTHENTICATED)
TCP_PATH(tcp_plain, BULK_PLAIN)
TCP_PATH(tcp_encrypted, BULK_ENCRYPTED)
