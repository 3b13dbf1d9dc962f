/*
 * door.h - where authenticated connections come from: accepted, or dialled.
 *
 * Both sides prove that they hold the cluster key (challenge and response over both
 * nonces), that they speak the same protocol version and mean the same owner list, and
 * derive directional session keys from key, roles, node ids, nonces, version and list hash
 * (handshake.h, I/O-free).  The door accepts and dials; before authentication
 * connections are few (DOOR_HALF_OPEN_MAX), shared fairly between the addresses they come from, and
 * time-limited (DOOR_HANDSHAKE_MS).
 */
#pragma once

#include "daemon/fabric/link/link.h"

enum { DOOR_HALF_OPEN_MAX = 128 };

struct door;
struct door_events {
        /* An authenticated peer came in; take the channel or channel_close() it. */
        void (*incoming)(void *arg, struct channel *channel);
        /* A connection from an address, which called itself that node, was refused; may be NULL. */
        void (*refused)(void *arg, uint32_t node, const char *from, const char *why);
        /* Whether a peer that has proved itself may come in.  Else it is told that another daemon
         * of its name is linked.  NULL: it may. */
        bool (*admits)(void *arg, uint32_t node, enum channel_role role, uint64_t token);
        void *arg;
};
/*
 * Listens at the cluster's own address; host "" or a cluster of one: listens nowhere.
 * Looks up its own host name, so it may block: before the loop runs.  The cluster must
 * outlive the door.
 */
int door_open(uv_loop_t *loop, const struct cluster *cluster, const struct door_events *events,
              struct door **ret, struct fault *fault);
/* Of connections from now on; DOOR_HANDSHAKE_MS unless set. */
void door_set_deadline(struct door *door, uint32_t ms);
/*
 * done(channel or NULL, why), once: on the loop, within the handshake's deadline, or when
 * the door closes.  why is valid during the call.
 */
int door_dial(struct door *door, uint32_t node, enum channel_role role, uint64_t token,
              void (*done)(void *arg, struct channel *channel, const char *why), void *arg);
/* Ends what is not authenticated yet; no peer comes in any more. */
void door_close(struct door *door, void (*closed)(void *arg), void *arg);
