/*
 * door.c - accepts connections of other nodes, and dials other nodes.
 *
 * At most DOOR_HALF_OPEN_MAX connections wait for authentication, in a list, oldest first.  When
 * the list is full each newcomer replaces the oldest visitor of the address that has the most
 * visitors. It replaces a visitor at a peer's address only if there are no others.  So strangers
 * push out only each other, however many they are.  Strangers at a peer's own address push out the
 * peer only after DOOR_HALF_OPEN_MAX of them have come in.
 *
 * The log says what strangers do at most once in LOG_PAUSE_MS, and repeats the same line at most
 * once in LOG_SAME_MS.
 */
#include "daemon/fabric/link/connection.h"
#include "daemon/fabric/link/door.h"
#include "daemon/floor/base/log.h"
#include "proto/cleanup.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { BACKLOG = 256, AGAIN_MS = 100, LOG_PAUSE_MS = 1000, LOG_SAME_MS = 60000 };

struct dial {
        struct list item;
        struct door *door;
        struct connection *connection;
        void (*done)(void *arg, struct channel *channel, const char *why);
        void *arg;
};

struct door {
        struct connections connections;
        struct door_events events;
        uv_tcp_t listener;
        bool listening;
        uv_timer_t again;   /* takes a connection for which there was no memory */
        uint32_t n_handles; /* that are not closed yet */
        struct list visitors;
        uint32_t n_visitors;
        struct list dials;
        uint64_t logged_ms;
        uint32_t not_logged;
        char logged[160]; /* why */
        bool closing;
        void (*closed)(void *arg);
        void *closed_arg;
};

static void door_log(struct door *door, const char *from, const char *why)
{
        uint64_t now = uv_now(door->connections.loop);
        bool same = strncmp(door->logged, why, sizeof door->logged - 1) == 0;
        if (door->logged_ms && now - door->logged_ms < (same ? LOG_SAME_MS : LOG_PAUSE_MS)) {
                door->not_logged++;
                return;
        }
        if (door->not_logged)
                log_warning("%u more connections were refused", door->not_logged);
        log_warning("refused a connection from %s: %s", from, why);
        snprintf(door->logged, sizeof door->logged, "%s", why);
        door->logged_ms = now;
        door->not_logged = 0;
}

static void door_maybe_closed(struct door *door)
{
        if (!door->closing || door->n_handles > 0 || door->connections.pending > 0)
                return;
        assert(list_empty(&door->visitors) && list_empty(&door->dials));
        void (*closed)(void *arg) = door->closed;
        void *arg = door->closed_arg;
        free(door);
        closed(arg);
}

static bool on_admit(struct connections *connections, const struct handshake *shake)
{
        const struct door *door = CONTAINER_OF(connections, struct door, connections);
        return !door->events.admits ||
               door->events.admits(door->events.arg, shake->node, shake->role, shake->token);
}

static void on_less(struct connections *connections)
{
        door_maybe_closed(CONTAINER_OF(connections, struct door, connections));
}

/* ---- coming in ---- */

static void door_forget(struct door *door, struct connection *visitor)
{
        list_remove(&visitor->item);
        door->n_visitors--;
}

static void on_visitor_ended(struct connection *connection, struct channel *channel,
                             const char *why)
{
        struct door *door = connection->owner;
        if (!list_empty(&connection->item))
                door_forget(door, connection);
        if (door->closing) {
                channel_close(channel);
        } else if (channel) {
                door->events.incoming(door->events.arg, channel);
        } else {
                door_log(door, connection->from, why);
                if (connection->node != HANDSHAKE_NOBODY && door->events.refused)
                        door->events.refused(door->events.arg, connection->node, connection->from,
                                             why);
        }
}

/* One host can have many IPv6 addresses: only their first 64 bits count. */
static uint64_t address_share(const struct sockaddr_storage *address)
{
        const struct sockaddr_in6 *six = (const void *)address;
        uint64_t share = 0;
        uint32_t four;
        if (address->ss_family == AF_INET6 && !IN6_IS_ADDR_V4MAPPED(&six->sin6_addr)) {
                memcpy(&share, &six->sin6_addr, sizeof share);
                return share;
        }
        if (address->ss_family == AF_INET6)
                memcpy(&four, six->sin6_addr.s6_addr + 12, sizeof four);
        else
                memcpy(&four, &((const struct sockaddr_in *)(const void *)address)->sin_addr,
                       sizeof four);
        return four;
}

