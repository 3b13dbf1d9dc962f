/*
 * links.h - the fabric between real nodes: members (link.h) carry the messages, and each has a bulk
 * path, on which both sides agree (choice.h) before the node is reported up.
 *
 * links.c takes the events of members and of the other side; agree.c carries out the actions of the
 * negotiation.
 *
 * Invariants: a node's negotiation begins only when the bulk paths of its previous link are closed
 * (`closing` is 0); the result of a dial belongs to the link that had the dial's token.
 */
#pragma once

#include "daemon/fabric/choice.h"
#include "daemon/fabric/core.h"
#include "daemon/fabric/probe.h"
#include "daemon/fabric/reach.h"

enum { LINK_ADDRESS_MAX = 4096 };

struct link_peer {
        struct links *links;
        uint32_t node;
        bool linked;   /* the link is up */
        bool reported; /* reported up to the core */
        bool lost;     /* reported lost; reported down once its bulk path is closed */
        struct choice choice;
        uint64_t token;        /* of this link, chosen by the lower node */
        bool heard;            /* its hello has come; the fields below keep it */
        bool reaches;          /* UCX may reach it */
        bool takes_gpu;        /* it says that its end takes GPU memory */
        enum bulk_seal seal;   /* of payloads over TCP: the stronger of the two sides' seals */
        bool aes;              /* both sides' CPUs have it */
        unsigned gpu_failures; /* of GPU memory over UCX, in a row */
        uint8_t address[LINK_ADDRESS_MAX];
        size_t address_size;
        struct bulk_ucx_port *port; /* until it becomes the bulk path */
        struct bulk_peer *bulk;
        unsigned closing; /* bulk peers that are closing */
        struct probe *probe;
        uv_timer_t deadline;
        char why_tcp[96];       /* why the path is not UCX */
        const char *why_staged; /* why GPU memory is staged */
        char why_down[160];     /* for fabric_core_down() */
};

struct links {
        uv_loop_t *loop;
        struct fabric *fabric;
        const struct cluster *cluster;
        struct members *members;
        struct bulk_ucx *ucx; /* NULL: this node does not use UCX */
        bool ucx_only;
        enum bulk_seal seal;    /* the weakest that this node accepts over TCP */
        const char *why_staged; /* why this node stages all GPU memory; NULL: it need not */
        char why_no_ucx[96];
        uint32_t n_nodes, self;
        uint8_t host[REACH_HOST];
        bool closing, ending;
        unsigned open_handles;
        struct link_peer peers[ZERO_NODE_MAX];
};

/* Whether this node is the lower one of the link's two nodes. */
static inline bool link_peer_is_lower(const struct link_peer *peer)
{
        return peer->links->self < peer->node;
}

/* Says hello.  The link stands and the old bulk paths are closed. */
void link_peer_begin(struct link_peer *peer);
/* The other side has said hello. */
void link_peer_heard_hello(struct link_peer *peer);
void link_peer_step(struct link_peer *peer, enum choice_event event);
/* Closes the bulk path, or the port that would become one, if there is either. */
void link_peer_drop_bulk(struct link_peer *peer);
/* Takes a bulk channel over, or closes it. */
void link_peer_take_channel(struct link_peer *peer, struct channel *channel);

/* While closing: closes the members once all bulk paths are closed, and then frees the links. */
void links_finish(struct links *links);
