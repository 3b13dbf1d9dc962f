/*
 * Several nodes in one process; see fabric_inproc.h.
 *
 * Everything that happens between two nodes is an event in the queue of one of them: a
 * message that arrives, the link's end, its begin.  Invariant: `linked` is the same on both
 * sides; a link begins only when both sides have no bulk path and nothing queued of the former.
 */
#include "tests/support/fabric_inproc.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/fabric/bulk/common.h"
#include "daemon/fabric/core.h"
#include "proto/cleanup.h"

struct inproc_node;

/* What one node has of another. */
struct inproc_peer {
        struct inproc_node *node;
        uint32_t index;
        bool linked; /* messages pass */
        bool up;     /* the core was told */
        bool ending; /* the end is queued, or its bulk path is being closed */
        struct bulk_peer *bulk;
        struct bulk_event begin, end;
        struct list messages; /* struct inproc_message, on their way to this node */
        uint64_t sent_bytes, received_bytes, since_ms;
        char why[160];
};

struct inproc_node {
        struct inproc_net *net;
        uint32_t self;
        struct fabric *fabric;
        struct bulk_queue queue;
        bool closing;
        struct inproc_peer peers[];
};

struct inproc_net {
        uv_loop_t *loop;
        uint32_t n_nodes;
        struct inproc_node *nodes[ZERO_NODE_MAX];
};

struct inproc_message {
        struct bulk_event event;
        struct list link;
        struct inproc_peer *to;
        size_t size;
        uint8_t packed[];
};

/* How the other node sees this peer's owner; NULL: it is not there. */
static struct inproc_peer *mirror(const struct inproc_peer *peer)
{
        struct inproc_node *other = peer->node->net->nodes[peer->index];

        return other ? &other->peers[peer->node->self] : NULL;
}

static bool may_begin(const struct inproc_peer *peer)
{
        return peer && !peer->linked && !peer->ending && !peer->bulk && !peer->node->closing;
}

static void on_broken(void *arg, const char *why);

/* Both sides, at once; each is told in its own event. */
static void link_up(struct inproc_peer *peer)
{
        struct inproc_peer *other = mirror(peer);
        uint64_t token = 1;

        if (!may_begin(peer) || !may_begin(other))
                return;
        if (bulk_inproc_pair(peer->node->net->loop, token, &peer->bulk, &other->bulk))
                return;
        for (int i = 0; i < 2; i++, peer = other) {
                peer->bulk->broken = on_broken;
                peer->bulk->broken_arg = peer;
                peer->linked = true;
                peer->since_ms = uv_now(peer->node->net->loop);
                bulk_queue_push(&peer->node->queue, &peer->begin);
        }
}

static void run_begin(struct bulk_event *event)
{
        struct inproc_peer *peer = CONTAINER_OF(event, struct inproc_peer, begin);

        if (!peer->linked)
                return;
        peer->up = true;
        fabric_core_up(peer->node->fabric, peer->index, peer->bulk, "inproc", "");
}

/* ---- the end of a link ---- */

static void finish(struct inproc_node *node);

static void on_bulk_closed(void *arg)
{
        struct inproc_peer *peer = arg;

        peer->ending = false;
        if (peer->up && !peer->node->closing)
                fabric_core_down(peer->node->fabric, peer->index, peer->why);
        peer->up = false;
        if (peer->node->closing)
                finish(peer->node);
        else
                link_up(peer);
}

static void close_bulk(struct inproc_peer *peer)
{
        struct bulk_peer *bulk = STEAL(peer->bulk);

        if (peer->up)
                fabric_core_lost(peer->node->fabric, peer->index);
        bulk->ops->close(bulk, on_bulk_closed, peer);
}

static void run_end(struct bulk_event *event)
{
        close_bulk(CONTAINER_OF(event, struct inproc_peer, end));
}

static void drop_messages(struct inproc_peer *peer)
{
        list_for_each (&peer->messages, item) {
                struct inproc_message *message = CONTAINER_OF(item, struct inproc_message, link);
                list_remove(&message->link);
                list_remove(&message->event.link);
                free(message);
        }
}

static void link_down_here(struct inproc_peer *peer, const char *why)
{
        peer->linked = false;
        peer->ending = true;
        peer->since_ms = uv_now(peer->node->net->loop);
        snprintf(peer->why, sizeof peer->why, "%s", why);
        drop_messages(peer);
        list_remove(&peer->begin.link);
}

static void link_down(struct inproc_peer *peer, const char *why)
{
        struct inproc_peer *other = mirror(peer);

        if (!peer->linked)
                return;
        link_down_here(peer, why);
        bulk_queue_push(&peer->node->queue, &peer->end);
        if (!other)
                return;
        link_down_here(other, why);
        bulk_queue_push(&other->node->queue, &other->end);
}

static void on_broken(void *arg, const char *why)
{
        link_down(arg, why);
}

/* ---- the carrier ---- */

