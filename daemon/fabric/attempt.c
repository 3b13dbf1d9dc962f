/*
 * attempt.c - see attempt.h.
 *
 * Handles are counted in `open`; an attempt is freed when its outcome is known and all of
 * them are closed.  A look-up cannot be called back once a thread works on it, so it has
 * memory of its own and merely forgets its attempt.  Handshake messages are far smaller
 * than an empty socket buffer: they are written at once or the attempt fails.
 */
#include "daemon/fabric/attempt.h"

#include "proto/cleanup.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct lookup {
        uv_getaddrinfo_t request;
        struct attempts *attempts;
        struct attempt *attempt; /* NULL: forgotten */
};

static void attempt_connect_next(struct attempt *a);

static void attempts_less(struct attempts *attempts)
{
        assert(attempts->pending > 0);
        attempts->pending--;
        attempts->less(attempts);
}

/* ---- channels and addresses ---- */

int channel_new(uv_loop_t *loop, struct channel **ret)
{
        struct channel *channel = calloc(1, sizeof *channel);
        int r;
        if (!channel)
                return -ENOMEM;
        r = uv_tcp_init(loop, &channel->tcp);
        if (r < 0) {
                free(channel);
                return r;
        }
        *ret = channel;
        return 0;
}

void channel_free(struct channel *channel)
{
        if (!channel)
                return;
        free(channel->early);
        sodium_memzero(channel, sizeof *channel);
        free(channel);
}

static void on_channel_closed(uv_handle_t *handle)
{
        channel_free(CONTAINER_OF(handle, struct channel, tcp));
}

void channel_close(struct channel *channel)
{
        if (channel)
                uv_close((uv_handle_t *)&channel->tcp, on_channel_closed);
}

static uint16_t address_port(const struct sockaddr_storage *address)
{
        return ntohs(address->ss_family == AF_INET6
                             ? ((const struct sockaddr_in6 *)address)->sin6_port
                             : ((const struct sockaddr_in *)address)->sin_port);
}

void attempt_address_text(const struct sockaddr_storage *address, char *ret, size_t size)
{
        char ip[INET6_ADDRSTRLEN] = "?";
        uv_ip_name((const struct sockaddr *)address, ip, sizeof ip);
        snprintf(ret, size, address->ss_family == AF_INET6 ? "[%s]:%u" : "%s:%u", ip,
                 address_port(address));
}

/* ---- the end ---- */

static void attempt_finish(struct attempt *a)
{
        struct attempts *attempts = a->attempts;
        if (a->found)
                uv_freeaddrinfo(a->found);
        a->ended(a, STEAL(a->channel), a->why);
        handshake_deinit(&a->shake);
        free(a);
        attempts_less(attempts);
}

static void attempt_closed_one(struct attempt *a)
{
        assert(a->open > 0);
        if (--a->open == 0)
                attempt_finish(a);
        else if (!a->over)
                attempt_connect_next(a);
}

static void on_timer_closed(uv_handle_t *handle)
{
        attempt_closed_one(CONTAINER_OF(handle, struct attempt, timer));
}

static void on_tcp_closed(uv_handle_t *handle)
{
        struct attempt *a = handle->data;
        channel_free(CONTAINER_OF(handle, struct channel, tcp));
        attempt_closed_one(a);
}

static void attempt_drop_channel(struct attempt *a)
{
        struct channel *channel = STEAL(a->channel);
        if (channel)
                uv_close((uv_handle_t *)&channel->tcp, on_tcp_closed);
}

/* a->channel, where there still is one, goes to the owner. */
static void attempt_over(struct attempt *a)
{
        assert(!a->over);
        a->over = true;
        if (a->lookup) {
                a->lookup->attempt = NULL;
                uv_cancel((uv_req_t *)&a->lookup->request);
                a->lookup = NULL;
        }
        if (a->channel) {
                a->channel->tcp.data = NULL;
                a->open--;
        }
        uv_close((uv_handle_t *)&a->timer, on_timer_closed);
}

__attribute__((format(printf, 2, 3))) static void attempt_fail(struct attempt *a,
                                                               const char *format, ...)
{
        va_list args;
        if (a->over)
                return;
        va_start(args, format);
        vsnprintf(a->why, sizeof a->why, format, args);
        va_end(args);
        attempt_drop_channel(a);
        attempt_over(a);
}

void attempt_stop(struct attempt *attempt, const char *why)
{
        attempt_fail(attempt, "%s", why);
}

/* ---- the handshake ---- */

static int attempt_flush(struct attempt *a)
{
        uv_buf_t buffer = uv_buf_init((char *)a->shake.out, (unsigned)a->shake.out_size);
        int n = buffer.len ? uv_try_write((uv_stream_t *)&a->channel->tcp, &buffer, 1) : 0;
        if (n < 0)
                return n;
        a->shake.out_size = 0;
        return (size_t)n == buffer.len ? 0 : -EIO;
}

