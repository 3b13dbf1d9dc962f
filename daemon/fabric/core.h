/*
 * core.h - the part of a fabric that does not depend on how nodes are reached, and its interface to
 * a carrier, which reaches them.
 *
 * Invariant: a peer has a bulk path exactly while it is up.  The carrier owns the bulk path, and
 * closes it only after fabric_core_lost().
 */
#pragma once

#include "daemon/fabric/bulk/bulk.h"
#include "daemon/fabric/fabric.h"

struct fabric_carrier_ops {
        /* As members_send(), members_cut() and members_info() (link.h). */
        int (*send)(void *carrier, uint32_t node, const Zero__LinkMessage *m);
        void (*cut)(void *carrier, uint32_t node, const char *why);
        void (*info)(const void *carrier, uint32_t node, struct member_info *ret);
        /* Ends everything, frees the carrier and then calls fabric_core_closed(). */
        void (*close)(void *carrier);
};

struct fabric_core_options {
        uint32_t n_nodes, self, delay_ms;
};

/* events.up() for self comes in the loop's first turn. */
int fabric_core_new(uv_loop_t *loop, const struct fabric_core_options *options,
                    const struct fabric_events *events, struct fabric **ret);
/* A fabric without a carrier has only the node itself. */
void fabric_core_set_carrier(struct fabric *fabric, const struct fabric_carrier_ops *ops,
                             void *carrier);

/* The node is up, with this bulk path.  path and detail: as in struct fabric_info. */
void fabric_core_up(struct fabric *fabric, uint32_t node, struct bulk_peer *bulk, const char *path,
                    const char *detail);
/* The node is lost.  The carrier closes the bulk path after this call ... */
void fabric_core_lost(struct fabric *fabric, uint32_t node);
/* ... and makes this one when the bulk path is closed. */
void fabric_core_down(struct fabric *fabric, uint32_t node, const char *why);
/* A message from a node that is up. */
void fabric_core_message(struct fabric *fabric, uint32_t node, const Zero__LinkMessage *m);
void fabric_core_closed(struct fabric *fabric);