/* Knows only peers whose host is given as digits. */
static bool is_of_peer(const struct door *door, uint64_t share)
{
        const struct cluster *cluster = door->connections.cluster;
        struct sockaddr_storage peer;
        for (uint32_t i = 0; i < cluster->n_nodes; i++) {
                if (connection_parse_address(cluster->nodes[i].host, 0, &peer) == 0 &&
                    address_share(&peer) == share)
                        return true;
        }
        return false;
}

/* The visitor with the largest weight goes first: its address has most visitors; peers go last. */
static uint32_t weight_of(const struct door *door, const struct connection *visitor)
{
        uint32_t n = 0;
        list_for_each (&door->visitors, item)
                n += CONTAINER_OF(item, struct connection, item)->share == visitor->share;
        return visitor->of_peer ? n : n + DOOR_HALF_OPEN_MAX + 1;
}

static void door_evict(struct door *door)
{
        struct connection *last = NULL;
        uint32_t most = 0;
        list_for_each (&door->visitors, item) {
                struct connection *visitor = CONTAINER_OF(item, struct connection, item);
                uint32_t weight = weight_of(door, visitor);
                if (weight > most) {
                        most = weight;
                        last = visitor;
                }
        }
        door_forget(door, last);
        connection_stop(last, "too many connections came before it had proved itself");
}

static void on_again(uv_timer_t *again);

/* The listener hears of no other connection until this one is taken. */
static void on_connection(uv_stream_t *listener, int status)
{
        struct door *door = CONTAINER_OF(listener, struct door, listener);
        struct connection *connection;
        int r = status;
        if (door->closing)
                return;
        if (r == 0)
                r = connection_accept(&door->connections, listener, door, on_visitor_ended,
                                      &connection);
        if (r == -ENOMEM)
                uv_timer_start(&door->again, on_again, AGAIN_MS, 0);
        if (r == UV_EAGAIN) /* it was taken, and hung up for lack of memory */
                return;
        if (r < 0) {
                door_log(door, "another node", uv_strerror(r));
                return;
        }
        connection->share = address_share(&connection->address);
        connection->of_peer = is_of_peer(door, connection->share);
        list_insert(&door->visitors, &connection->item);
        if (++door->n_visitors > DOOR_HALF_OPEN_MAX)
                door_evict(door);
}

static void on_again(uv_timer_t *again)
{
        struct door *door = CONTAINER_OF(again, struct door, again);

        on_connection((uv_stream_t *)&door->listener, 0);
}

/* ---- opening ---- */

/* This host's addresses, from digits or by look-up; the caller frees them by freeaddrinfo(). */
static int find_own_addresses(const struct cluster_node *self, struct addrinfo **ret,
                              struct fault *fault)
{
        struct addrinfo hints = { .ai_family = AF_UNSPEC,
                                  .ai_socktype = SOCK_STREAM,
                                  .ai_flags = AI_PASSIVE };
        char port[8];
        snprintf(port, sizeof port, "%u", self->port);
        int r = getaddrinfo(self->host, port, &hints, ret);
        if (r != 0)
                return fault_set(fault, ZERO_EINVAL, "node %s: cannot find its own host %s: %s",
                                 self->name, self->host, gai_strerror(r));
        return 0;
}

static void on_stillborn(void *arg)
{
}

static int bind_one(const struct addrinfo *address, int *ret_fd)
{
        CLEANUP(cleanup_close) int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        int on = 1;
        if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) < 0 ||
            bind(fd, address->ai_addr, address->ai_addrlen) < 0)
                return -errno;
        *ret_fd = STEAL_FD(fd);
        return 0;
}

/* Listens at the first address that can be bound. */
static int door_bind(struct door *door, const struct addrinfo *addresses)
{
        int fd = -1, r = -EADDRNOTAVAIL;
        for (const struct addrinfo *i = addresses; i && r < 0; i = i->ai_next)
                r = bind_one(i, &fd);
        if (r == 0)
                r = uv_tcp_open(&door->listener, fd);
        if (r < 0) {
                cleanup_close(&fd);
                return r;
        }
        return uv_listen((uv_stream_t *)&door->listener, BACKLOG, on_connection);
}

