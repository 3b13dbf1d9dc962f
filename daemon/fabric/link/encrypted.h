/*
 * link.h - small messages between two nodes, encrypted, in order, over one channel.
 *
 * Each side first sends the 24-byte header of its secretstream (XChaCha20-Poly1305), then
 * frames (frame.h) of one encrypted message each; the frame's length is authenticated
 * with it.  The stream's tag says what a message is: the owner's, a ping, a pong, or a goodbye
 * with the reason.  Any byte that comes is a sign of life; a link silent for silence_ms is
 * cut, and so is one whose peer does not read while more than queue_max bytes wait.
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
        /* p is valid during the call only; may cut the link */
        void (*message)(void *arg, const uint8_t *p, size_t n);
        /* Once, whoever ended it, and last: the link is gone then. */
        void (*ended)(void *arg, const struct link_stats *last, const char *why);
        void *arg;
};

/* Takes the channel over, on success only. */
int link_new(struct channel *channel, const struct link_options *options,
             const struct link_events *events, struct link **ret);
/* Encrypts and queues.  -EMSGSIZE, -ENOMEM, -ENOTCONN (it is ending, perhaps since this call). */
int link_send(struct link *link, const void *p, size_t n);
/* Ends the link and tells the peer why, if that can be done at once.  Idempotent. */
void link_cut(struct link *link, const char *why);
/* It was cut or broke; ended() is still to come. */
bool link_is_ending(const struct link *link);
void link_get_stats(const struct link *link, struct link_stats *ret);
