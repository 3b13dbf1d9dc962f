/*
 * The bulk path over an authenticated TCP connection of its own.
 *
 * A payload is a header of 56 bytes and then its bytes.  The header has token, transfer and length
 * (little-endian), the tag of the payload's bytes, and a tag of all these.  Tags are those of
 * AES-256-GCM (NIST SP 800-38D), or of ChaCha20-Poly1305 (RFC 8439), which takes two to four times
 * as long, if one of the CPUs does not compute AES.  They are under the directional key of the
 * channel, and no two of them on the wire have one nonce: a nonce says how many headers came
 * before, and whether the tag is the header's or the payload's.  So nobody on the wire can start,
 * replay, leave out, reorder, redirect or, unless the seal is BULK_PLAIN, change a payload.
 * BULK_AUTHENTICATED has a payload's bytes as additional data: they travel as they are.
 * BULK_ENCRYPTED encrypts them.
 *
 * The sender hands the kernel the payloads that wait, up to BATCH of them and BATCH_BYTES, or one,
 * in one call, without copying what it does not encrypt.  It seals a payload only then, while the
 * kernel carries the ones before.  The receiver reads a stage full while it waits for a header, and
 * the rest of a payload straight to where it lands; there the payload is verified, and decrypted,
 * before the receive ends.
 *
 * A header of transfer BEAT and no bytes is sent in every beat in which nothing else is on its way,
 * so that a connection that went silent, or lost its last payload, is noticed.
 *
 * Invariants: `remaining` bytes of the current payload are still to come; `current` is
 * where they land, or NULL where they are dropped.  While `writing`, the rest of the first payload
 * in `sends` is in uv_write(), of at most two buffers: for more than four it takes memory, and if
 * there is none, the loop never ends.  The peer is gone when it does not write.
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
        BATCH = 16, /* a call costs as much as 10 KiB */
        BATCH_BYTES = 256 << 10,
};
static_assert((int)CHANNEL_KEY == (int)crypto_aead_chacha20poly1305_ietf_KEYBYTES, "");
static_assert((int)CHANNEL_KEY == (int)crypto_aead_aes256gcm_KEYBYTES, "");
static_assert((int)TAG == (int)crypto_aead_aes256gcm_ABYTES, "");
static_assert((int)NONCE == (int)crypto_aead_aes256gcm_NPUBBYTES, "");
enum part { PART_HEADER, PART_PAYLOAD };
#define BEAT UINT64_MAX

struct tcp_peer {
        struct bulk_base base;
        struct bulk_queue queue;
        struct channel *channel;
        enum bulk_seal seal;
        bool aes;
        crypto_aead_aes256gcm_state send_aes, receive_aes; /* the channel's keys, expanded */
        uv_timer_t beat;
        uint64_t token, send_sequence, receive_sequence;
        struct bulk_event begin; /* handles the early bytes, then starts to read */
        struct bulk_event gone;
        struct bulk_event write; /* hands over what waits */
        struct list sends;
        bool writing;
        uv_write_t request;
        /* What is encrypted: payloads of one call.  `larger` takes the place of `room`, which is in
         * use, for the next ones.  A peer that sends nothing has neither. */
        uint8_t *room, *larger;
        size_t room_bytes; /* of the last one made */

        struct receive *current;
        uint64_t remaining, current_sequence;
        uint8_t current_tag[TAG];
        uint8_t header[HEADER];
        size_t header_length;
        uint8_t stage[STAGE];
};