static int door_listen(struct door *door, struct fault *fault)
{
        const struct cluster *cluster = door->connections.cluster;
        const struct cluster_node *self = &cluster->nodes[cluster->self];
        struct addrinfo *addresses;
        int r = find_own_addresses(self, &addresses, fault);
        if (r != 0)
                return r;
        r = uv_tcp_init(door->connections.loop, &door->listener);
        assert(r == 0); /* without a family there is no socket yet */
        door->listening = true;
        door->n_handles++;
        r = door_bind(door, addresses);
        freeaddrinfo(addresses);
        if (r < 0)
                return fault_set(fault, ZERO_EIO,
                                 "cannot listen at %s:%u, this node's address in peers: %s",
                                 self->host, self->port, uv_strerror(r));
        return 0;
}

int door_open(uv_loop_t *loop, const struct cluster *cluster, const struct door_events *events,
              struct door **ret, struct fault *fault)
{
        struct door *door;
        if (sodium_init() < 0)
                return fault_set(fault, ZERO_EINTERNAL, "libsodium does not start");
        if (cluster->n_nodes > 1 && !cluster->has_key)
                return fault_set(fault, ZERO_EINVAL,
                                 "a cluster of several nodes needs a key: set key_file");
        door = calloc(1, sizeof *door);
        if (!door)
                return fault_errno(fault, -ENOMEM, "opening the door to other nodes");
        door->connections = (struct connections){
                .loop = loop,
                .cluster = cluster,
                .deadline_ms = DOOR_HANDSHAKE_MS,
                .less = on_less,
                .admits = on_admit,
        };
        door->events = *events;
        list_init(&door->visitors);
        list_init(&door->dials);
        uv_timer_init(loop, &door->again);
        door->n_handles = 1;
        if (cluster->n_nodes > 1 && cluster->nodes[cluster->self].host[0]) {
                int r = door_listen(door, fault);
                if (r != 0) {
                        door_close(door, on_stillborn, NULL);
                        return r;
                }
        }
        *ret = door;
        return 0;
}

void door_set_deadline(struct door *door, uint32_t ms)
{
        door->connections.deadline_ms = ms;
}

/* ---- dialling ---- */

static void on_dial_ended(struct connection *connection, struct channel *channel, const char *why)
{
        struct dial *dial = connection->owner;
        bool closing = dial->door->closing;
        list_remove(&dial->item);
        if (closing)
                channel_close(STEAL(channel));
        dial->done(dial->arg, channel, closing ? "this node is going down" : why);
        free(dial);
}

int door_dial(struct door *door, uint32_t node, enum channel_role role, uint64_t token,
              void (*done)(void *arg, struct channel *channel, const char *why), void *arg)
{
        struct dial *dial;
        assert(node < door->connections.cluster->n_nodes &&
               node != door->connections.cluster->self);
        if (door->closing)
                return -ECANCELED;
        dial = calloc(1, sizeof *dial);
        if (!dial)
                return -ENOMEM;
        dial->door = door;
        dial->done = done;
        dial->arg = arg;
        int r = connection_dial(&door->connections, node, role, token, dial, on_dial_ended,
                                &dial->connection);
        if (r < 0) {
                free(dial);
                return r;
        }
        list_insert(&door->dials, &dial->item);
        return 0;
}

/* ---- closing ---- */

static void on_handle_closed(uv_handle_t *handle)
{
        struct door *door = handle->data;

        door->n_handles--;
        door_maybe_closed(door);
}

static void handle_close(struct door *door, uv_handle_t *handle)
{
        handle->data = door;
        uv_close(handle, on_handle_closed);
}

void door_close(struct door *door, void (*closed)(void *arg), void *arg)
{
        static const char why[] = "this node is going down";
        if (!door) {
                closed(arg);
                return;
        }
        assert(!door->closing);
        door->closing = true;
        door->closed = closed;
        door->closed_arg = arg;
        list_for_each (&door->visitors, item)
                connection_stop(CONTAINER_OF(item, struct connection, item), why);
        list_for_each (&door->dials, item)
                connection_stop(CONTAINER_OF(item, struct dial, item)->connection, why);
        if (door->listening)
                handle_close(door, (uv_handle_t *)&door->listener);
        handle_close(door, (uv_handle_t *)&door->again);
}
