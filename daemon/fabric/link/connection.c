/*
 * connection.c - see connection.h.
 *
 * `open` counts handles; a connection is freed when its outcome is known and all its handles are
 * closed.  A look-up cannot be cancelled once a thread works on it, so it has memory of its own and
 * forgets its connection.  Handshake messages are far smaller than an empty socket buffer: either a
 * message is written at once, or the connection fails.
 */
#include "daemon/fabric/link/connection.h"

#include "proto/cleanup.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct lookup {
        uv_getaddrinfo_t request;
        struct connections *connections;
        struct connection *connection; /* NULL: forgotten */
};

static void connection_connect_next(struct connection *a);

static void connections_less(struct connections *connections)
{
        assert(connections->pending > 0);
        connections->pending--;
        connections->less(connections);
}

/* ---- channels and addresses ---- */

static int channel_new(uv_loop_t *loop, struct channel **ret)
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

/* "10.0.0.1:7000"; "?:0" for an unknown address. */
static void connection_address_text(const struct sockaddr_storage *address, char *ret, size_t size)
{
        char ip[INET6_ADDRSTRLEN] = "?";
        uv_ip_name((const struct sockaddr *)address, ip, sizeof ip);
        snprintf(ret, size, address->ss_family == AF_INET6 ? "[%s]:%u" : "%s:%u", ip,
                 address_port(address));
}

/* ---- the end ---- */

static void connection_finish(struct connection *a)
{
        struct connections *connections = a->connections;
        if (a->found)
                uv_freeaddrinfo(a->found);
        a->ended(a, STEAL(a->channel), a->why);
        handshake_deinit(&a->shake);
        free(a);
        connections_less(connections);
}

static void connection_closed_one(struct connection *a)
{
        assert(a->open > 0);
        if (--a->open == 0)
                connection_finish(a);
        else if (!a->over)
                connection_connect_next(a);
}

static void on_timer_closed(uv_handle_t *handle)
{
        connection_closed_one(CONTAINER_OF(handle, struct connection, timer));
}

static void on_tcp_closed(uv_handle_t *handle)
{
        struct connection *a = handle->data;
        channel_free(CONTAINER_OF(handle, struct channel, tcp));
        connection_closed_one(a);
}

static void connection_drop_channel(struct connection *a)
{
        struct channel *channel = STEAL(a->channel);
        if (channel)
                uv_close((uv_handle_t *)&channel->tcp, on_tcp_closed);
}

/* a->channel, where there still is one, goes to the owner. */
static void connection_over(struct connection *a)
{
        assert(!a->over);
        a->over = true;
        if (a->lookup) {
                a->lookup->connection = NULL;
                uv_cancel((uv_req_t *)&a->lookup->request);
                a->lookup = NULL;
        }
        if (a->channel) {
                a->channel->tcp.data = NULL;
                a->open--;
        }
        uv_close((uv_handle_t *)&a->timer, on_timer_closed);
}

__attribute__((format(printf, 2, 3))) static void connection_fail(struct connection *a,
                                                                  const char *format, ...)
{
        va_list args;
        if (a->over)
                return;
        va_start(args, format);
        vsnprintf(a->why, sizeof a->why, format, args);
        va_end(args);
        connection_drop_channel(a);
        connection_over(a);
}

void connection_stop(struct connection *connection, const char *why)
{
        connection_fail(connection, "%s", why);
}

/* ---- the handshake ---- */

static int connection_flush(struct connection *a)
{
        uv_buf_t buffer = uv_buf_init((char *)a->shake.out, (unsigned)a->shake.out_size);
        int n = buffer.len ? uv_try_write((uv_stream_t *)&a->channel->tcp, &buffer, 1) : 0;
        if (n < 0)
                return n;
        a->shake.out_size = 0;
        return (size_t)n == buffer.len ? 0 : -EIO;
}

/* Bytes in p came behind the handshake. */
static void connection_succeed(struct connection *a, const uint8_t *p, size_t n)
{
        struct channel *channel = a->channel;
        if (n > 0) {
                channel->early = malloc(n);
                if (!channel->early) {
                        connection_fail(a, "out of memory");
                        return;
                }
                memcpy(channel->early, p, n);
                channel->early_size = n;
        }
        channel->node = a->shake.node;
        channel->role = a->shake.role;
        channel->speaks = a->shake.speaks;
        channel->token = a->shake.token;
        memcpy(channel->send_key, a->shake.send_key, CHANNEL_KEY);
        memcpy(channel->receive_key, a->shake.receive_key, CHANNEL_KEY);
        uv_read_stop((uv_stream_t *)&channel->tcp);
        connection_over(a);
}

