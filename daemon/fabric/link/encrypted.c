/*
 * encrypted.c - see encrypted.h.
 *
 * Reading begins on the first tick of the timer, so that link_new() runs no callback for bytes that
 * came right behind the handshake.  An ending link closes its timer, then its connection, which
 * cancels the writes.  The link is freed when the connection is closed.
 */
#include "daemon/fabric/link/encrypted.h"

#include "proto/cleanup.h"
#include "proto/frame.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum {
        HEADER = crypto_secretstream_xchacha20poly1305_HEADERBYTES,
        OVERHEAD = crypto_secretstream_xchacha20poly1305_ABYTES,
        READ_BUFFER = 64 << 10,
        WHY = 160,
};
/* Tags of the stream; bit 1 alone would rekey. */
enum tag {
        TAG_MESSAGE = crypto_secretstream_xchacha20poly1305_TAG_MESSAGE,
        TAG_PING = 0x10,
        TAG_PONG = 0x20,
        TAG_GOODBYE = crypto_secretstream_xchacha20poly1305_TAG_FINAL,
};

/* Bytes on their way to the socket. */
struct frame {
        uv_write_t request;
        struct link *link;
        size_t size;
        uint8_t bytes[];
};

struct link {
        struct channel *channel;
        struct link_options options;
        struct link_events events;
        uv_timer_t timer;
        struct link_stats stats;
        bool begun, ending;
        char why[WHY];

        crypto_secretstream_xchacha20poly1305_state send, receive;
        uint8_t header[HEADER]; /* of the peer's stream */
        size_t header_size;
        struct frame_reader reader;

        uint32_t silent_ms;
        uint64_t ping, ping_sent_ns; /* the last ping: its number, and when it was sent */
        bool ping_open;

        uint8_t buffer[READ_BUFFER];
};

static void link_break(struct link *link, const char *format, ...)
        __attribute__((format(printf, 2, 3)));

/* ---- sending ---- */

static struct frame *frame_new(struct link *link, size_t size)
{
        struct frame *frame = malloc(sizeof *frame + size);
        if (!frame)
                return NULL;
        frame->link = link;
        frame->size = size;
        return frame;
}

static void on_written(uv_write_t *request, int status)
{
        struct frame *frame = CONTAINER_OF(request, struct frame, request);
        struct link *link = frame->link;
        link->stats.queued_bytes -= sizeof *frame + frame->size;
        free(frame);
        if (status < 0)
                link_break(link, "cannot send: %s", uv_strerror(status));
}

/* Tries to write at once: a completion would cost the loop a turn. */
static int link_write(struct link *link, struct frame *frame)
{
        uv_stream_t *stream = (uv_stream_t *)&link->channel->tcp;
        uv_buf_t buffer = uv_buf_init((char *)frame->bytes, (unsigned)frame->size);
        size_t size = frame->size;
        int r = uv_try_write(stream, &buffer, 1);

        link->stats.sent_bytes += size;
        if (r == (int)size) {
                free(frame);
                return 0;
        }
        buffer.base += r > 0 ? r : 0;
        buffer.len -= r > 0 ? (size_t)r : 0;
        r = uv_write(&frame->request, stream, &buffer, 1, on_written);
        if (r < 0)
                free(frame);
        else
                link->stats.queued_bytes += sizeof *frame + size;
        return r;
}

static size_t frame_size(size_t n)
{
        return FRAME_HEADER + OVERHEAD + n;
}

static void link_encrypt(struct link *link, enum tag tag, const void *p, size_t n, uint8_t *ret)
{
        frame_write_header(ret, (uint32_t)(OVERHEAD + n));
        crypto_secretstream_xchacha20poly1305_push(&link->send, ret + FRAME_HEADER, NULL, p, n, ret,
                                                   FRAME_HEADER, (uint8_t)tag);
}

static int link_send_tagged(struct link *link, enum tag tag, const void *p, size_t n)
{
        struct frame *frame;
        if (link->ending)
                return -ENOTCONN;
        frame = frame_new(link, frame_size(n));
        if (!frame)
                return -ENOMEM;
        if (link->stats.queued_bytes + sizeof *frame + frame->size > link->options.queue_max) {
                free(frame);
                link_break(link, "more than %zu MiB wait to be sent: the other side does not read",
                           link->options.queue_max >> 20);
                return -ENOTCONN;
        }
        link_encrypt(link, tag, p, n, frame->bytes);
        int r = link_write(link, frame);
        if (r == 0)
                return 0;
        link_break(link, "cannot send: %s", uv_strerror(r)); /* the stream has a hole now */
        return -ENOTCONN;
}