struct tcp_send {
        struct bulk_op op;
        struct list link; /* sends */
        uint64_t transfer;
        const uint8_t *p;
        size_t n;
        bool sealed;              /* its header is made */
        const uint8_t *encrypted; /* in the peer's room; NULL: it goes as it is */
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

/* The tag of n bytes: additional data, unless they are encrypted to `to`. */
static void seal_bytes(const struct tcp_peer *tcp, uint8_t tag[static TAG], const void *p, size_t n,
                       uint8_t *to, uint64_t sequence, enum part part)
{
        const uint8_t *plain = to ? p : NULL, *additional = to ? NULL : p;
        size_t n_plain = to ? n : 0, n_additional = to ? 0 : n;
        uint8_t nonce[NONCE], nothing[1];

        make_nonce(nonce, sequence, part);
        if (tcp->aes)
                crypto_aead_aes256gcm_encrypt_detached_afternm(to ? to : nothing, tag, NULL, plain,
                                                               n_plain, additional, n_additional,
                                                               NULL, nonce, &tcp->send_aes);
        else
                crypto_aead_chacha20poly1305_ietf_encrypt_detached(
                        to ? to : nothing, tag, NULL, plain, n_plain, additional, n_additional,
                        NULL, nonce, tcp->channel->send_key);
}

/* False: these are not the bytes that were sealed.  encrypted: they are decrypted where they are.
 */
static bool open_bytes(const struct tcp_peer *tcp, const uint8_t tag[static TAG], uint8_t *p,
                       size_t n, bool encrypted, uint64_t sequence, enum part part)
{
        uint8_t nonce[NONCE], nothing[1] = { 0 };
        uint8_t *plain = encrypted ? p : nothing, *additional = encrypted ? NULL : p;
        size_t n_plain = encrypted ? n : 0, n_additional = encrypted ? 0 : n;

        make_nonce(nonce, sequence, part);
        return (tcp->aes ? crypto_aead_aes256gcm_decrypt_detached_afternm(
                                   plain, NULL, plain, n_plain, tag, additional, n_additional,
                                   nonce, &tcp->receive_aes)
                         : crypto_aead_chacha20poly1305_ietf_decrypt_detached(
                                   plain, NULL, plain, n_plain, tag, additional, n_additional,
                                   nonce, tcp->channel->receive_key)) == 0;
}

/* Opens a complete header; -EPROTO: the peer is broken. */
static int header_open(struct tcp_peer *tcp)
{
        uint64_t fields[3];
        int r;

        /* this also fails out of sequence */
        if (!open_bytes(tcp, tcp->header + FIELDS + TAG, tcp->header, FIELDS + TAG, false,
                        tcp->receive_sequence, PART_HEADER)) {
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
        bool encrypted = tcp->seal == BULK_ENCRYPTED && receive->n > 0;

        return tcp->seal == BULK_PLAIN ||
               open_bytes(tcp, tcp->current_tag, receive->p, receive->n, encrypted,
                          tcp->current_sequence, PART_PAYLOAD);
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

/* ---- ends of sends ---- */

/* The first n of them, or all. */
static void sends_end(struct tcp_peer *tcp, size_t n, int status)
{
        for (; n > 0 && !list_empty(&tcp->sends); n--) {
                struct tcp_send *send = CONTAINER_OF(tcp->sends.next, struct tcp_send, link);

                list_remove(&send->link);
                if (status == 0)
                        tcp->base.peer.sent_bytes += send->n;
                bulk_op_end(&tcp->queue, &send->op, status);
        }
}

/* ---- closing ---- */

/* Nothing is on its way. */
static void room_free(struct tcp_peer *tcp)
{
        free(STEAL(tcp->room));
        free(STEAL(tcp->larger));
        tcp->room_bytes = 0;
}

static void on_beat_closed(uv_handle_t *handle)
{
        struct tcp_peer *tcp = handle->data;

        bulk_base_deinit(&tcp->base);
        tcp->base.closed(tcp->base.closed_arg);
        sodium_memzero(&tcp->send_aes, sizeof tcp->send_aes);
        sodium_memzero(&tcp->receive_aes, sizeof tcp->receive_aes);
        room_free(tcp);
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
        if (tcp->base.closing && !tcp->writing)
                bulk_queue_push(&tcp->queue, &tcp->gone);
}

static void tcp_close(struct bulk_peer *peer, void (*closed)(void *arg), void *arg)
{
        struct tcp_peer *tcp = tcp_of(peer);

        list_remove(&tcp->begin.link);
        list_remove(&tcp->write.link);
        uv_timer_stop(&tcp->beat);
        if (tcp->current)
                bulk_base_drop(&tcp->base, STEAL(tcp->current));
        bulk_base_begin_close(&tcp->base, closed, arg);
        uv_read_stop((uv_stream_t *)&tcp->channel->tcp);
        channel_close(STEAL(tcp->channel)); /* cancels the write */
        if (!tcp->writing)
                sends_end(tcp, SIZE_MAX, -ECANCELED);
        finish_if_idle(tcp);
}

/* ---- sending ---- */

/* Hands over what waits, in this round of the loop or the next one. */
static void sends_wake(struct tcp_peer *tcp)
{
        if (!tcp->writing && !list_empty(&tcp->sends) && list_empty(&tcp->write.link))
                bulk_queue_push(&tcp->queue, &tcp->write);
}

static void sends_fail(struct tcp_peer *tcp)
{
        bulk_base_break(&tcp->base, "the bulk connection failed");
        sends_end(tcp, SIZE_MAX, -EIO);
}

static void on_written(uv_write_t *request, int status)
{
        struct tcp_peer *tcp = CONTAINER_OF(request, struct tcp_peer, request);

        tcp->writing = false;
        if (status == 0)
                sends_end(tcp, 1, 0);
        if (tcp->base.closing)
                sends_end(tcp, SIZE_MAX, -ECANCELED);
        else if (status)
                sends_fail(tcp);
        finish_if_idle(tcp);
        sends_wake(tcp);
        bulk_queue_drain(&tcp->queue);
}

/* Puts what follows the first `skip` bytes of a payload with its header into bufs; returns their
 * number. */
static unsigned bufs_of(const struct tcp_send *send, size_t skip, uv_buf_t bufs[static 2])
{
        const uint8_t *p = send->encrypted ? send->encrypted : send->p;
        size_t of_header = skip < HEADER ? skip : HEADER, of_p = skip - of_header;
        unsigned n = 0;

        /* not uv_buf_init(): its length is an unsigned int */
        if (of_header < HEADER)
                bufs[n++] = (uv_buf_t){ (char *)send->header + of_header, HEADER - of_header };
        if (of_p < send->n)
                bufs[n++] = (uv_buf_t){ (char *)p + of_p, send->n - of_p };
        return n;
}

/* Makes the header; encrypts the payload, if the seal asks for that, to its place in the room. */
static void send_seal(struct tcp_peer *tcp, struct tcp_send *send, size_t place)
{
        const uint64_t fields[] = { htole64(tcp->token), htole64(send->transfer),
                                    htole64(send->n) };
        uint8_t *tag = send->header + FIELDS;
        uint8_t *encrypted = tcp->seal == BULK_ENCRYPTED && send->n > 0 ? tcp->room + place : NULL;

        static_assert(sizeof fields == FIELDS, "");
        memcpy(send->header, fields, sizeof fields);
        if (tcp->seal != BULK_PLAIN)
                seal_bytes(tcp, tag, send->p, send->n, encrypted, tcp->send_sequence, PART_PAYLOAD);
        seal_bytes(tcp, tag + TAG, send->header, FIELDS + TAG, NULL, tcp->send_sequence,
                   PART_HEADER);
        tcp->send_sequence++;
        send->encrypted = encrypted;
        send->sealed = true;
}

/* Room for a payload that will be encrypted, when those before it have gone. */
static int room_make(struct tcp_peer *tcp, size_t n)
{
        size_t bytes = n > BATCH_BYTES ? n : BATCH_BYTES;
        uint8_t *room;

        if (tcp->seal != BULK_ENCRYPTED || n == 0 || bytes <= tcp->room_bytes)
                return 0;
        room = malloc(bytes);
        if (!room)
                return -ENOMEM;
        free(tcp->larger);
        tcp->larger = room;
        tcp->room_bytes = bytes;
        return 0;
}

/* The next payloads for one call: those that are sealed and were not taken, or others, which it
 * seals. */
static unsigned sends_take(struct tcp_peer *tcp, uv_buf_t bufs[static 2 * BATCH], unsigned *ret_n)
{
        bool sealed = !list_empty(&tcp->sends) &&
                      CONTAINER_OF(tcp->sends.next, struct tcp_send, link)->sealed;
        unsigned n_bufs = 0, n = 0;
        size_t bytes = 0;

        if (!sealed && tcp->larger) {
                free(tcp->room);
                tcp->room = STEAL(tcp->larger);
        }
        list_for_each (&tcp->sends, item) {
                struct tcp_send *send = CONTAINER_OF(item, struct tcp_send, link);

                if (n == BATCH || (n > 0 && bytes + send->n > BATCH_BYTES) ||
                    send->sealed != sealed)
                        break;
                if (!sealed)
                        send_seal(tcp, send, bytes);
                n_bufs += bufs_of(send, 0, bufs + n_bufs);
                bytes += send->n;
                n++;
        }
        *ret_n = n;
        return n_bufs;
}

static void run_write(struct bulk_event *event)
{
        struct tcp_peer *tcp = CONTAINER_OF(event, struct tcp_peer, write);
        uv_stream_t *stream = (uv_stream_t *)&tcp->channel->tcp;
        uv_buf_t bufs[2 * BATCH];
        unsigned n, n_bufs = sends_take(tcp, bufs, &n);
        int64_t took;

        if (n == 0) /* they have failed meanwhile */
                return;
        took = uv_try_write(stream, bufs, n_bufs);
        if (took == UV_EAGAIN)
                took = 0;
        for (; n > 0; n--) {
                const struct tcp_send *send = CONTAINER_OF(tcp->sends.next, struct tcp_send, link);

                if (took < 0 || (uint64_t)took < HEADER + send->n)
                        break;
                took -= (int64_t)(HEADER + send->n);
                sends_end(tcp, 1, 0);
        }
        if (n > 0 && took >= 0) {
                n_bufs = bufs_of(CONTAINER_OF(tcp->sends.next, struct tcp_send, link), (size_t)took,
                                 bufs);
                tcp->writing = uv_write(&tcp->request, stream, bufs, n_bufs, on_written) == 0;
        }
        if (n > 0 && !tcp->writing)
                sends_fail(tcp);
        sends_wake(tcp);
}

static int tcp_send(struct bulk_peer *peer, uint64_t transfer, const void *p, size_t n,
                    bulk_done *done, void *arg)
{
        struct tcp_peer *tcp = tcp_of(peer);
        CLEANUP(cleanup_free) struct tcp_send *send = NULL;
        int r = bulk_base_usable(&tcp->base);

        if (r)
                return r;
        send = calloc(1, sizeof *send);
        if (!send || room_make(tcp, n))
                return -ENOMEM;
        bulk_op_init(&send->op, done, arg);
        send->transfer = transfer;
        send->p = p;
        send->n = n;
        list_insert(&tcp->sends, &STEAL(send)->link);
        sends_wake(tcp);
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
        if (tcp->base.peer.silent_ms >= BULK_SILENCE_MS) {
                bulk_base_break(&tcp->base, "nothing came over the bulk connection for 10 s");
        } else if (list_empty(&tcp->sends)) {
                room_free(tcp);
                (void)tcp_send(&tcp->base.peer, BEAT, NULL, 0, on_beat_sent, NULL);
        }
}

static const struct bulk_ops tcp_ops = {
        .name = "tcp",
        .send = tcp_send,
        .expect = bulk_base_expect,
        .forget = tcp_forget,
        .close = tcp_close,
};

bool bulk_tcp_has_aes(void)
{
        return sodium_init() >= 0 && crypto_aead_aes256gcm_is_available();
}

int bulk_tcp_peer_new(struct channel *channel, uint64_t token, enum bulk_seal seal, bool aes,
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
        tcp->aes = aes;
        if (aes) {
                crypto_aead_aes256gcm_beforenm(&tcp->send_aes, channel->send_key);
                crypto_aead_aes256gcm_beforenm(&tcp->receive_aes, channel->receive_key);
        }
        tcp->base.peer.checked = seal == BULK_AUTHENTICATED;
        uv_timer_init(channel->tcp.loop, &tcp->beat);
        tcp->beat.data = tcp;
        uv_timer_start(&tcp->beat, on_beat, BULK_BEAT_MS, BULK_BEAT_MS);
        tcp->begin.run = run_begin;
        list_init(&tcp->begin.link);
        tcp->gone.run = run_gone;
        list_init(&tcp->gone.link);
        tcp->write.run = run_write;
        list_init(&tcp->write.link);
        list_init(&tcp->sends);
        channel->tcp.data = tcp;
        uv_tcp_nodelay(&channel->tcp, 1);
        bulk_queue_push(&tcp->queue, &tcp->begin);
        *ret = &tcp->base.peer;
        return 0;
}