/* Bytes in p came behind the handshake. */
static void attempt_succeed(struct attempt *a, const uint8_t *p, size_t n)
{
        struct channel *channel = a->channel;
        if (n > 0) {
                channel->early = malloc(n);
                if (!channel->early) {
                        attempt_fail(a, "out of memory");
                        return;
                }
                memcpy(channel->early, p, n);
                channel->early_size = n;
        }
        channel->node = a->shake.node;
        channel->role = a->shake.role;
        channel->token = a->shake.token;
        memcpy(channel->send_key, a->shake.send_key, CHANNEL_KEY);
        memcpy(channel->receive_key, a->shake.receive_key, CHANNEL_KEY);
        uv_read_stop((uv_stream_t *)&channel->tcp);
        attempt_over(a);
}

static void on_linger_over(uv_timer_t *timer)
{
        struct attempt *a = CONTAINER_OF(timer, struct attempt, timer);
        attempt_fail(a, "%s", a->shake.why);
}

/*
 * Closing a socket with unread bytes resets it, and a reset may overtake the refusal:
 * the other side hangs up first.
 */
static void attempt_linger(struct attempt *a)
{
        a->lingering = true;
        uv_timer_start(&a->timer, on_linger_over, ATTEMPT_LINGER_MS, 0);
}

static void attempt_take(struct attempt *a, const uint8_t *p, size_t n)
{
        size_t taken;
        enum handshake_result result = handshake_feed(&a->shake, p, n, &taken);
        if (result == HANDSHAKE_DONE && a->visitor && !a->attempts->admits(a->attempts, &a->shake))
                result = handshake_turn_away(&a->shake);
        bool told = a->shake.out_size > 0;
        int r = attempt_flush(a);
        a->node = a->shake.node;
        if (result == HANDSHAKE_REFUSED && told && r == 0)
                attempt_linger(a);
        else if (result == HANDSHAKE_REFUSED)
                attempt_fail(a, "%s", a->shake.why);
        else if (r < 0)
                attempt_fail(a, "%s: %s", a->from, uv_strerror(r));
        else if (result == HANDSHAKE_DONE)
                attempt_succeed(a, p + taken, n - taken);
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *ret)
{
        struct attempt *a = handle->data;
        *ret = uv_buf_init((char *)a->buffer, sizeof a->buffer);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buffer)
{
        struct attempt *a = stream->data;
        if (n > 0 && !a->lingering) {
                attempt_take(a, (const uint8_t *)buffer->base, (size_t)n);
        } else if (n < 0) {
                if (!a->lingering)
                        handshake_lost(&a->shake, n == UV_EOF ? "hung up" : uv_strerror((int)n));
                attempt_fail(a, "%s", a->shake.why);
        }
}

static int attempt_begin(struct attempt *a)
{
        int n = sizeof a->address;
        uv_tcp_getpeername(&a->channel->tcp, (struct sockaddr *)&a->address, &n);
        attempt_address_text(&a->address, a->from, sizeof a->from);
        uv_tcp_nodelay(&a->channel->tcp, 1);
        int r = attempt_flush(a);
        return r < 0 ? r : uv_read_start((uv_stream_t *)&a->channel->tcp, on_alloc, on_read);
}

/* ---- making one ---- */

static void on_deadline(uv_timer_t *timer)
{
        struct attempt *a = CONTAINER_OF(timer, struct attempt, timer);
        char how[64];
        snprintf(how, sizeof how, "gave no answer in %u ms", a->attempts->deadline_ms);
        if (a->channel && a->from[0])
                handshake_lost(&a->shake, how);
        else
                snprintf(a->shake.why, sizeof a->shake.why, "%s %s", a->shake.peer, how);
        attempt_fail(a, "%s", a->shake.why);
}

static int attempt_open_channel(struct attempt *a)
{
        int r = channel_new(a->attempts->loop, &a->channel);
        if (r < 0)
                return r;
        a->channel->tcp.data = a;
        a->open++;
        return 0;
}

static int attempt_new(struct attempts *attempts, void *owner,
                       void (*ended)(struct attempt *, struct channel *, const char *),
                       struct attempt **ret)
{
        struct attempt *a = calloc(1, sizeof *a);
        int r;
        if (!a)
                return -ENOMEM;
        list_init(&a->item);
        a->owner = owner;
        a->ended = ended;
        a->attempts = attempts;
        a->node = HANDSHAKE_NOBODY;
        a->started_ms = uv_now(attempts->loop);
        r = uv_timer_init(attempts->loop, &a->timer);
        assert(r == 0); /* it only fills the struct */
        a->open = 1;
        uv_timer_start(&a->timer, on_deadline, attempts->deadline_ms, 0);
        attempts->pending++;
        *ret = a;
        return 0;
}

