/*
 * connection.h - a connection until it is authenticated, on either side.
 *
 * Looks the host up, connects (dialler), shakes hands, within one deadline.  Whatever
 * happens, ended() is called once, later, on the loop; then the connection is gone.  Before
 * that a stranger costs one struct connection, one struct channel and a descriptor.
 */
#pragma once

#include "daemon/fabric/link/handshake.h"
#include "proto/list.h"

/* How long a refused connection may stay to read why. */
enum { CONNECTION_READ = 512, CONNECTION_LINGER_MS = 1000 };

/* What the connections of one door share. */
struct connections {
        uv_loop_t *loop;
        const struct cluster *cluster;
        uint32_t deadline_ms;
        uint32_t pending; /* connections and look-ups that are not gone yet */
        /* something went; pending may be 0 now */
        void (*less)(struct connections *connections);
        /* Whether a visitor that has proved itself may come in, as door_events.admits. */
        bool (*admits)(struct connections *connections, const struct handshake *shake);
};

struct connection {
        struct list item; /* the owner's, and these three */
        void *owner;
        uint64_t share; /* of which address it takes a place */
        bool of_peer;
        uint32_t node;       /* whom it dials, or who it claims to be, or HANDSHAKE_NOBODY */
        uint64_t started_ms; /* loop time */
        char from[80];       /* the other side's address, when connected */
        struct sockaddr_storage address; /* the same */

        /* private */
        struct connections *connections;
        void (*ended)(struct connection *connection, struct channel *channel, const char *why);
        struct channel *channel;
        uv_timer_t timer;
        uint32_t open;  /* handles not closed yet */
        bool visitor;   /* it came in; else this node dials */
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
 * Takes a connection from the listener.  ended(channel): the holder's now; or NULL and
 * why.  -errno: no connection was made, and ended() will not be called.
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
/* Ends it by force.  Idempotent. */
void connection_stop(struct connection *connection, const char *why);

/* A channel whose tcp is initialised. */
int channel_new(uv_loop_t *loop, struct channel **ret);
/* "10.0.0.1:7000", or "?:0". */
void connection_address_text(const struct sockaddr_storage *address, char *ret, size_t size);
/* Host as digits: 0; else -EINVAL. */
int connection_parse_address(const char *host, uint16_t port, struct sockaddr_storage *ret);
