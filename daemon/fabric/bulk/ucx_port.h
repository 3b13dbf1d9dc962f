/*
 * ucx_port.h - what the two halves of the UCX path share: ucx.c has the worker and
 * its loop, ucx_transfer.c the payloads.
 *
 * Invariants: what UCX holds of a port is in `inside`, or in `receives` and not yet read, or is the
 * first of `queued` while `waiting`; UCX calls back for none of it when the worker has been
 * destroyed.
 */
#pragma once

#include <ucp/api/ucp.h>

#include "daemon/fabric/bulk/common.h"
#include "proto/cleanup.h"

enum { UCX_AM_PAYLOAD = 1, UCX_AM_CONFIRMATION };

struct bulk_ucx_port {
        struct bulk_base base; /* of the peer that it becomes */
        struct bulk_ucx *ucx;
        ucp_worker_h worker;
        ucp_address_t *address;
        size_t address_size;
        uv_poll_t poll;
        uv_prepare_t prepare;
        struct bulk_queue queue;
        unsigned open_handles;
        bool armed; /* the worker is idle, and its descriptor tells when it is not */

        ucp_ep_h endpoint; /* NULL: not yet a peer */
        bool endpoint_closed;
        uint64_t token;
        bool can_get;          /* rendezvous is one */
        struct list queued;    /* sends of which something is not yet given to UCX */
        bool waiting;          /* the first one's piece waits inside UCX */
        struct list inside;    /* sends by rendezvous */
        struct list receives;  /* by rendezvous, until they are read and confirmed */
        struct list announced; /* payloads that are not expected yet */
        unsigned n_announced;
        struct bulk_event gone;
};

static inline struct bulk_ucx_port *ucx_port_of(struct bulk_peer *peer)
{
        return CONTAINER_OF(peer, struct bulk_ucx_port, base.peer);
}

/* Something was given to the worker: it makes progress in the loop's next turn. */
static inline void ucx_port_wake(struct bulk_ucx_port *port)
{
        port->armed = false;
        bulk_queue_wake(&port->queue);
}

/* bulk_ops.expect, forget and send. */
int ucx_port_expect(struct bulk_peer *peer, uint64_t transfer, void *p, size_t n, bulk_done *done,
                    void *arg);
void ucx_port_forget(struct bulk_peer *peer, uint64_t transfer);
int ucx_port_send(struct bulk_peer *peer, uint64_t transfer, const void *p, size_t n,
                  bulk_done *done, void *arg);
/* Gives UCX what it takes now of what is queued, within a round; true if it took anything. */
bool ucx_port_pump(struct bulk_ucx_port *port);
/* Forgets all that is announced and not expected. */
void ucx_port_forget_all(struct bulk_ucx_port *port);
/* Whether UCX holds nothing. */
bool ucx_port_is_empty(const struct bulk_ucx_port *port);
/* The worker is gone: everything that is left ends as cancelled. */
void ucx_port_cancel(struct bulk_ucx_port *port);
/* The worker's handlers of active messages; arg is the port. */
ucs_status_t ucx_port_on_payload(void *arg, const void *header, size_t header_size, void *data,
                                 size_t length, const ucp_am_recv_param_t *param);
ucs_status_t ucx_port_on_confirmation(void *arg, const void *header, size_t header_size, void *data,
                                      size_t length, const ucp_am_recv_param_t *param);
