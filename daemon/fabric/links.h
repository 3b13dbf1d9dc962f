/*
 * links.h - the fabric between real nodes: members for the messages, and for each of
 * them a bulk path that both sides agree on (choice.h) before the node is reported up.
 *
 * links.c listens to members and the other side; agree.c carries out what the
 * negotiation asks for.
 *
 * Invariants: a node's negotiation begins only when the bulk paths of its former link are
 * closed (`closing` is 0); a dial's result belongs to the link that had its token.
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
        bool linked;   /* members say so */
        bool reported; /* up, to the core */
        bool lost;     /* down is to be reported when its bulk path is closed */
        struct choice choice;
        uint64_t token;        /* of this link, chosen by the lower node */
        bool heard;            /* its hello, which is kept here */
        bool reaches;          /* UCX may reach it */
        bool takes_gpu;        /* its end takes GPU memory, it says */
        enum bulk_seal seal;   /* of payloads over TCP: the stronger one of both sides */
        unsigned gpu_failures; /* in a row, of GPU memory over UCX */
        uint8_t address[LINK_ADDRESS_MAX];
        size_t address_size;
        struct bulk_ucx_port *port; /* until it has become the bulk path */
        struct bulk_peer *bulk;
        unsigned closing; /* bulk peers on their way out */
        struct probe *probe;
        uv_timer_t deadline;
        char why_tcp[96];       /* why it is not UCX */
        const char *why_staged; /* why GPU memory does not go by the path itself */
        char why_down[160];     /* to be reported */
};

struct links {
        uv_loop_t *loop;
        struct fabric *fabric;
        const struct cluster *cluster;
        struct members *members;
        struct bulk_ucx *ucx; /* NULL: none here */
        bool ucx_only;
        enum bulk_seal seal;    /* the least that this node takes over TCP */
        const char *why_staged; /* why GPU memory goes by no path of this node's; NULL: it may */
        char why_no_ucx[96];
        uint32_t n_nodes, self;
        uint8_t host[REACH_HOST];
        bool closing, ending;
        unsigned open_handles;
        struct link_peer peers[ZERO_NODE_MAX];
};

/* Of the two nodes of a link. */
static inline bool link_peer_is_lower(const struct link_peer *peer)
{
        return peer->links->self < peer->node;
}

/* The link stands and the old bulk paths are closed: says hello. */
void link_peer_begin(struct link_peer *peer);
/* The other side has said hello, and the negotiation has begun or will. */
void link_peer_heard_hello(struct link_peer *peer);
void link_peer_step(struct link_peer *peer, enum choice_event event);
/* Closes the bulk path, if there is one (then links_bulk_closed()), or the port for one. */
void link_peer_drop_bulk(struct link_peer *peer);
/* Takes a bulk channel over, or closes it. */
void link_peer_take_channel(struct link_peer *peer, struct channel *channel);

/* While closing: ends the members once all bulk paths are closed, and then frees the links. */
void links_finish(struct links *links);