int link_send(struct link *link, const void *p, size_t n)
{
        return n > link->options.message_max ? -EMSGSIZE
                                             : link_send_tagged(link, TAG_MESSAGE, p, n);
}

/* ---- the end ---- */

static void on_tcp_closed(uv_handle_t *handle)
{
        struct link *link = handle->data;
        struct link_events events = link->events;
        struct link_stats last = link->stats;
        char why[WHY];
        assert(last.queued_bytes == 0);
        memcpy(why, link->why, sizeof why);
        channel_free(link->channel);
        frame_reader_deinit(&link->reader);
        sodium_memzero(link, sizeof *link);
        free(link);
        events.ended(events.arg, &last, why);
}

static void on_timer_closed(uv_handle_t *handle)
{
        struct link *link = CONTAINER_OF(handle, struct link, timer);
        uv_close((uv_handle_t *)&link->channel->tcp, on_tcp_closed);
}

/* A peer's text goes into our messages: printable ASCII only. */
static void make_printable(char *text)
{
        for (; *text; text++) {
                if (*text < ' ' || *text > '~')
                        *text = '?';
        }
}

static void link_end(struct link *link)
{
        make_printable(link->why);
        link->ending = true;
        uv_read_stop((uv_stream_t *)&link->channel->tcp);
        uv_close((uv_handle_t *)&link->timer, on_timer_closed);
}

static void link_break(struct link *link, const char *format, ...)
{
        va_list args;
        if (link->ending)
                return;
        va_start(args, format);
        vsnprintf(link->why, sizeof link->why, format, args);
        va_end(args);
        link_end(link);
}

void link_cut(struct link *link, const char *why)
{
        uint8_t goodbye[FRAME_HEADER + OVERHEAD + WHY];
        if (link->ending)
                return;
        snprintf(link->why, sizeof link->why, "%s", why);
        size_t n = strlen(link->why);
        link_encrypt(link, TAG_GOODBYE, link->why, n, goodbye);
        uv_buf_t buffer = uv_buf_init((char *)goodbye, (unsigned)frame_size(n));
        if (uv_try_write((uv_stream_t *)&link->channel->tcp, &buffer, 1) > 0)
                link->stats.sent_bytes += buffer.len;
        link_end(link);
}

bool link_is_ending(const struct link *link)
{
        return link->ending;
}

/* ---- receiving ---- */

static void take_ping(struct link *link, const uint8_t *p, size_t n)
{
        if (n != sizeof link->ping)
                link_break(link, "it sent a malformed heartbeat");
        else if (link_send_tagged(link, TAG_PONG, p, n) == -ENOMEM)
                link_break(link, "out of memory");
}

static void take_pong(struct link *link, const uint8_t *p, size_t n)
{
        uint64_t number;
        if (n != sizeof number) {
                link_break(link, "it sent a malformed heartbeat");
                return;
        }
        memcpy(&number, p, sizeof number);
        if (link->ping_open && le64toh(number) == link->ping) {
                link->stats.round_trip_ns = uv_hrtime() - link->ping_sent_ns;
                link->ping_open = false;
        }
}

static void link_dispatch(struct link *link, uint8_t tag, const uint8_t *p, size_t n)
{
        switch (tag) {
        case TAG_MESSAGE:
                link->events.message(link->events.arg, p, n);
                break;
        case TAG_PING:
                take_ping(link, p, n);
                break;
        case TAG_PONG:
                take_pong(link, p, n);
                break;
        case TAG_GOODBYE:
                link_break(link, "it ended the link: %.*s", n < WHY ? (int)n : WHY,
                           (const char *)p);
                break;
        default:
                link_break(link, "it sent a message of unknown kind %u", tag);
        }
}

static void link_take_frame(struct link *link)
{
        uint8_t head[FRAME_HEADER], tag;
        size_t size;
        const uint8_t *sealed = frame_reader_payload(&link->reader, &size);
        if (size < OVERHEAD) {
                link_break(link, "it sent a frame that is too short");
                return;
        }
        CLEANUP(cleanup_free) uint8_t *plain = malloc(size - OVERHEAD + 1);
        if (!plain) {
                link_break(link, "out of memory");
                return;
        }
        frame_write_header(head, (uint32_t)size);
        if (crypto_secretstream_xchacha20poly1305_pull(&link->receive, plain, NULL, &tag, sealed,
                                                       size, head, sizeof head) != 0) {
                link_break(link, "a frame was forged or damaged on its way");
                return;
        }
        frame_reader_next(&link->reader);
        link_dispatch(link, tag, plain, size - OVERHEAD);
}

