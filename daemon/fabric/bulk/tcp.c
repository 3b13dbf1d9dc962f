/*
 * The bulk path over an authenticated TCP connection of its own.
 *
 * A payload is a header of 56 bytes and then its bytes.  The header has token, transfer and length
 * (little-endian), the tag of the payload's bytes, and a tag of all these.  Tags are those of
 * ChaCha20-Poly1305 (IETF) under the directional key of the channel; the nonce says how many
 * headers came before, and whether the tag is the header's or the payload's.  So nobody on the wire
 * can start, replay, leave out, reorder, redirect or, unless the seal is BULK_PLAIN, change a
 * payload.  BULK_AUTHENTICATED has a payload's bytes as additional data: they travel as they are.
 * BULK_ENCRYPTED encrypts them.
 *
 * The sender hands header and payload to the kernel in one call, without copying what it does not
 * encrypt.  The receiver reads a stage full while it waits for a header, and the rest of a payload
 * straight to where it lands; there the payload is verified, and decrypted, before the receive
 * ends.
 *
 * A header of transfer BEAT and no bytes is sent in every beat in which nothing else is on its way,
 * so that a connection that went silent, or lost its last payload, is noticed.
 *
 * Invariants: `remaining` bytes of the current payload are still to come; `current` is
 * where they land, or NULL where they are dropped.  The peer is gone when no write is left.
 */
#include "daemon/fabric/bulk/common.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"

enum {
        FIELDS = 3 * sizeof(uint64_t),
        TAG = crypto_aead_chacha20poly1305_ietf_ABYTES,
        NONCE = crypto_aead_chacha20poly1305_ietf_NPUBBYTES,
        HEADER = FIELDS + 2 * TAG,
        STAGE = 64 << 10,
};
static_assert((int)CHANNEL_KEY == (int)crypto_aead_chacha20poly1305_ietf_KEYBYTES, "");
enum part { PART_HEADER, PART_PAYLOAD };
#define BEAT UINT64_MAX

struct tcp_peer {
        struct bulk_base base;
        struct bulk_queue queue;
        struct channel *channel;
        enum bulk_seal seal;
        uv_timer_t beat;
        uint64_t token, send_sequence, receive_sequence;
        struct bulk_event begin; /* handles the early bytes, then starts to read */
        struct bulk_event gone;
        size_t writes;

        struct receive *current;
        uint64_t remaining, current_sequence;
        uint8_t current_tag[TAG];
        uint8_t header[HEADER];
        size_t header_length;
        uint8_t stage[STAGE];
};

struct tcp_send {
        struct bulk_op op;
        uv_write_t request;
        struct tcp_peer *peer;
        size_t n;
        uint8_t *encrypted;
        uint8_t header[HEADER];
};

static struct tcp_peer *tcp_of(struct bulk_peer *peer)
{
        return CONTAINER_OF(peer, struct tcp_peer, base.peer);
}

/* ---- headers ---- */

static void make_nonce(uint8_t nonce[static NONCE], uint64_t sequence, enum part part)
{
        memset(nonce, 0, NONCE);
        sequence = htole64(sequence);
        memcpy(nonce, &sequence, sizeof sequence);
        nonce[sizeof sequence] = (uint8_t)part;
}

/* The tag of n bytes that are sent in the clear. */
static void sign(uint8_t tag[static TAG], const void *p, size_t n, uint64_t sequence,
                 enum part part, const uint8_t key[static CHANNEL_KEY])
{
        uint8_t nonce[NONCE], nothing[1];

        make_nonce(nonce, sequence, part);
        crypto_aead_chacha20poly1305_ietf_encrypt_detached(nothing, tag, NULL, NULL, 0, p, n, NULL,
                                                           nonce, key);
}

static bool is_signed(const uint8_t tag[static TAG], const void *p, size_t n, uint64_t sequence,
                      enum part part, const uint8_t key[static CHANNEL_KEY])
{
        uint8_t nonce[NONCE], nothing[1] = { 0 };

