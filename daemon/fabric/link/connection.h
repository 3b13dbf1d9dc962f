/*
 * connection.h - a connection until it is authenticated, on either side.
 *
 * Looks the host up and connects (a dialler does), and shakes hands, all within one deadline.
 * Whatever happens, ended() is called once, later, on the loop; then the connection is gone.  Until
 * then a stranger costs one struct connection, one struct channel and a descriptor.
 */
#pragma once

#include "daemon/fabric/link/handshake.h"
#include "proto/list.h"

/* CONNECTION_LINGER_MS: how long a refused connection may stay, to read the reason. */
enum { CONNECTION_READ = 512, CONNECTION_LINGER_MS = 1000 };

/* What the connections of one door share. */
struct connections {
        uv_loop_t *loop;
        const struct cluster *cluster;
        uint32_t deadline_ms;
        uint32_t pending; /* connections and look-ups that are not gone yet */
        /* pending has fallen, perhaps to 0 */
        void (*less)(struct connections *connections);
        /* Whether a visitor that has proved itself may come in; see door_events.admits. */
        bool (*admits)(struct connections *connections, const struct handshake *shake);
};

struct connection {
        struct list item; /* these four belong to the owner */
        void *owner;
        uint64_t share; /* the address that it is counted under */
        bool of_peer;
        uint32_t node;       /* the node it dials, or that it claims to be, or HANDSHAKE_NOBODY */
        uint64_t started_ms; /* loop time */
        char from[80];       /* the other side's address as text, once connected */
        struct sockaddr_storage address; /* the other side's address */

        /* private */
        struct connections *connections;
        void (*ended)(struct connection *connection, struct channel *channel, const char *why);
        struct channel *channel;
        uv_timer_t timer;
        uint32_t open;  /* handles not closed yet */
        bool visitor;   /* it came in; false: this node dials */
        bool over;      /* the outcome is known */
        bool lingering; /* refused; waits for the other side to hang up */
        struct lookup *lookup;
        struct addrinfo *found, *next; /* addresses; the next one to try */
        struct addrinfo literal;       /* a numeric host needs no look-up */
        uv_connect_t connect;
        struct handshake shake;
        char why[320];
        uint8_t buffer[CONNECTION_READ];
};

/*
 * Accepts a connection from the listener.  ended() gets a channel, which it then owns, or NULL and
 * the reason.  After -errno there is no connection and ended() is not called.
 */
int connection_accept(struct connections *connections, uv_stream_t *listener, void *owner,
                      void (*ended)(struct connection *connection, struct channel *channel,
                                    const char *why),
                      struct connection **ret);
int connection_dial(struct connections *connections, uint32_t node, enum channel_role role,
                    uint64_t token, void *owner,
                    void (*ended)(struct connection *connection, struct channel *channel,
                                  const char *why),
                    struct connection **ret);
/* Ends the connection by force.  Idempotent. */
void connection_stop(struct connection *connection, const char *why);

/* -EINVAL unless the host is a numeric address. */
int connection_parse_address(const char *host, uint16_t port, struct sockaddr_storage *ret);
