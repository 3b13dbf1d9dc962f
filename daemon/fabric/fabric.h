/*
 * fabric.h - the other nodes, as the rest of the daemon sees them: messages and payloads.
 *
 * A peer is a link (link.h) and a bulk path.  When a link comes up both sides say how they can be
 * reached (BulkHello).  They take UCX if both have it and a probe payload passes within
 * FABRIC_PROBE_MS, and zerod's own TCP otherwise.  Only then is the peer reported up.  When the
 * link ends the bulk peer is closed by force, all its payloads are cancelled, and then the peer is
 * reported down.  A bulk path that breaks or falls silent ends the link.  The fabric makes both
 * again; the layers above repeat their requests.
 *
 * A node is also its own peer: it is reported up in the loop's first turn, and its messages to
 * itself come back through the loop, so the layers above need no special case.  A node cannot send
 * itself a payload: that is a copy.
 *
 * Loop thread only; no call runs a callback before it returns.
 */
#pragma once

#include "daemon/fabric/bulk/bulk.h"
#include "daemon/fabric/link/link.h"

enum { FABRIC_PROBE_MS = 10000 };
enum { FABRIC_BODIES = 80 }; /* above the numbers of bodies in LinkMessage */

struct fabric;

/* Traffic is counted by kind. */
enum traffic {
        TRAFFIC_GATHER,
        TRAFFIC_REDUCE,
        TRAFFIC_STASH,
        TRAFFIC_STATE,
        TRAFFIC_CONTROL,
        TRAFFIC_KINDS
};

struct fabric_events {
        void (*up)(void *arg, uint32_t node);
        void (*down)(void *arg, uint32_t node, const char *why);
        void (*message)(void *arg, uint32_t node, const Zero__LinkMessage *m);
        void *arg;
};

struct fabric_options {
        const struct cluster *cluster; /* must outlive the fabric */
        const char *bulk;              /* "auto", "ucx", "tcp" */
        const char *ucx_tls;           /* NULL: default */
        const char *tcp_payloads;      /* "plain", "authenticated", "encrypted" */
        uint32_t delay_ms;             /* tests: every message waits a random time up to this */
        bool staged;                   /* payloads in GPU memory always pass through host memory */
};

struct fabric_info {
        struct member_info link;
        bool up;              /* link and bulk */
        const char *bulk;     /* "ucx", "tcp", "self" or "none" */
        char bulk_detail[96]; /* UCX transports, for instance; or that the path is silent */
        const char *gpu;      /* GPU memory: "direct" or "staged"; "" if no GPU is in use */
        uint64_t sent[TRAFFIC_KINDS], received[TRAFFIC_KINDS]; /* bytes */
};

/* A cluster of one node needs no key, listens nowhere and dials nobody.  After a fault the loop
 * must run once more before it is closed. */
int fabric_new(uv_loop_t *loop, const struct fabric_options *options,
               const struct fabric_events *events, struct fabric **ret, struct fault *fault);
/* Cancels pending payloads; no event comes after this call. */
void fabric_close(struct fabric *fabric, void (*closed)(void *arg), void *arg);

/* Sends a message to a node, or to self.  -ENOTCONN if the node is not up. */
int fabric_send(struct fabric *fabric, uint32_t node, const Zero__LinkMessage *m);
/* A new transfer number for a payload that this node asks of `node`. */
uint64_t fabric_transfer(struct fabric *fabric, uint32_t node);
/* Whether payloads of n bytes from and to the node may lie in that place; if not, they have to pass
 * through host memory (transfer.h). */
bool fabric_takes(const struct fabric *fabric, uint32_t node, uint32_t place, size_t n);
/* Whether bytes that change while they are sent break the link with the node; if so, callers first
 * copy memory that clients can write to. */
bool fabric_checks(const struct fabric *fabric, uint32_t node);
/* bulk_expect(), bulk_send() and bulk_forget() of bulk.h, counted under a kind. */
int fabric_expect(struct fabric *fabric, uint32_t node, uint64_t transfer, enum traffic kind,
                  void *p, size_t n, bulk_done *done, void *arg);
int fabric_payload(struct fabric *fabric, uint32_t node, uint64_t transfer, enum traffic kind,
                   const void *p, size_t n, bulk_done *done, void *arg);
void fabric_forget(struct fabric *fabric, uint32_t node, uint64_t transfer);
/* Announces a payload (bulk.h) and returns its number, for the message that announces it.  0: the
 * path does not take announcements now, so the other side has to ask for the payload. */
uint64_t fabric_announce(struct fabric *fabric, uint32_t node, enum traffic kind, const void *p,
                         size_t n, bulk_done *done, void *arg);
/* Cuts the link of a peer that broke the protocol. */
void fabric_cut(struct fabric *fabric, uint32_t node, const char *why);
void fabric_info(const struct fabric *fabric, uint32_t node, struct fabric_info *ret);
/* Whether all nodes spoke this version or a later one on their last link. */
bool fabric_all_speak(const struct fabric *fabric, uint32_t version);
/* Tells a node that this one stops in order, if all nodes understand that. */
void fabric_goodbye(struct fabric *fabric, uint32_t node, bool drained);
/* [FABRIC_BODIES]: messages sent to the node, by the number of their body; 0: answers without one.
 */
const uint64_t *fabric_messages(const struct fabric *fabric, uint32_t node);
