/*
 * The handshake, fed by a stranger.  Input: a byte that says where the stranger breaks in,
 * a byte for the size of the pieces, then what it says.
 *
 *   0  it dials            1  it took the dialler's place after a good hello
 *   2  it accepts          3  it took the acceptor's place after a good challenge
 *   4  as 0, but it says first a good hello of its own, whose bytes are flipped by the input
 *
 * What must hold: nobody is authenticated, whoever refuses says why, nothing is taken
 * after the end, and no more is sent than one message.
 */
#include "daemon/fabric/link/handshake.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void make_cluster(struct cluster *cluster, uint32_t self)
{
        memset(cluster, 0, sizeof *cluster);
        cluster->n_nodes = 3;
        cluster->self = self;
        for (uint32_t i = 0; i < cluster->n_nodes; i++)
                snprintf(cluster->nodes[i].name, sizeof cluster->nodes[i].name, "n%u", i);
        memset(cluster->hash, 7, sizeof cluster->hash);
        memset(cluster->key, 8, sizeof cluster->key);
        memset(cluster->key_next, 9, sizeof cluster->key_next);
        cluster->has_key = cluster->has_key_next = true;
}

static void pass_on(struct handshake *from, struct handshake *to)
{
        size_t taken;
        enum handshake_result r = handshake_feed(to, from->out, from->out_size, &taken);
        assert(r == HANDSHAKE_MORE && taken == from->out_size);
        from->out_size = 0;
}

static void listen_to_stranger(struct handshake *h, const uint8_t *p, size_t n, size_t piece)
{
        enum handshake_result r = HANDSHAKE_MORE;
        h->out_size = 0;
        while (r == HANDSHAKE_MORE && n > 0) {
                size_t taken, some = piece < n ? piece : n;
                r = handshake_feed(h, p, some, &taken);
                assert(taken <= some && (r != HANDSHAKE_MORE || taken == some));
                p += taken;
                n -= taken;
        }
        assert(r == HANDSHAKE_MORE || r == HANDSHAKE_REFUSED);
        assert(r == HANDSHAKE_MORE || h->why[0]);
        assert(memchr(h->why, 0, sizeof h->why) && h->out_size <= sizeof h->out);
        if (r == HANDSHAKE_MORE && h->state != HANDSHAKE_OVER)
                handshake_lost(h, "hung up");
        handshake_deinit(h);
}

/* A good hello with the input's bytes laid over it (exclusive or); the rest follows. */
static void listen_to_forger(struct handshake *acceptor, struct handshake *dialler,
                             const uint8_t *p, size_t n, size_t piece)
{
        uint8_t said[HANDSHAKE_HELLO + 4096];
        size_t rest = n > HANDSHAKE_HELLO ? n - HANDSHAKE_HELLO : 0;
        if (rest > sizeof said - HANDSHAKE_HELLO)
                rest = sizeof said - HANDSHAKE_HELLO;
        memcpy(said, dialler->out, HANDSHAKE_HELLO);
        for (size_t i = 0; i < HANDSHAKE_HELLO && i < n; i++)
                said[i] ^= p[i];
        if (rest > 0)
                memcpy(said + HANDSHAKE_HELLO, p + HANDSHAKE_HELLO, rest);
        listen_to_stranger(acceptor, said, HANDSHAKE_HELLO + rest, piece);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        static struct cluster of_dialler, of_acceptor;
        struct handshake dialler, acceptor;
        int ready = sodium_init();
        assert(ready >= 0);
        if (size < 2)
                return 0;
        const uint8_t *p = data + 2;
        size_t n = size - 2, piece = data[1] > 0 ? data[1] : size;
        make_cluster(&of_dialler, 0);
        make_cluster(&of_acceptor, 1);
        handshake_dial(&dialler, &of_dialler, 1, CHANNEL_LINK, 5);
        handshake_accept(&acceptor, &of_acceptor);
        switch (data[0] % 5) {
        case 0:
                listen_to_stranger(&acceptor, p, n, piece);
                break;
        case 1:
                pass_on(&dialler, &acceptor);
                listen_to_stranger(&acceptor, p, n, piece);
                break;
        case 2:
                listen_to_stranger(&dialler, p, n, piece);
                break;
        case 3:
                pass_on(&dialler, &acceptor);
                pass_on(&acceptor, &dialler);
                listen_to_stranger(&dialler, p, n, piece);
                break;
        default:
                listen_to_forger(&acceptor, &dialler, p, n, piece);
        }
        return 0;
}
