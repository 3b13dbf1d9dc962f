/*
 * The bulk path over an authenticated TCP connection of its own.
 *
 * A payload is a header of 48 bytes and then its bytes as they are.  The header (token,
 * transfer, length, sequence; little-endian) carries a keyed BLAKE2b of 16 bytes under the
 * directional key of the channel, so that nobody on the wire can start, replay, reorder or
 * redirect a payload; the payload's own bytes are neither authenticated nor encrypted.
 *
 * The sender hands header and payload to the kernel in one call without copying.  The
 * receiver reads a stage full while it waits for a header, and the rest of a payload
 * straight to where it lands.
 *
 * Invariants: `remaining` bytes of the current payload are still to come; `current` is
 * where they land, or NULL where they are dropped.  The peer is gone when no write is left.
 */
#include "daemon/fabric/bulk_common.h"

#include <endian.h>
#include <errno.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"

enum { HEADER_MAC = 16, HEADER = 4 * sizeof(uint64_t) + HEADER_MAC, STAGE = 64 << 10 };

struct tcp_peer {
        struct bulk_base base;
        struct bulk_queue queue;
        struct channel *channel;
        uint64_t token, send_sequence, receive_sequence;
        struct bulk_event begin; /* first what came early, then reading */
        struct bulk_event gone;
        size_t writes;

        struct landing *current;
        uint64_t remaining;
        uint8_t header[HEADER];
        size_t header_length;
        uint8_t stage[STAGE];
};

struct tcp_send {
        struct bulk_op op;
        uv_write_t request;
        struct tcp_peer *peer;
        size_t n;
        uint8_t header[HEADER];
};

static struct tcp_peer *tcp_of(struct bulk_peer *peer)
{
        return CONTAINER_OF(peer, struct tcp_peer, base.peer);
}

/* ---- headers ---- */

static void header_mac(uint8_t mac[static HEADER_MAC], const uint8_t header[static HEADER],
                       const uint8_t key[static CHANNEL_KEY])
{
        crypto_generichash(mac, HEADER_MAC, header, HEADER - HEADER_MAC, key, CHANNEL_KEY);
}

static void header_write(uint8_t header[static HEADER], uint64_t token, uint64_t transfer,
                         uint64_t length, uint64_t sequence, const uint8_t key[static CHANNEL_KEY])
{
        const uint64_t fields[] = { htole64(token), htole64(transfer), htole64(length),
                                    htole64(sequence) };

        memcpy(header, fields, sizeof fields);
        header_mac(header + sizeof fields, header, key);
}

/* Opens the header that is whole; -EPROTO: the peer is broken. */
static int header_open(struct tcp_peer *tcp)
{
        uint64_t fields[4];
        uint8_t mac[HEADER_MAC];
        int r;

        header_mac(mac, tcp->header, tcp->channel->receive_key);
        if (sodium_memcmp(mac, tcp->header + sizeof fields, sizeof mac)) {
                bulk_base_break(&tcp->base, "a payload's header is forged or damaged");
                return -EPROTO;
        }
        memcpy(fields, tcp->header, sizeof fields);
        if (le64toh(fields[0]) != tcp->token) {
                bulk_base_break(&tcp->base, "it sent a payload with another token");
                return -EPROTO;
        }
        if (le64toh(fields[3]) != tcp->receive_sequence++) {
                bulk_base_break(&tcp->base, "a payload's header is out of sequence");
                return -EPROTO;
        }
        tcp->header_length = 0;
        tcp->remaining = le64toh(fields[2]);
        r = bulk_base_arrive(&tcp->base, le64toh(fields[1]), tcp->remaining, &tcp->current);
        return r < 0 ? r : 0;
}

/* ---- receiving ---- */

static uint8_t *destination(const struct tcp_peer *tcp)
{
        return tcp->current->p + (tcp->current->n - tcp->remaining);
}

/* n more bytes of the current payload are where they belong. */
static void advance(struct tcp_peer *tcp, uint64_t n)
{
        tcp->remaining -= n;
        if (tcp->remaining == 0 && tcp->current)
                bulk_base_landed(&tcp->base, STEAL(tcp->current), 0);
}

static size_t feed_header(struct tcp_peer *tcp, const uint8_t *p, size_t n)
{
        size_t take = n < HEADER - tcp->header_length ? n : HEADER - tcp->header_length;

        memcpy(tcp->header + tcp->header_length, p, take);
        tcp->header_length += take;
        if (tcp->header_length == HEADER && header_open(tcp) == 0 && tcp->remaining == 0)
                advance(tcp, 0);
        return take;
}

static size_t feed_payload(struct tcp_peer *tcp, const uint8_t *p, size_t n)
{
        size_t take = n < tcp->remaining ? n : (size_t)tcp->remaining;

        if (tcp->current)
                memcpy(destination(tcp), p, take);
        advance(tcp, take);
        return take;
}

static void feed(struct tcp_peer *tcp, const uint8_t *p, size_t n)
{
        while (n > 0 && !tcp->base.broken) {
                size_t taken = tcp->remaining ? feed_payload(tcp, p, n) : feed_header(tcp, p, n);
                p += taken;
                n -= taken;
        }
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
        struct tcp_peer *tcp = handle->data;

        bool in_place = tcp->remaining && tcp->current;

        /* not uv_buf_init(): its length is an unsigned int */
        buf->base = (char *)(in_place ? destination(tcp) : tcp->stage);
        buf->len = in_place ? (size_t)tcp->remaining : sizeof tcp->stage;
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
        struct tcp_peer *tcp = stream->data;

        if (n < 0) {
                bulk_base_break(&tcp->base, n == UV_EOF ? "the bulk connection was closed"
                                                        : "the bulk connection failed");
        } else if (buf->base == (char *)tcp->stage) {
                feed(tcp, tcp->stage, (size_t)n);
        } else {
                advance(tcp, (uint64_t)n);
        }
        if (tcp->base.broken)
                uv_read_stop(stream);
        bulk_queue_drain(&tcp->queue);
}