        make_nonce(nonce, sequence, part);
        return crypto_aead_chacha20poly1305_ietf_decrypt_detached(nothing, NULL, nothing, 0, tag, p,
                                                                  n, nonce, key) == 0;
}

/* Opens a complete header; -EPROTO: the peer is broken. */
static int header_open(struct tcp_peer *tcp)
{
        uint64_t fields[3];
        int r;

        /* this also fails out of sequence */
        if (!is_signed(tcp->header + FIELDS + TAG, tcp->header, FIELDS + TAG, tcp->receive_sequence,
                       PART_HEADER, tcp->channel->receive_key)) {
                bulk_base_break(&tcp->base,
                                "a payload's header is forged, damaged or out of sequence");
                return -EPROTO;
        }
        memcpy(fields, tcp->header, sizeof fields);
        if (le64toh(fields[0]) != tcp->token) {
                bulk_base_break(&tcp->base, "it sent a payload with another token");
                return -EPROTO;
        }
        tcp->header_length = 0;
        tcp->current_sequence = tcp->receive_sequence++;
        if (le64toh(fields[1]) == BEAT)
                return 0;
        memcpy(tcp->current_tag, tcp->header + FIELDS, TAG);
        tcp->remaining = le64toh(fields[2]);
        r = bulk_base_arrive(&tcp->base, le64toh(fields[1]), tcp->remaining, &tcp->current);
        return r < 0 ? r : 0;
}

/* ---- receiving ---- */

static uint8_t *destination(const struct tcp_peer *tcp)
{
        return tcp->current->p + (tcp->current->n - tcp->remaining);
}

/* The current payload is complete.  False: these are not the bytes that were sent. */
static bool payload_open(const struct tcp_peer *tcp)
{
        const struct receive *receive = tcp->current;
        const uint8_t *key = tcp->channel->receive_key;
        uint8_t nonce[NONCE];

        if (tcp->seal == BULK_PLAIN)
                return true;
        if (tcp->seal == BULK_AUTHENTICATED || receive->n == 0)
                return is_signed(tcp->current_tag, receive->p, receive->n, tcp->current_sequence,
                                 PART_PAYLOAD, key);
        make_nonce(nonce, tcp->current_sequence, PART_PAYLOAD);
        return crypto_aead_chacha20poly1305_ietf_decrypt_detached(receive->p, NULL, receive->p,
                                                                  receive->n, tcp->current_tag,
                                                                  NULL, 0, nonce, key) == 0;
}