/* Returns how many bytes it took. */
static size_t link_take_header(struct link *link, const uint8_t *p, size_t n)
{
        size_t some = HEADER - link->header_size;
        if (some > n)
                some = n;
        memcpy(link->header + link->header_size, p, some);
        link->header_size += some;
        if (link->header_size == HEADER &&
            crypto_secretstream_xchacha20poly1305_init_pull(&link->receive, link->header,
                                                            link->channel->receive_key) != 0)
                link_break(link, "the stream's header is invalid");
        return some;
}

static void link_take(struct link *link, const uint8_t *p, size_t n)
{
        link->silent_ms = 0;
        link->stats.received_bytes += n;
        link->stats.last_heard_ms = uv_now(link->timer.loop);
        while (n > 0 && !link->ending) {
                size_t taken = 0;
                int r = 0;
                if (link->header_size < HEADER)
                        taken = link_take_header(link, p, n);
                else
                        r = frame_reader_feed(&link->reader, p, n, &taken);
                if (r < 0)
                        link_break(link, "%s",
                                   r == -EMSGSIZE ? "it sent a frame above the limit"
                                                  : "out of memory");
                else if (r > 0)
                        link_take_frame(link);
                p += taken;
                n -= taken;
        }
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *ret)
{
        struct link *link = handle->data;
        *ret = uv_buf_init((char *)link->buffer, sizeof link->buffer);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buffer)
{
        struct link *link = stream->data;
        if (n > 0)
                link_take(link, (const uint8_t *)buffer->base, (size_t)n);
        else if (n < 0)
                link_break(link, "%s",
                           n == UV_EOF ? "it closed the connection" : uv_strerror((int)n));
}

/* ---- time ---- */

/* An open ping is repeated under its number, so that round trips longer than a beat count. */
static void link_ping(struct link *link)
{
        if (!link->ping_open) {
                link->ping++;
                link->ping_sent_ns = uv_hrtime();
                link->ping_open = true;
        }
        uint64_t number = htole64(link->ping);
        if (link_send_tagged(link, TAG_PING, &number, sizeof number) == -ENOMEM)
                link_break(link, "out of memory");
}

static void link_begin(struct link *link)
{
        link->begun = true;
        link_ping(link);
        if (link->channel->early_size > 0)
                link_take(link, link->channel->early, link->channel->early_size);
        if (link->ending)
                return;
        int r = uv_read_start((uv_stream_t *)&link->channel->tcp, on_alloc, on_read);
        if (r < 0)
                link_break(link, "cannot read: %s", uv_strerror(r));
}

static void on_tick(uv_timer_t *timer)
{
        struct link *link = CONTAINER_OF(timer, struct link, timer);
        if (!link->begun) {
                link_begin(link);
                return;
        }
        link->silent_ms += link->options.heartbeat_ms;
        if (link->silent_ms >= link->options.silence_ms)
                link_break(link, "it has been silent for %u ms", link->silent_ms);
        else
                link_ping(link);
}

/* ---- making one ---- */

static int link_send_header(struct link *link)
{
        struct frame *frame = frame_new(link, HEADER);
        if (!frame)
                return -ENOMEM;
        crypto_secretstream_xchacha20poly1305_init_push(&link->send, frame->bytes,
                                                        link->channel->send_key);
        return link_write(link, frame);
}

int link_new(struct channel *channel, const struct link_options *options,
             const struct link_events *events, struct link **ret)
{
        uv_loop_t *loop = channel->tcp.loop;
        struct link *link = calloc(1, sizeof *link);
        int r;
        if (!link)
                return -ENOMEM;
        link->channel = channel;
        link->options = *options;
        link->events = *events;
        link->stats.last_heard_ms = uv_now(loop);
        frame_reader_init(&link->reader, options->message_max + OVERHEAD);
        r = link_send_header(link);
        if (r < 0) {
                free(link);
                return r;
        }
        channel->tcp.data = link;
        uv_timer_init(loop, &link->timer);
        uv_timer_start(&link->timer, on_tick, 0, options->heartbeat_ms);
        *ret = link;
        return 0;
}

void link_get_stats(const struct link *link, struct link_stats *ret)
{
        *ret = link->stats;
}