static void run_begin(struct bulk_event *event)
{
        struct tcp_peer *tcp = CONTAINER_OF(event, struct tcp_peer, begin);
        struct channel *channel = tcp->channel;

        feed(tcp, channel->early, channel->early_size);
        if (tcp->base.broken)
                return;
        if (uv_read_start((uv_stream_t *)&channel->tcp, on_alloc, on_read))
                bulk_base_break(&tcp->base, "the bulk connection failed");
}

/* The bytes still to come of a payload that is half landed are dropped. */
static void tcp_forget(struct bulk_peer *peer, uint64_t transfer)
{
        struct tcp_peer *tcp = tcp_of(peer);

        if (tcp->current && tcp->current->transfer == transfer)
                bulk_base_drop(&tcp->base, STEAL(tcp->current));
        else
                bulk_base_forget(peer, transfer);
}

/* ---- closing ---- */

static void on_idle_closed(uv_handle_t *handle)
{
        struct bulk_queue *queue = handle->data;
        struct tcp_peer *tcp = CONTAINER_OF(queue, struct tcp_peer, queue);

        bulk_base_deinit(&tcp->base);
        tcp->base.closed(tcp->base.closed_arg);
        free(tcp);
}

static void run_gone(struct bulk_event *event)
{
        struct tcp_peer *tcp = CONTAINER_OF(event, struct tcp_peer, gone);

        uv_close((uv_handle_t *)&tcp->queue.idle, on_idle_closed);
}

static void finish_if_idle(struct tcp_peer *tcp)
{
        if (tcp->base.closing && tcp->writes == 0)
                bulk_queue_push(&tcp->queue, &tcp->gone);
}

static void tcp_close(struct bulk_peer *peer, void (*closed)(void *arg), void *arg)
{
        struct tcp_peer *tcp = tcp_of(peer);

        list_remove(&tcp->begin.link);
        if (tcp->current)
                bulk_base_drop(&tcp->base, STEAL(tcp->current));
        bulk_base_begin_close(&tcp->base, closed, arg);
        uv_read_stop((uv_stream_t *)&tcp->channel->tcp);
        channel_close(STEAL(tcp->channel)); /* pending writes come back as cancelled */
        finish_if_idle(tcp);
}

/* ---- sending ---- */

static void on_written(uv_write_t *request, int status)
{
        struct tcp_send *send = CONTAINER_OF(request, struct tcp_send, request);
        struct tcp_peer *tcp = send->peer;

        if (status == 0)
                tcp->base.peer.sent_bytes += send->n;
        else if (status != UV_ECANCELED)
                bulk_base_break(&tcp->base, "the bulk connection failed");
        bulk_op_end(&tcp->queue, &send->op,
                    status == 0 ? 0 : (tcp->base.closing ? -ECANCELED : -EIO));
        tcp->writes--;
        finish_if_idle(tcp);
        bulk_queue_drain(&tcp->queue);
}

static int tcp_send(struct bulk_peer *peer, uint64_t transfer, const void *p, size_t n,
                    bulk_done *done, void *arg)
{
        struct tcp_peer *tcp = tcp_of(peer);
        CLEANUP(cleanup_free) struct tcp_send *send = NULL;
        uv_buf_t bufs[2];
        int r = bulk_base_usable(&tcp->base);

        if (r)
                return r;
        send = calloc(1, sizeof *send);
        if (!send)
                return -ENOMEM;
        bulk_op_init(&send->op, done, arg);
        send->peer = tcp;
        send->n = n;
        header_write(send->header, tcp->token, transfer, n, tcp->send_sequence,
                     tcp->channel->send_key);
        bufs[0].base = (char *)send->header;
        bufs[0].len = sizeof send->header;
        bufs[1].base = (char *)p;
        bufs[1].len = n;
        r = uv_write(&send->request, (uv_stream_t *)&tcp->channel->tcp, bufs, n ? 2 : 1,
                     on_written);
        if (r)
                return r;
        tcp->send_sequence++;
        tcp->writes++;
        (void)STEAL(send);
        return 0;
}

static const struct bulk_ops tcp_ops = {
        .name = "tcp",
        .send = tcp_send,
        .expect = bulk_base_expect,
        .forget = tcp_forget,
        .close = tcp_close,
};

int bulk_tcp_peer_new(struct channel *channel, uint64_t token, void (*broken)(void *, const char *),
                      void *arg, struct bulk_peer **ret)
{
        struct tcp_peer *tcp = calloc(1, sizeof *tcp);

        if (!tcp)
                return -ENOMEM;
        bulk_base_init(&tcp->base, &tcp_ops, &tcp->queue, broken, arg);
        bulk_queue_init(&tcp->queue, channel->tcp.loop);
        tcp->channel = channel;
        tcp->token = token;
        tcp->begin.run = run_begin;
        list_init(&tcp->begin.link);
        tcp->gone.run = run_gone;
        list_init(&tcp->gone.link);
        channel->tcp.data = tcp;
        uv_tcp_nodelay(&channel->tcp, 1);
        bulk_queue_push(&tcp->queue, &tcp->begin);
        *ret = &tcp->base.peer;
        return 0;
}
