/*
 * core.h - the part of a fabric that does not depend on how nodes are reached, and
 * what a carrier, which reaches them, gives and is given.
 *
 * Invariant: a peer has a bulk path exactly while it is up; the carrier owns it, and
 * closes it only behind fabric_core_lost().
 */
#pragma once

#include "daemon/fabric/bulk/bulk.h"
#include "daemon/fabric/fabric.h"

struct fabric_carrier_ops {
        /* As link.h has them. */
        int (*send)(void *carrier, uint32_t node, const Zero__LinkMessage *m);
        void (*cut)(void *carrier, uint32_t node, const char *why);
        void (*info)(const void *carrier, uint32_t node, struct member_info *ret);
        /* Ends everything and frees the carrier; then fabric_core_closed(). */
        void (*close)(void *carrier);
};

struct fabric_core_options {
        uint32_t n_nodes, self, delay_ms;
};

/* events.up() for self comes in the loop's first turn. */
int fabric_core_new(uv_loop_t *loop, const struct fabric_core_options *options,
                    const struct fabric_events *events, struct fabric **ret);
/* Without a carrier there is self alone. */
void fabric_core_set_carrier(struct fabric *fabric, const struct fabric_carrier_ops *ops,
                             void *carrier);

/* A node is there, with this bulk path; path and detail as in struct fabric_info. */
void fabric_core_up(struct fabric *fabric, uint32_t node, struct bulk_peer *bulk, const char *path,
                    const char *detail);
/* It is not there any more; the carrier closes the bulk path now, ... */
void fabric_core_lost(struct fabric *fabric, uint32_t node);
/* ... and has closed it. */
void fabric_core_down(struct fabric *fabric, uint32_t node, const char *why);
/* A message of a node that is up. */
void fabric_core_message(struct fabric *fabric, uint32_t node, const Zero__LinkMessage *m);
void fabric_core_closed(struct fabric *fabric);