static void run_message(struct bulk_event *event)
{
        struct inproc_message *message = CONTAINER_OF(event, struct inproc_message, event);
        struct inproc_peer *to = message->to;
        Zero__LinkMessage *m = zero__link_message__unpack(NULL, message->size, message->packed);

        list_remove(&message->link);
        to->received_bytes += message->size;
        free(message);
        if (!m) {
                link_down(to, "out of memory");
                return;
        }
        fabric_core_message(to->node->fabric, to->index, m);
        zero__link_message__free_unpacked(m, NULL);
}

static int carrier_send(void *carrier, uint32_t index, const Zero__LinkMessage *m)
{
        struct inproc_node *node = carrier;
        struct inproc_peer *peer = &node->peers[index], *to = mirror(peer);
        size_t size = zero__link_message__get_packed_size(m);
        struct inproc_message *message;

        if (!peer->linked)
                return -ENOTCONN;
        message = calloc(1, sizeof *message + size);
        if (!message)
                return -ENOMEM;
        message->event.run = run_message;
        message->to = to;
        message->size = zero__link_message__pack(m, message->packed);
        peer->sent_bytes += message->size;
        list_insert(&to->messages, &message->link);
        bulk_queue_push(&to->node->queue, &message->event);
        return 0;
}

static void carrier_cut(void *carrier, uint32_t index, const char *why)
{
        struct inproc_node *node = carrier;

        link_down(&node->peers[index], why);
}

static void carrier_info(const void *carrier, uint32_t index, struct member_info *ret)
{
        const struct inproc_node *node = carrier;
        const struct inproc_peer *peer = &node->peers[index];

        *ret = (struct member_info){ .up = peer->linked,
                                     .since_ms = peer->since_ms,
                                     .sent_bytes = peer->sent_bytes,
                                     .received_bytes = peer->received_bytes };
        snprintf(ret->why, sizeof ret->why, "%s", peer->linked ? "" : peer->why);
}

static void on_queue_closed(uv_handle_t *handle)
{
        struct bulk_queue *queue = handle->data;
        struct inproc_node *node = CONTAINER_OF(queue, struct inproc_node, queue);

        node->net->nodes[node->self] = NULL;
        fabric_core_closed(node->fabric);
        free(node);
}

static void finish(struct inproc_node *node)
{
        for (uint32_t i = 0; i < node->net->n_nodes; i++) {
                if (node->peers[i].ending)
                        return;
        }
        if (!uv_is_closing((uv_handle_t *)&node->queue.idle))
                uv_close((uv_handle_t *)&node->queue.idle, on_queue_closed);
}

static void carrier_close(void *carrier)
{
        struct inproc_node *node = carrier;

        node->closing = true;
        for (uint32_t i = 0; i < node->net->n_nodes; i++)
                link_down(&node->peers[i], "the node is going down");
        finish(node);
}

static const struct fabric_carrier_ops carrier_ops = {
        .send = carrier_send,
        .cut = carrier_cut,
        .info = carrier_info,
        .close = carrier_close,
};

/* ---- life ---- */

int inproc_net_new(uv_loop_t *loop, uint32_t n_nodes, struct inproc_net **ret)
{
        struct inproc_net *net;

        if (n_nodes == 0 || n_nodes > ZERO_NODE_MAX)
                return -EINVAL;
        net = calloc(1, sizeof *net);
        if (!net)
                return -ENOMEM;
        net->loop = loop;
        net->n_nodes = n_nodes;
        *ret = net;
        return 0;
}

void inproc_net_free(struct inproc_net *net)
{
        for (uint32_t i = 0; net && i < net->n_nodes; i++)
                assert(!net->nodes[i]);
        free(net);
}

static struct inproc_node *node_new(struct inproc_net *net, uint32_t self)
{
        struct inproc_node *node = calloc(1, sizeof *node + net->n_nodes * sizeof *node->peers);

        if (!node)
                return NULL;
        node->net = net;
        node->self = self;
        bulk_queue_init(&node->queue, net->loop);
        for (uint32_t i = 0; i < net->n_nodes; i++) {
                struct inproc_peer *peer = &node->peers[i];
                peer->node = node;
                peer->index = i;
                peer->begin.run = run_begin;
                peer->end.run = run_end;
                list_init(&peer->begin.link);
                list_init(&peer->end.link);
                list_init(&peer->messages);
                snprintf(peer->why, sizeof peer->why, "not there yet");
        }
        return node;
}

int fabric_new_inproc(struct inproc_net *net, uint32_t self, uint32_t delay_ms,
                      const struct fabric_events *events, struct fabric **ret)
{
        const struct fabric_core_options options = { net->n_nodes, self, delay_ms };
        struct inproc_node *node;
        struct fabric *fabric;
        int r;

        if (self >= net->n_nodes || net->nodes[self])
                return -EINVAL;
        r = fabric_core_new(net->loop, &options, events, &fabric);
        if (r)
                return r;
        node = node_new(net, self);
        if (!node) {
                fabric_close(fabric, NULL, NULL);
                return -ENOMEM;
        }
        node->fabric = fabric;
        net->nodes[self] = node;
        fabric_core_set_carrier(fabric, &carrier_ops, node);
        for (uint32_t i = 0; i < net->n_nodes; i++) {
                if (i != self)
                        link_up(&node->peers[i]);
        }
        *ret = fabric;
        return 0;
}
