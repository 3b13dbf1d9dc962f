/*
 * door.h - where authenticated connections come from: accepted, or dialled.
 *
 * The door accepts and dials; the handshake (handshake.h) authenticates both sides.  Connections
 * that are not authenticated yet are few (DOOR_HALF_OPEN_MAX), shared fairly between the addresses
 * they come from, and limited in time (DOOR_HANDSHAKE_MS).
 */
#pragma once

#include "daemon/fabric/link/link.h"

enum { DOOR_HALF_OPEN_MAX = 128 };

struct door;
struct door_events {
        /* An authenticated peer came in.  The callee owns the channel and may channel_close() it.
         */
        void (*incoming)(void *arg, struct channel *channel);
        /* A connection that claimed to be `node` was refused.  May be NULL. */
        void (*refused)(void *arg, uint32_t node, const char *from, const char *why);
        /* Whether a peer that has proved itself may come in; if not, it is told that another daemon
         * with its name is linked.  NULL: every such peer may. */
        bool (*admits)(void *arg, uint32_t node, enum channel_role role, uint64_t token);
        void *arg;
};
/*
 * Listens at the cluster's own address; with host "" or in a cluster of one it listens nowhere.
 * Looks up its own host name, which may block, so call it before the loop runs.  The cluster must
 * outlive the door.
 */
int door_open(uv_loop_t *loop, const struct cluster *cluster, const struct door_events *events,
              struct door **ret, struct fault *fault);
/* For connections made from now on; DOOR_HANDSHAKE_MS unless set. */
void door_set_deadline(struct door *door, uint32_t ms);
/*
 * Calls done() once, on the loop, within the handshake's deadline or when the door closes: with a
 * channel, or with NULL and the reason.  `why` is valid during the call.
 */
int door_dial(struct door *door, uint32_t node, enum channel_role role, uint64_t token,
              void (*done)(void *arg, struct channel *channel, const char *why), void *arg);
/* Ends connections that are not authenticated yet.  No peer comes in any more. */
void door_close(struct door *door, void (*closed)(void *arg), void *arg);