int attempt_accept(struct attempts *attempts, uv_stream_t *listener, void *owner,
                   void (*ended)(struct attempt *, struct channel *, const char *),
                   struct attempt **ret)
{
        struct channel *channel;
        struct attempt *a;
        int r = channel_new(attempts->loop, &channel);
        if (r < 0)
                return r;
        r = uv_accept(listener, (uv_stream_t *)&channel->tcp);
        if (r == 0)
                r = attempt_new(attempts, owner, ended, &a);
        if (r < 0) {
                channel_close(channel);
                return r;
        }
        a->visitor = true;
        a->channel = channel;
        channel->tcp.data = a;
        a->open++;
        handshake_accept(&a->shake, attempts->cluster);
        *ret = a;
        r = attempt_begin(a);
        if (r < 0)
                attempt_fail(a, "%s: %s", a->from, uv_strerror(r));
        return 0;
}

/* ---- dialling ---- */

/* Tries the next address, when this one's handle is closed. */
static void attempt_next_address(struct attempt *a, int error)
{
        const struct cluster_node *node = &a->attempts->cluster->nodes[a->node];
        snprintf(a->why, sizeof a->why, "node %s: %s:%u: %s", node->name, node->host, node->port,
                 uv_strerror(error));
        attempt_drop_channel(a);
}

static void on_connect(uv_connect_t *connect, int status)
{
        struct attempt *a = CONTAINER_OF(connect, struct attempt, connect);
        if (a->over)
                return;
        int r = status == 0 ? attempt_begin(a) : status;
        if (r < 0)
                attempt_next_address(a, r);
}

/* No channel is open.  a->why says what was wrong with the address before. */
static void attempt_connect_next(struct attempt *a)
{
        struct addrinfo *to = a->next;
        if (!to) {
                attempt_over(a);
                return;
        }
        a->next = to->ai_next;
        int r = attempt_open_channel(a);
        if (r < 0) {
                attempt_fail(a, "%s: cannot connect: %s", a->shake.peer, uv_strerror(r));
                return;
        }
        r = uv_tcp_connect(&a->connect, &a->channel->tcp, to->ai_addr, on_connect);
        if (r < 0)
                attempt_next_address(a, r);
}

static void set_port(struct addrinfo *list, uint16_t port)
{
        for (struct addrinfo *i = list; i; i = i->ai_next) {
                if (i->ai_family == AF_INET6)
                        ((struct sockaddr_in6 *)(void *)i->ai_addr)->sin6_port = htons(port);
                else
                        ((struct sockaddr_in *)(void *)i->ai_addr)->sin_port = htons(port);
        }
}

static void on_lookup(uv_getaddrinfo_t *request, int status, struct addrinfo *found)
{
        struct lookup *lookup = CONTAINER_OF(request, struct lookup, request);
        struct attempts *attempts = lookup->attempts;
        struct attempt *a = lookup->attempt;
        free(lookup);
        if (!a) {
                uv_freeaddrinfo(found);
        } else {
                const struct cluster_node *node = &attempts->cluster->nodes[a->node];
                a->lookup = NULL;
                a->found = a->next = found;
                set_port(found, node->port);
                if (status < 0)
                        attempt_fail(a, "node %s: cannot find host %s: %s", node->name, node->host,
                                     uv_strerror(status));
                else
                        attempt_connect_next(a);
        }
        attempts_less(attempts);
}

static int attempt_look_up(struct attempt *a, const char *host)
{
        struct addrinfo hints = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM };
        struct lookup *lookup = calloc(1, sizeof *lookup);
        if (!lookup)
                return -ENOMEM;
        lookup->attempts = a->attempts;
        lookup->attempt = a;
        int r = uv_getaddrinfo(a->attempts->loop, &lookup->request, on_lookup, host, NULL, &hints);
        if (r < 0) {
                free(lookup);
                return r;
        }
        a->lookup = lookup;
        a->attempts->pending++;
        return 0;
}

int attempt_parse_address(const char *host, uint16_t port, struct sockaddr_storage *ret)
{
        struct sockaddr_storage address = { 0 };
        if (uv_ip4_addr(host, port, (struct sockaddr_in *)&address) != 0 &&
            uv_ip6_addr(host, port, (struct sockaddr_in6 *)&address) != 0)
                return -EINVAL;
        *ret = address;
        return 0;
}

int attempt_dial(struct attempts *attempts, uint32_t node, enum channel_role role, uint64_t token,
                 void *owner, void (*ended)(struct attempt *, struct channel *, const char *),
                 struct attempt **ret)
{
        const struct cluster_node *to = &attempts->cluster->nodes[node];
        struct attempt *a;
        int r = attempt_new(attempts, owner, ended, &a);
        if (r < 0)
                return r;
        a->node = node;
        handshake_dial(&a->shake, attempts->cluster, node, role, token);
        *ret = a;
        if (attempt_parse_address(to->host, to->port, &a->address) == 0) {
                a->literal.ai_addr = (struct sockaddr *)&a->address;
                a->next = &a->literal;
                attempt_connect_next(a);
                return 0;
        }
        r = attempt_look_up(a, to->host);
        if (r < 0)
                attempt_fail(a, "node %s: cannot look up host %s: %s", to->name, to->host,
                             uv_strerror(r));
        return 0;
}