static void on_linger_over(uv_timer_t *timer)
{
        struct connection *a = CONTAINER_OF(timer, struct connection, timer);
        connection_fail(a, "%s", a->shake.why);
}

/*
 * Closing a socket with unread bytes resets it, and a reset may overtake the refusal:
 * the other side hangs up first.
 */
static void connection_linger(struct connection *a)
{
        a->lingering = true;
        uv_timer_start(&a->timer, on_linger_over, CONNECTION_LINGER_MS, 0);
}

static void connection_take(struct connection *a, const uint8_t *p, size_t n)
{
        size_t taken;
        enum handshake_result result = handshake_feed(&a->shake, p, n, &taken);
        if (result == HANDSHAKE_DONE && a->visitor &&
            !a->connections->admits(a->connections, &a->shake))
                result = handshake_turn_away(&a->shake);
        bool told = a->shake.out_size > 0;
        int r = connection_flush(a);
        a->node = a->shake.node;
        if (result == HANDSHAKE_REFUSED && told && r == 0)
                connection_linger(a);
        else if (result == HANDSHAKE_REFUSED)
                connection_fail(a, "%s", a->shake.why);
        else if (r < 0)
                connection_fail(a, "%s: %s", a->from, uv_strerror(r));
        else if (result == HANDSHAKE_DONE)
                connection_succeed(a, p + taken, n - taken);
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *ret)
{
        struct connection *a = handle->data;
        *ret = uv_buf_init((char *)a->buffer, sizeof a->buffer);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buffer)
{
        struct connection *a = stream->data;
        if (n > 0 && !a->lingering) {
                connection_take(a, (const uint8_t *)buffer->base, (size_t)n);
        } else if (n < 0) {
                if (!a->lingering)
                        handshake_lost(&a->shake, n == UV_EOF ? "hung up" : uv_strerror((int)n));
                connection_fail(a, "%s", a->shake.why);
        }
}

static int connection_begin(struct connection *a)
{
        int n = sizeof a->address;
        uv_tcp_getpeername(&a->channel->tcp, (struct sockaddr *)&a->address, &n);
        connection_address_text(&a->address, a->from, sizeof a->from);
        uv_tcp_nodelay(&a->channel->tcp, 1);
        int r = connection_flush(a);
        return r < 0 ? r : uv_read_start((uv_stream_t *)&a->channel->tcp, on_alloc, on_read);
}

/* ---- making one ---- */

static void on_deadline(uv_timer_t *timer)
{
        struct connection *a = CONTAINER_OF(timer, struct connection, timer);
        char how[64];
        snprintf(how, sizeof how, "did not answer within %u ms", a->connections->deadline_ms);
        if (a->channel && a->from[0])
                handshake_lost(&a->shake, how);
        else
                snprintf(a->shake.why, sizeof a->shake.why, "%s %s", a->shake.peer, how);
        connection_fail(a, "%s", a->shake.why);
}

static int connection_open_channel(struct connection *a)
{
        int r = channel_new(a->connections->loop, &a->channel);
        if (r < 0)
                return r;
        a->channel->tcp.data = a;
        a->open++;
        return 0;
}

static int connection_new(struct connections *connections, void *owner,
                          void (*ended)(struct connection *, struct channel *, const char *),
                          struct connection **ret)
{
        struct connection *a = calloc(1, sizeof *a);
        int r;
        if (!a)
                return -ENOMEM;
        list_init(&a->item);
        a->owner = owner;
        a->ended = ended;
        a->connections = connections;
        a->node = HANDSHAKE_NOBODY;
        a->started_ms = uv_now(connections->loop);
        r = uv_timer_init(connections->loop, &a->timer);
        assert(r == 0); /* it only fills the struct */
        a->open = 1;
        uv_timer_start(&a->timer, on_deadline, connections->deadline_ms, 0);
        connections->pending++;
        *ret = a;
        return 0;
}