/* n more bytes of the current payload have come. */
static void advance(struct tcp_peer *tcp, uint64_t n)
{
        tcp->remaining -= n;
        if (tcp->remaining > 0 || !tcp->current)
                return;
        if (payload_open(tcp))
                bulk_base_landed(&tcp->base, STEAL(tcp->current), 0);
        else
                bulk_base_break(&tcp->base, "a payload was forged, or damaged on its way");
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

        if (n > 0)
                tcp->base.peer.silent_ms = 0;
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

/* Drops the rest of a payload that has begun to come. */
static void tcp_forget(struct bulk_peer *peer, uint64_t transfer)
{
        struct tcp_peer *tcp = tcp_of(peer);

        if (tcp->current && tcp->current->transfer == transfer)
                bulk_base_drop(&tcp->base, STEAL(tcp->current));
        else
                bulk_base_forget(peer, transfer);
}

/* ---- closing ---- */

static void on_beat_closed(uv_handle_t *handle)
{
        struct tcp_peer *tcp = handle->data;

        bulk_base_deinit(&tcp->base);
        tcp->base.closed(tcp->base.closed_arg);
        free(tcp);
}

static void on_idle_closed(uv_handle_t *handle)
{
        struct bulk_queue *queue = handle->data;
        struct tcp_peer *tcp = CONTAINER_OF(queue, struct tcp_peer, queue);

        uv_close((uv_handle_t *)&tcp->beat, on_beat_closed);
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
        uv_timer_stop(&tcp->beat);
        if (tcp->current)
                bulk_base_drop(&tcp->base, STEAL(tcp->current));
        bulk_base_begin_close(&tcp->base, closed, arg);
        uv_read_stop((uv_stream_t *)&tcp->channel->tcp);
        channel_close(STEAL(tcp->channel)); /* cancels pending writes */
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
        free(send->encrypted);
        bulk_op_end(&tcp->queue, &send->op,
                    status == 0 ? 0 : (tcp->base.closing ? -ECANCELED : -EIO));
        tcp->writes--;
        finish_if_idle(tcp);
        bulk_queue_drain(&tcp->queue);
}

/* Writes the header of payload p; encrypts p into send->encrypted if the seal asks for that. */
static int send_seal(struct tcp_send *send, uint64_t transfer, const void *p)
{
        const struct tcp_peer *tcp = send->peer;
        const uint8_t *key = tcp->channel->send_key;
        const uint64_t fields[] = { htole64(tcp->token), htole64(transfer), htole64(send->n) };
        uint8_t nonce[NONCE], *tag = send->header + FIELDS;

        static_assert(sizeof fields == FIELDS, "");
        memcpy(send->header, fields, sizeof fields);
        if (tcp->seal != BULK_PLAIN && (tcp->seal == BULK_AUTHENTICATED || send->n == 0)) {
                sign(tag, p, send->n, tcp->send_sequence, PART_PAYLOAD, key);
        } else if (tcp->seal == BULK_ENCRYPTED) {
                send->encrypted = malloc(send->n);
                if (!send->encrypted)
                        return -ENOMEM;
                make_nonce(nonce, tcp->send_sequence, PART_PAYLOAD);
                crypto_aead_chacha20poly1305_ietf_encrypt_detached(
                        send->encrypted, tag, NULL, p, send->n, NULL, 0, NULL, nonce, key);
        }
        sign(tag + TAG, send->header, FIELDS + TAG, tcp->send_sequence, PART_HEADER, key);
        return 0;
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
        r = send_seal(send, transfer, p);
        if (r)
                return r;
        bufs[0].base = (char *)send->header;
        bufs[0].len = sizeof send->header;
        bufs[1].base = send->encrypted ? (char *)send->encrypted : (char *)p;
        bufs[1].len = n;
        r = uv_write(&send->request, (uv_stream_t *)&tcp->channel->tcp, bufs, n ? 2 : 1,
                     on_written);
        if (r) {
                free(send->encrypted);
                return r;
        }
        tcp->send_sequence++;
        tcp->writes++;
        (void)STEAL(send);
        return 0;
}

/* ---- time ---- */

static void on_beat_sent(void *arg, int status)
{
}

static void on_beat(uv_timer_t *timer)
{
        struct tcp_peer *tcp = timer->data;

        tcp->base.peer.silent_ms += BULK_BEAT_MS;
        if (tcp->base.peer.silent_ms >= BULK_SILENCE_MS)
                bulk_base_break(&tcp->base, "nothing came over the bulk connection for 10 s");
        else if (tcp->writes == 0)
                (void)tcp_send(&tcp->base.peer, BEAT, NULL, 0, on_beat_sent, NULL);
}

static const struct bulk_ops tcp_ops = {
        .name = "tcp",
        .send = tcp_send,
        .expect = bulk_base_expect,
        .forget = tcp_forget,
        .close = tcp_close,
};

int bulk_tcp_peer_new(struct channel *channel, uint64_t token, enum bulk_seal seal,
                      void (*broken)(void *, const char *), void *arg, struct bulk_peer **ret)
{
        struct tcp_peer *tcp = calloc(1, sizeof *tcp);

        if (!tcp)
                return -ENOMEM;
        bulk_base_init(&tcp->base, &tcp_ops, &tcp->queue, broken, arg);
        bulk_queue_init(&tcp->queue, channel->tcp.loop);
        tcp->channel = channel;
        tcp->token = token;
        tcp->seal = seal;
        tcp->base.peer.checked = seal == BULK_AUTHENTICATED;
        uv_timer_init(channel->tcp.loop, &tcp->beat);
        tcp->beat.data = tcp;
        uv_timer_start(&tcp->beat, on_beat, BULK_BEAT_MS, BULK_BEAT_MS);
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
