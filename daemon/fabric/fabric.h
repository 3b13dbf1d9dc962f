/*
 * fabric.h - what the daemon sees of the other nodes: messages and payloads.
 *
 * Puts members (links) and bulk paths together.  When a link comes up both sides
 * say how they can be reached (BulkHello), try UCX where both have it and a probe payload
 * passes within FABRIC_PROBE_MS, and else take our own TCP; only then is the peer
 * reported up.  When the link ends, the bulk peer is closed by force, all its
 * payloads are cancelled, and then the peer is reported down.  A bulk path that breaks, or falls
 * silent, ends the link; both are made anew, and what was asked for is asked for again.
 *
 * A node is also its own peer: it is reported up in the loop's first turn, and messages to
 * self come back through the loop, so the layers above need no special case.  Payloads to self
 * are not possible (they are copies).
 * Loop thread only; no call runs a callback before it returns.
 */
#pragma once

#include "daemon/fabric/bulk/bulk.h"
#include "daemon/fabric/link/link.h"

enum { FABRIC_PROBE_MS = 10000 };

struct fabric;

/* Kinds of traffic that are counted. */
enum traffic { TRAFFIC_GATHER, TRAFFIC_REDUCE, TRAFFIC_STATE, TRAFFIC_CONTROL, TRAFFIC_KINDS };

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
        bool staged;                   /* GPU memory never goes by a path itself */
};

struct fabric_info {
        struct member_info link;
        bool up;              /* link and bulk */
        const char *bulk;     /* "ucx", "tcp", "self" or "none" */
        char bulk_detail[96]; /* UCX transports, for instance; or that it is silent */
        const char *gpu;      /* GPU memory: "direct" or "staged"; "" where no GPU is in use */
        uint64_t sent[TRAFFIC_KINDS], received[TRAFFIC_KINDS]; /* bytes */
};

/* A cluster of one needs no key, listens nowhere and dials nobody.  After a fault the loop
 * must run once more before it is closed. */
int fabric_new(uv_loop_t *loop, const struct fabric_options *options,
               const struct fabric_events *events, struct fabric **ret, struct fault *fault);
/* Pending payloads end as cancelled; no event is given any more. */
void fabric_close(struct fabric *fabric, void (*closed)(void *arg), void *arg);

/* A message for a node (or self).  -ENOTCONN if it is not up. */
int fabric_send(struct fabric *fabric, uint32_t node, const Zero__LinkMessage *m);
/* A fresh transfer number for a payload asked of `node`. */
uint64_t fabric_transfer(struct fabric *fabric, uint32_t node);
/* Whether payloads of n bytes from and to that node may lie in GPU memory; else those that use this
 * stage them in host memory. */
bool fabric_takes_gpu(const struct fabric *fabric, uint32_t node, size_t n);
/* Whether the link with that node breaks if bytes change while they are sent; so what clients can
 * write to is copied first. */
bool fabric_checks(const struct fabric *fabric, uint32_t node);
/* bulk.h's expect, send and forget, counted under a kind. */
int fabric_expect(struct fabric *fabric, uint32_t node, uint64_t transfer, enum traffic kind,
                  void *p, size_t n, bulk_done *done, void *arg);
int fabric_payload(struct fabric *fabric, uint32_t node, uint64_t transfer, enum traffic kind,
                   const void *p, size_t n, bulk_done *done, void *arg);
void fabric_forget(struct fabric *fabric, uint32_t node, uint64_t transfer);
/* Announces a payload (bulk.h): its number, for the message that tells of it.  0: the path does not
 * take it now; the other side has to ask. */
uint64_t fabric_announce(struct fabric *fabric, uint32_t node, enum traffic kind, const void *p,
                         size_t n, bulk_done *done, void *arg);
/* The peer broke the protocol: its link is cut. */
void fabric_cut(struct fabric *fabric, uint32_t node, const char *why);
void fabric_info(const struct fabric *fabric, uint32_t node, struct fabric_info *ret);