int connection_accept(struct connections *connections, uv_stream_t *listener, void *owner,
                      void (*ended)(struct connection *, struct channel *, const char *),
                      struct connection **ret)
{
        struct channel *channel;
        struct connection *a;
        int r = channel_new(connections->loop, &channel);
        if (r < 0)
                return r;
        r = uv_accept(listener, (uv_stream_t *)&channel->tcp);
        if (r == 0)
                r = connection_new(connections, owner, ended, &a);
        if (r < 0) {
                channel_close(channel);
                return r;
        }
        a->visitor = true;
        a->channel = channel;
        channel->tcp.data = a;
        a->open++;
        handshake_accept(&a->shake, connections->cluster);
        *ret = a;
        r = connection_begin(a);
        if (r < 0)
                connection_fail(a, "%s: %s", a->from, uv_strerror(r));
        return 0;
}

/* ---- dialling ---- */

/* Tries the next address once this address's handle is closed. */
static void connection_next_address(struct connection *a, int error)
{
        const struct cluster_node *node = &a->connections->cluster->nodes[a->node];
        snprintf(a->why, sizeof a->why, "node %s: %s:%u: %s", node->name, node->host, node->port,
                 uv_strerror(error));
        connection_drop_channel(a);
}

static void on_connect(uv_connect_t *connect, int status)
{
        struct connection *a = CONTAINER_OF(connect, struct connection, connect);
        if (a->over)
                return;
        int r = status == 0 ? connection_begin(a) : status;
        if (r < 0)
                connection_next_address(a, r);
}

/* No channel is open.  a->why says what was wrong with the address before. */
static void connection_connect_next(struct connection *a)
{
        struct addrinfo *to = a->next;
        if (!to) {
                connection_over(a);
                return;
        }
        a->next = to->ai_next;
        int r = connection_open_channel(a);
        if (r < 0) {
                connection_fail(a, "%s: cannot connect: %s", a->shake.peer, uv_strerror(r));
                return;
        }
        r = uv_tcp_connect(&a->connect, &a->channel->tcp, to->ai_addr, on_connect);
        if (r < 0)
                connection_next_address(a, r);
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
        struct connections *connections = lookup->connections;
        struct connection *a = lookup->connection;
        free(lookup);
        if (!a) {
                uv_freeaddrinfo(found);
        } else {
                const struct cluster_node *node = &connections->cluster->nodes[a->node];
                a->lookup = NULL;
                a->found = a->next = found;
                set_port(found, node->port);
                if (status < 0)
                        connection_fail(a, "node %s: cannot find host %s: %s", node->name,
                                        node->host, uv_strerror(status));
                else
                        connection_connect_next(a);
        }
        connections_less(connections);
}

static int connection_look_up(struct connection *a, const char *host)
{
        struct addrinfo hints = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM };
        struct lookup *lookup = calloc(1, sizeof *lookup);
        if (!lookup)
                return -ENOMEM;
        lookup->connections = a->connections;
        lookup->connection = a;
        int r = uv_getaddrinfo(a->connections->loop, &lookup->request, on_lookup, host, NULL,
                               &hints);
        if (r < 0) {
                free(lookup);
                return r;
        }
        a->lookup = lookup;
        a->connections->pending++;
        return 0;
}

int connection_parse_address(const char *host, uint16_t port, struct sockaddr_storage *ret)
{
        struct sockaddr_storage address = { 0 };
        if (uv_ip4_addr(host, port, (struct sockaddr_in *)&address) != 0 &&
            uv_ip6_addr(host, port, (struct sockaddr_in6 *)&address) != 0)
                return -EINVAL;
        *ret = address;
        return 0;
}

int connection_dial(struct connections *connections, uint32_t node, enum channel_role role,
                    uint64_t token, void *owner,
                    void (*ended)(struct connection *, struct channel *, const char *),
                    struct connection **ret)
{
        const struct cluster_node *to = &connections->cluster->nodes[node];
        struct connection *a;
        int r = connection_new(connections, owner, ended, &a);
        if (r < 0)
                return r;
        a->node = node;
        handshake_dial(&a->shake, connections->cluster, node, role, token);
        *ret = a;
        if (connection_parse_address(to->host, to->port, &a->address) == 0) {
                a->literal.ai_addr = (struct sockaddr *)&a->address;
                a->next = &a->literal;
                connection_connect_next(a);
                return 0;
        }
        r = connection_look_up(a, to->host);
        if (r < 0)
                connection_fail(a, "node %s: cannot look up host %s: %s", to->name, to->host,
                                uv_strerror(r));
        return 0;
}
