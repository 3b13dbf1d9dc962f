/* The fabric between real nodes; see links.h. */
#include "daemon/fabric/links.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what members say ---- */

static void on_up(void *arg, uint32_t node)
{
        struct links *links = arg;
        struct link_peer *peer = &links->peers[node];

        peer->linked = true;
        peer->heard = false;
        snprintf(peer->why_tcp, sizeof peer->why_tcp, "%s",
                 links->ucx ? "the other side chose TCP" : links->why_no_ucx);
        if (peer->closing == 0 && !links->closing)
                link_peer_begin(peer);
}

static void on_down(void *arg, uint32_t node, const char *why)
{
        struct links *links = arg;
        struct link_peer *peer = &links->peers[node];

        peer->linked = false;
        choice_stop(&peer->choice);
        uv_timer_stop(&peer->deadline);
        snprintf(peer->why_down, sizeof peer->why_down, "%s", why);
        if (peer->reported) {
                peer->reported = false;
                peer->lost = true;
                fabric_core_lost(links->fabric, node);
        }
        link_peer_drop_bulk(peer);
}

static bool hello_is_sound(const struct link_peer *peer, const Zero__BulkHello *m)
{
        return !peer->heard && m->ucx_address.len <= LINK_ADDRESS_MAX &&
               m->host.len == REACH_HOST && m->seal <= BULK_ENCRYPTED &&
               (m->token == 0) == link_peer_is_lower(peer);
}

static void hear_hello(struct link_peer *peer, const Zero__BulkHello *m)
{
        struct links *links = peer->links;

        if (!hello_is_sound(peer, m)) {
                members_cut(links->members, peer->node, "its hello broke the rules");
                return;
        }
        peer->heard = true;
        if (!link_peer_is_lower(peer))
                peer->token = m->token;
        peer->seal = m->seal > links->seal ? (enum bulk_seal)m->seal : links->seal;
        peer->aes = m->aes && bulk_tcp_has_aes();
        peer->address_size = m->ucx_address.len;
        if (peer->address_size)
                memcpy(peer->address, m->ucx_address.data, peer->address_size);
        peer->reaches = links->ucx && peer->address_size &&
                        (memcmp(links->host, m->host.data, REACH_HOST) == 0 ||
                         reach_across(bulk_ucx_tls(links->ucx), m->tls));
        if (links->ucx && !peer->reaches)
                snprintf(peer->why_tcp, sizeof peer->why_tcp, "UCX: %s",
                         peer->address_size ? "no transport reaches this node"
                                            : "the other side does not use UCX");
        link_peer_heard_hello(peer);
}

static void hear_choice(struct link_peer *peer, const Zero__BulkChoice *m)
{
        peer->takes_gpu = m->gpu;
        if (strcmp(m->path, "ucx") == 0)
                link_peer_step(peer, m->ok ? CHOICE_HEARD_UCX : CHOICE_HEARD_FAILED);
        else if (strcmp(m->path, "tcp") == 0 && m->ok)
                link_peer_step(peer, CHOICE_HEARD_TCP);
        else
                members_cut(peer->links->members, peer->node, "it chose an unknown bulk path");
}

static void on_message(void *arg, uint32_t node, const Zero__LinkMessage *m)
{
        struct links *links = arg;
        struct link_peer *peer = &links->peers[node];

        if (links->closing)
                return;
        if (m->body_case == ZERO__LINK_MESSAGE__BODY_BULK_HELLO)
                hear_hello(peer, m->bulk_hello);
        else if (m->body_case == ZERO__LINK_MESSAGE__BODY_BULK_CHOICE)
                hear_choice(peer, m->bulk_choice);
        else if (peer->choice.state == CHOICE_UP)
                fabric_core_message(links->fabric, node, m);
        else if (peer->choice.state != CHOICE_OFF)
                members_cut(links->members, node,
                            "it sent a message before both agreed on a bulk path");
}

static void on_channel(void *arg, struct channel *channel)
{
        struct links *links = arg;
        struct link_peer *peer = &links->peers[channel->node];

        if (peer->choice.state != CHOICE_ACCEPTING || channel->token != peer->token ||
            links->closing)
                channel_close(channel);
        else
                link_peer_take_channel(peer, channel);
}

/* ---- the carrier ---- */

static int carrier_send(void *carrier, uint32_t node, const Zero__LinkMessage *m)
{
        struct links *links = carrier;

        return members_send(links->members, node, m);
}

static void carrier_cut(void *carrier, uint32_t node, const char *why)
{
        struct links *links = carrier;

        if (!links->closing)
                members_cut(links->members, node, why);
}

static void carrier_info(const void *carrier, uint32_t node, struct member_info *ret)
{
        const struct links *links = carrier;

        if (links->members)
                members_info(links->members, node, ret);
}

