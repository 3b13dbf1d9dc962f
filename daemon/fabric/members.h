/*
 * members.h - the links to all other nodes of the cluster.
 *
 * One link a pair: the node with the lower index dials, again and again with back-off, so
 * daemons may start in any order.  A link carries LinkMessages through libsodium's
 * secretstream in both directions, in order, with heartbeats; one that is silent for
 * MEMBERS_SILENCE_MS is cut.  Loop thread only; no call runs a callback.
 */
#pragma once

#include "daemon/fabric/channel.h"
#include "proto/zero.pb-c.h"

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

struct member_info {
        bool up;
        uint64_t since_ms;      /* loop time of the last change */
        uint64_t last_heard_ms; /* loop time */
        uint64_t sent_bytes, received_bytes; /* of the link, frames included */
        uint64_t queued_bytes;
        uint64_t round_trip_ns; /* of the last heartbeat; 0: none yet */
        char why[160];          /* why it is down, if it was refused: what to do */
};

/* Listens and starts to dial at once. */
int members_new(uv_loop_t *loop, const struct cluster *cluster, const struct members_events *events,
                struct members **ret, struct fault *fault);
void members_close(struct members *members, void (*closed)(void *arg), void *arg);
/* -ENOTCONN if the link is down; the message is packed before the call returns. */
int members_send(struct members *members, uint32_t node, const Zero__LinkMessage *m);
/* Cuts a link whose peer broke a rule of a layer above; it is dialled anew. */
void members_cut(struct members *members, uint32_t node, const char *why);
void members_info(const struct members *members, uint32_t node, struct member_info *ret);
/* Dials a bulk channel to a node over the same door. */
int members_dial_bulk(struct members *members, uint32_t node, uint64_t token,
                      void (*done)(void *arg, struct channel *channel, const char *why), void *arg);
