/*
 * link.h - the links to all other nodes of the cluster, and authenticated connections to them.
 *
 * A pair of nodes has one link.  The node with the lower index dials it, again and again with
 * back-off, so daemons may start in any order.  A link (encrypted.h) carries LinkMessages,
 * encrypted and in order, with heartbeats; a link that is silent for MEMBERS_SILENCE_MS is cut.  If
 * a node comes with a new link while its old one stands, the new link wins: the node is reported
 * down, then up.  But a second daemon with the same name is refused while the first one's link
 * answers.
 *
 * Loop thread only; no call runs a callback.
 *
 * The process must ignore SIGPIPE.
 */
#pragma once

#include <sodium.h>
#include <uv.h>

#include "daemon/floor/conf/conf.h"
#include "proto/fault.h"
#include "proto/zero.pb-c.h"

/* ---- an authenticated TCP connection to another node ---- */

/*
 * The versions of messages on links and bulk paths that this release speaks.  The newest counts up
 * with what an older release would not understand; the oldest is the newest of the release before.
 */
enum { MESSAGES_OLDEST = 9, MESSAGES_NEWEST = 10 };
/* The version that has Goodbye and Grants, jobs that accumulate in the wire's dtype, and restores
 * that convert.  All nodes speak it: states keep when steps were decided. */
enum {
        MESSAGES_GOODBYE = 10,
        MESSAGES_GRANTS = 10,
        MESSAGES_ACCUMULATE = 10,
        MESSAGES_CONVERT = 10,
};

enum channel_role { CHANNEL_LINK = 1, CHANNEL_BULK = 2 };
enum { CHANNEL_KEY = CLUSTER_KEY, DOOR_HANDSHAKE_MS = 5000 };

/* An authenticated connection.  Its holder calls channel_close(). */
struct channel {
        uv_tcp_t tcp;  /* not reading; data is free for the holder */
        uint32_t node; /* the peer, index in the cluster */
        enum channel_role role;
        uint32_t speaks; /* version of messages that both speak */
        uint64_t token;  /* from the dialler: the number of its process for a link, the link's token
                            for a bulk channel */
        uint8_t send_key[CHANNEL_KEY], receive_key[CHANNEL_KEY];
        uint8_t *early; /* bytes that came right behind the handshake; owned */
        size_t early_size;
};
/* Closes the connection and frees the channel. */
void channel_close(struct channel *channel);
/* Frees a channel whose tcp is closed already; wipes its keys. */
void channel_free(struct channel *channel);

/* ---- members ---- */

enum { MEMBERS_HEARTBEAT_MS = 1000, MEMBERS_SILENCE_MS = 5000, LINK_MESSAGE_MAX = 64 << 20 };

struct members;

struct members_events {
        void (*up)(void *arg, uint32_t node);
        void (*down)(void *arg, uint32_t node, const char *why);
        /* m is valid during the call only */
        void (*message)(void *arg, uint32_t node, const Zero__LinkMessage *m);
        /* An authenticated bulk channel came in from a node (role bulk). */
        void (*bulk)(void *arg, struct channel *channel);
        void *arg;
};

/* What a node said before its last link ended. */
enum goodbye { GOODBYE_NONE, GOODBYE_STOPPED, GOODBYE_DRAINED };

struct member_info {
        bool up;
        enum goodbye goodbye;                /* NONE again once it is linked again */
        uint64_t since_ms;                   /* loop time of the last change */
        uint64_t last_heard_ms;              /* loop time */
        uint64_t sent_bytes, received_bytes; /* of the link, frames included */
        uint64_t queued_bytes;
        uint64_t round_trip_ns; /* of the last heartbeat; 0: none yet */
        uint32_t speaks;        /* version of messages on the last link; 0: none yet */
        char why[576];          /* why it is down, and what to do if it was refused */
};

/* Times in milliseconds.  Tests set their own. */
struct members_options {
        uint32_t heartbeat, silence, handshake;
        uint32_t dial_first, dial_last; /* back-off between dials: doubled from first to last */
        size_t queue_max;               /* bytes that may wait on one link */
};

/*
 * Listens and starts to dial at once.  The cluster must outlive the members.  After a
 * fault the loop must run once more before it is closed.
 */
int members_new(uv_loop_t *loop, const struct cluster *cluster, const struct members_events *events,
                struct members **ret, struct fault *fault);
int members_new_with(uv_loop_t *loop, const struct cluster *cluster,
                     const struct members_options *options, const struct members_events *events,
                     struct members **ret, struct fault *fault);
/* Ends all links.  No event comes any more, but bulk dials still get their done(). */
void members_close(struct members *members, void (*closed)(void *arg), void *arg);
/*
 * The message is packed before the call returns.  -ENOTCONN if the link is down;
 * -EMSGSIZE above LINK_MESSAGE_MAX; -ENOMEM.
 */
int members_send(struct members *members, uint32_t node, const Zero__LinkMessage *m);
/* Cuts a link whose peer broke a rule of a layer above.  The link is then dialled again. */
void members_cut(struct members *members, uint32_t node, const char *why);
void members_info(const struct members *members, uint32_t node, struct member_info *ret);
/* Dials a bulk channel to a node over the same door. */
int members_dial_bulk(struct members *members, uint32_t node, uint64_t token,
                      void (*done)(void *arg, struct channel *channel, const char *why), void *arg);