static void carrier_close(void *carrier)
{
        struct links *links = carrier;

        links->closing = true;
        for (uint32_t i = 0; i < links->n_nodes; i++) {
                struct link_peer *peer = &links->peers[i];
                choice_stop(&peer->choice);
                if (peer->reported)
                        fabric_core_lost(links->fabric, i);
                link_peer_drop_bulk(peer);
        }
        links_finish(links);
}

static const struct fabric_carrier_ops carrier_ops = {
        .send = carrier_send,
        .cut = carrier_cut,
        .info = carrier_info,
        .close = carrier_close,
};

/* ---- life ---- */

static enum bulk_seal seal_of(const struct fabric_options *options)
{
        if (strcmp(options->tcp_payloads, "plain") == 0)
                return BULK_PLAIN;
        return strcmp(options->tcp_payloads, "encrypted") == 0 ? BULK_ENCRYPTED
                                                               : BULK_AUTHENTICATED;
}

/* Opens UCX where the options allow UCX; without UCX the fabric goes on unless the options demand
 * UCX.  UCX does not encrypt: payloads that must be encrypted go over TCP. */
static int open_ucx(struct links *links, const struct fabric_options *options, struct fault *fault)
{
        struct fault mine = { 0 };
        int r;

        links->ucx_only = strcmp(options->bulk, "ucx") == 0;
        links->seal = seal_of(options);
        if (links->ucx_only && links->seal == BULK_ENCRYPTED)
                return fault_set(fault, ZERO_EINVAL,
                                 "bulk = ucx sends payloads in the clear, and tcp_payloads = "
                                 "encrypted forbids that: set bulk = auto or tcp");
        if (strcmp(options->bulk, "tcp") == 0 || links->seal == BULK_ENCRYPTED) {
                snprintf(links->why_no_ucx, sizeof links->why_no_ucx, "%s",
                         links->seal == BULK_ENCRYPTED ? "tcp_payloads = encrypted" : "bulk = tcp");
                return 0;
        }
        r = bulk_ucx_new(options->ucx_tls, &links->ucx, &mine);
        if (r == 0)
                return 0;
        if (r > 0) /* ucx_tls names transports that zerod refuses, whatever bulk says */
                return fault_set(fault, r, "%s", mine.text);
        if (links->ucx_only)
                return fault_set(fault, ZERO_EIO,
                                 "bulk = ucx, but UCX cannot be started (%s): see ucx_info -d for "
                                 "its transports, or set bulk = auto",
                                 strerror(-r));
        snprintf(links->why_no_ucx, sizeof links->why_no_ucx, "no UCX here: %s", strerror(-r));
        return 0;
}

static const char *why_staged(const struct links *links, const struct fabric_options *options)
{
        if (options->staged)
                return "bulk_gpu = staged";
        if (bulk_copied_wanted())
                return NULL;
        if (!links->ucx)
                return "UCX is not used";
        return bulk_ucx_knows_gpus(links->ucx) ? NULL : "UCX here does not know CUDA";
}

static void open_peers(struct links *links, uv_loop_t *loop)
{
        for (uint32_t i = 0; i < links->n_nodes; i++) {
                struct link_peer *peer = &links->peers[i];
                peer->links = links;
                peer->node = i;
                uv_timer_init(loop, &peer->deadline);
                peer->deadline.data = peer;
                links->open_handles++;
        }
}

static int open_links(struct links *links, uv_loop_t *loop, const struct fabric_options *options,
                      struct fault *fault)
{
        const struct members_events events = { on_up, on_down, on_message, on_channel, links };
        int r = open_ucx(links, options, fault);

        if (r)
                return r;
        links->why_staged = why_staged(links, options);
        links->loop = loop;
        links->cluster = options->cluster;
        links->n_nodes = options->cluster->n_nodes;
        links->self = options->cluster->self;
        reach_host(links->host);
        r = members_new(loop, options->cluster, &events, &links->members, fault);
        if (r)
                bulk_ucx_free(links->ucx);
        else
                open_peers(links, loop);
        return r;
}

int fabric_new(uv_loop_t *loop, const struct fabric_options *options,
               const struct fabric_events *events, struct fabric **ret, struct fault *fault)
{
        const struct fabric_core_options core = { options->cluster->n_nodes, options->cluster->self,
                                                  options->delay_ms };
        struct fabric *fabric;
        struct links *links = NULL;
        int r = fabric_core_new(loop, &core, events, &fabric);

        if (r)
                return fault_errno(fault, r, "the fabric");
        if (core.n_nodes > 1) {
                links = calloc(1, sizeof *links);
                r = links ? open_links(links, loop, options, fault)
                          : fault_errno(fault, -ENOMEM, "the fabric");
        }
        if (r) {
                free(links);
                fabric_close(fabric, NULL, NULL);
                return r;
        }
        if (links) {
                links->fabric = fabric;
                fabric_core_set_carrier(fabric, &carrier_ops, links);
        }
        *ret = fabric;
        return 0;
}
