/*
 * bulk_ucx_peer.h - what the two halves of the UCX path share: bulk_ucx.c has the worker and
 * its peers, bulk_ucx_transfer.c their payloads.
 *
 * Invariants: a peer is gone when its endpoint is closed and no send or landing of it is
 * left inside UCX; at most one piece of a peer waits inside UCX.
 */
#pragma once

#include <ucp/api/ucp.h>

#include "daemon/fabric/bulk_common.h"
#include "proto/cleanup.h"

enum { UCX_AM_PAYLOAD = 1, UCX_CLOSED_TOKENS = 64 };

struct bulk_ucx {
        ucp_context_h context;
        ucp_worker_h worker;
        ucp_address_t *address;
        size_t address_size;
        uint64_t self; /* hash of the address */
        char *tls;
        uv_poll_t poll;
        uv_prepare_t prepare;
        struct bulk_queue queue;
        unsigned open_handles;
        struct list peers;
        uint64_t closed_tokens[UCX_CLOSED_TOKENS];
        size_t n_closed;
};

struct ucx_peer {
        struct bulk_base base;
        struct bulk_ucx *ucx;
        struct list link;
        ucp_ep_h endpoint;
        uint64_t token, sender;
        bool can_get;           /* rendezvous is one */
        struct list queued;     /* sends of which something is not yet given to UCX */
        bool waiting;           /* the first one's piece waits inside UCX */
        size_t sends, landings; /* inside UCX */
        bool endpoint_closed;
        struct bulk_event gone;
};

static inline struct ucx_peer *ucx_peer_of(struct bulk_peer *peer)
{
        return CONTAINER_OF(peer, struct ucx_peer, base.peer);
}

/* Behind everything that ends inside UCX: a closing peer may be gone now. */
void ucx_peer_finish(struct ucx_peer *peer);

/* bulk_ops.send. */
int ucx_peer_send(struct bulk_peer *peer, uint64_t transfer, const void *p, size_t n,
                  bulk_done *done, void *arg);
/* Gives UCX what it takes now of what is queued, within a round; true if it took anything. */
bool ucx_peer_pump(struct ucx_peer *peer);
/* What is queued outside UCX ends as cancelled. */
void ucx_peer_cancel(struct ucx_peer *peer);
/* The worker's handler of active messages; arg is the struct bulk_ucx. */
ucs_status_t ucx_on_payload(void *arg, const void *header, size_t header_size, void *data,
                            size_t length, const ucp_am_recv_param_t *param);
