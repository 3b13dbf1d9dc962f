/*
 * encrypted.h - small messages between two nodes, encrypted, in order, over one channel.
 *
 * Each side first sends the 24-byte header of its secretstream (XChaCha20-Poly1305), then frames
 * (frame.h) of one encrypted message each, which authenticates the frame's length too.  The
 * stream's tag says whether a message is the owner's, a ping, a pong, or a goodbye with the reason.
 * Any byte that comes is a sign of life.  A link is cut if it is silent for silence_ms, or if its
 * peer does not read while more than queue_max bytes wait.
 *
 * Loop thread only; no call runs a callback.
 */
#pragma once

#include "daemon/fabric/link/link.h"

struct link;

struct link_options {
        uint32_t heartbeat_ms;
        uint32_t silence_ms; /* counted in heartbeats, so that a stopped loop blames nobody */
        size_t message_max;  /* bytes of one message, either way */
        size_t queue_max;    /* bytes of memory that messages not yet sent may take */
};

struct link_stats {
        uint64_t sent_bytes, received_bytes; /* frames included */
        uint64_t queued_bytes;
        uint64_t last_heard_ms; /* loop time */
        uint64_t round_trip_ns; /* of the last heartbeat; 0: none yet */
};

struct link_events {
        /* p is valid during the call only.  The callee may cut the link. */
        void (*message)(void *arg, const uint8_t *p, size_t n);
        /* The last event, called once, whoever ended the link.  The link is gone. */
        void (*ended)(void *arg, const struct link_stats *last, const char *why);
        void *arg;
};

/* On success the link owns the channel. */
int link_new(struct channel *channel, const struct link_options *options,
             const struct link_events *events, struct link **ret);
/* Encrypts and queues a message.  -EMSGSIZE, -ENOMEM, -ENOTCONN (the link is ending, perhaps
 * because of this call). */
int link_send(struct link *link, const void *p, size_t n);
/* Ends the link, and tells the peer why if the socket takes that at once.  Idempotent. */
void link_cut(struct link *link, const char *why);
/* Whether the link was cut or broke.  ended() has not been called yet. */
bool link_is_ending(const struct link *link);
void link_get_stats(const struct link *link, struct link_stats *ret);
