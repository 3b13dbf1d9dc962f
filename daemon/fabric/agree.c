/* Makes and closes a link's bulk path; see links.h. */
#include "daemon/fabric/links.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/compute/device/place/place.h"
#include "daemon/floor/base/log.h"
#include "proto/cleanup.h"

enum { GPU_TRIES = 2 };

struct dial {
        struct link_peer *peer;
        uint64_t token;
};

/* ---- what is said ---- */

static void say(struct link_peer *peer, const Zero__LinkMessage *m)
{
        if (members_send(peer->links->members, peer->node, m))
                members_cut(peer->links->members, peer->node, "a message could not be sent");
}

static void say_hello(struct link_peer *peer)
{
        struct links *links = peer->links;
        Zero__LinkMessage m = ZERO__LINK_MESSAGE__INIT;
        Zero__BulkHello hello = ZERO__BULK_HELLO__INIT;

        hello.host.data = links->host;
        hello.host.len = sizeof links->host;
        hello.seal = links->seal;
        hello.aes = bulk_tcp_has_aes();
        hello.token = link_peer_is_lower(peer) ? peer->token : 0;
        if (peer->port) {
                hello.ucx_address.data =
                        (uint8_t *)bulk_ucx_port_address(peer->port, &hello.ucx_address.len);
                hello.tls = (char *)bulk_ucx_tls(links->ucx);
        }
        m.body_case = ZERO__LINK_MESSAGE__BODY_BULK_HELLO;
        m.bulk_hello = &hello;
        say(peer, &m);
}

static void say_choice(struct link_peer *peer, const char *path, bool ok)
{
        Zero__LinkMessage m = ZERO__LINK_MESSAGE__INIT;
        Zero__BulkChoice choice = ZERO__BULK_CHOICE__INIT;

        choice.path = (char *)path;
        choice.ok = ok;
        choice.gpu = peer->bulk && peer->bulk->gpu;
        m.body_case = ZERO__LINK_MESSAGE__BODY_BULK_CHOICE;
        m.bulk_choice = &choice;
        say(peer, &m);
}

/* ---- bulk paths ---- */

static void on_bulk_closed(void *arg);

void link_peer_drop_bulk(struct link_peer *peer)
{
        probe_free(STEAL(peer->probe));
        bulk_ucx_port_free(STEAL(peer->port));
        if (!peer->bulk)
                return;
        peer->closing++;
        peer->bulk->ops->close(peer->bulk, on_bulk_closed, peer);
        peer->bulk = NULL;
}

/* ---- GPU memory ---- */

/* Decides about GPU memory for this end of a new path; the higher node decides for both ends. */
static void settle_gpu(struct link_peer *peer)
{
        const struct links *links = peer->links;

        peer->why_staged = NULL;
        if (links->why_staged)
                peer->why_staged = links->why_staged;
        else if (peer->gpu_failures >= GPU_TRIES)
                peer->why_staged = "GPU memory did not pass over UCX";
        else if (!peer->bulk->gpu)
                peer->why_staged = "UCX cannot read the other side's GPU memory";
        else if (!link_peer_is_lower(peer) && !peer->takes_gpu)
                peer->why_staged = "the other side takes no GPU memory";
        peer->bulk->gpu = !peer->why_staged;
}

/* The lower node knows now whether the other end takes GPU memory. */
static void settle_gpu_by_other(struct link_peer *peer)
{
        if (!peer->bulk->gpu || peer->takes_gpu)
                return;
        peer->bulk->gpu = false;
        peer->why_staged = "the other side takes no GPU memory";
        probe_without_gpu(peer->probe);
}

/* A path failed before both sides agreed on it, perhaps because of GPU memory: cuts the link so
 * that it is made again, and stages GPU memory after GPU_TRIES failures.  False: GPU memory was not
 * in use. */
static bool retry_without_gpu(struct link_peer *peer, const char *why)
{
        if (!peer->bulk || !peer->bulk->gpu || peer->choice.state == CHOICE_UP ||
            peer->choice.state == CHOICE_OFF)
                return false;
        peer->gpu_failures++;
        log_warning("node %s: UCX with GPU memory: %s; the link is made again%s",
                    peer->links->cluster->nodes[peer->node].name, why,
                    peer->gpu_failures < GPU_TRIES ? "" : ", with GPU memory staged");
        choice_stop(&peer->choice);
        uv_timer_stop(&peer->deadline);
        members_cut(peer->links->members, peer->node, "GPU memory did not pass over UCX");
        return true;
}

/* ---- how a path is made ---- */

static void on_broken(void *arg, const char *why)
{
        struct link_peer *peer = arg;

        if (retry_without_gpu(peer, why))
                return;
        if (peer->choice.state == CHOICE_UP)
                snprintf(peer->why_down, sizeof peer->why_down, "bulk path: %s", why);
        snprintf(peer->why_tcp, sizeof peer->why_tcp, "UCX: %s", why);
        link_peer_step(peer, CHOICE_FAILED);
}

static void on_probed(void *arg, bool whole)
{
        struct link_peer *peer = arg;

        if (!whole && retry_without_gpu(peer, "a probe did not pass"))
                return;
        if (!whole)
                snprintf(peer->why_tcp, sizeof peer->why_tcp, "UCX: a probe did not pass");
        link_peer_step(peer, whole ? CHOICE_LANDED : CHOICE_FAILED);
}

/* A trainer may have taken all of the GPU's memory: no reason to do without UCX. */
static int make_probe(struct link_peer *peer)
{
        int r = probe_new(peer->bulk, peer->token, on_probed, peer, &peer->probe);

        if (r != -ENOBUFS)
                return r;
        peer->why_staged = "the GPU had no memory left for a probe";
        peer->bulk->gpu = false;
        return probe_new(peer->bulk, peer->token, on_probed, peer, &peer->probe);
}

static int make_ucx(struct link_peer *peer)
{
        int r = bulk_ucx_peer_new(peer->port, peer->address, peer->address_size, peer->token,
                                  on_broken, peer, &peer->bulk);

        if (r == 0) {
                peer->port = NULL;
                r = bulk_copied(&peer->bulk);
        }
        if (r == 0) {
                settle_gpu(peer);
                r = make_probe(peer);
        }
        if (r)
                snprintf(peer->why_tcp, sizeof peer->why_tcp, "UCX: %s",
                         r == -ENODEV ? "no transport reaches this node" : strerror(-r));
        return r;
}

/* Takes the channel over, or closes it. */
void link_peer_take_channel(struct link_peer *peer, struct channel *channel)
{
        int r = bulk_tcp_peer_new(channel, peer->token, peer->seal, peer->aes, on_broken, peer,
                                  &peer->bulk);

        peer->why_staged = peer->links->why_staged ? peer->links->why_staged : "not over TCP";
        if (r)
                channel_close(channel);
        link_peer_step(peer, r ? CHOICE_FAILED : CHOICE_CHANNEL);
}

static void on_dialled(void *arg, struct channel *channel, const char *why)
{
        struct dial *dial = arg;
        struct link_peer *peer = dial->peer;
        bool wanted = peer->choice.state == CHOICE_DIALLING && peer->token == dial->token &&
                      !peer->links->closing;

        free(dial);
        if (!wanted)
                channel_close(channel);
        else if (channel)
                link_peer_take_channel(peer, channel);
        else
                link_peer_step(peer, CHOICE_FAILED);
}

static int dial_tcp(struct link_peer *peer)
{
        struct dial *dial = malloc(sizeof *dial);
        int r;

        if (!dial)
                return -ENOMEM;
        *dial = (struct dial){ peer, peer->token };
        r = members_dial_bulk(peer->links->members, peer->node, peer->token, on_dialled, dial);
        if (r)
                free(dial);
        return r;
}

/* ---- the negotiation ---- */

static const char *cut_reason(const struct link_peer *peer)
{
        if (peer->why_down[0])
                return peer->why_down;
        if (peer->links->ucx_only)
                return "UCX does not reach this node, and bulk = ucx allows no other path";
        return "no bulk path could be agreed on";
}

static void report_up(struct link_peer *peer)
{
        struct links *links = peer->links;
        bool ucx = peer->choice.path == CHOICE_UCX;
        const char *path = ucx ? "ucx" : "tcp", *name = links->cluster->nodes[peer->node].name;
        const char *detail = ucx ? bulk_ucx_tls(links->ucx) : peer->why_tcp;

        probe_free(STEAL(peer->probe));
        peer->reported = true;
        if (!place_ops())
                log_info("node %s is up, payloads go by %s (%s)", name, path, detail);
        else if (peer->bulk->gpu)
                log_info("node %s is up, payloads go by %s (%s), GPU memory directly", name, path,
                         detail);
        else
                log_info("node %s is up, payloads go by %s (%s), GPU memory staged in the host's: "
                         "%s",
                         name, path, detail, peer->why_staged);
        peer->gpu_failures = peer->bulk->gpu ? 0 : peer->gpu_failures;
        fabric_core_up(links->fabric, peer->node, peer->bulk, path, detail);
}

static void act(struct link_peer *peer, unsigned actions)
{
        bool failed = false;

        if (actions & CHOICE_DROP)
                link_peer_drop_bulk(peer);
        if (actions & CHOICE_MAKE)
                failed = make_ucx(peer) != 0;
        if (!failed && actions & CHOICE_PROBE) {
                settle_gpu_by_other(peer);
                failed = probe_send(peer->probe) != 0;
        }
        if (!failed && actions & CHOICE_DIAL)
                failed = dial_tcp(peer) != 0;
        if (failed) {
                link_peer_step(peer, CHOICE_FAILED);
                return;
        }
        if (actions & CHOICE_SAY_UCX)
                say_choice(peer, "ucx", true);
        if (actions & CHOICE_SAY_FAILED)
                say_choice(peer, "ucx", false);
        if (actions & CHOICE_SAY_TCP)
                say_choice(peer, "tcp", true);
        if (actions & CHOICE_GO_UP)
                report_up(peer);
        if (actions & CHOICE_CUT)
                members_cut(peer->links->members, peer->node, cut_reason(peer));
}

static void on_deadline(uv_timer_t *timer)
{
        struct link_peer *peer = timer->data;

        if (retry_without_gpu(peer, "a probe did not pass in time"))
                return;
        snprintf(peer->why_tcp, sizeof peer->why_tcp, "UCX: no probe passed within %d s",
                 FABRIC_PROBE_MS / 1000);
        link_peer_step(peer, CHOICE_LATE);
}

void link_peer_step(struct link_peer *peer, enum choice_event event)
{
        enum choice_state before = peer->choice.state;
        unsigned actions = choice_step(&peer->choice, event);
        uint32_t ms = choice_deadline_ms(&peer->choice);

        if (ms == 0)
                uv_timer_stop(&peer->deadline);
        else if (peer->choice.state != before)
                uv_timer_start(&peer->deadline, on_deadline, ms, 0);
        act(peer, actions);
}

static void open_port(struct link_peer *peer)
{
        struct links *links = peer->links;
        int r = links->ucx ? bulk_ucx_port_new(links->ucx, links->loop, &peer->port) : 0;

        if (r)
                snprintf(peer->why_tcp, sizeof peer->why_tcp, "no UCX here: %s", strerror(-r));
}

void link_peer_begin(struct link_peer *peer)
{
        peer->why_down[0] = '\0';
        choice_start(&peer->choice, link_peer_is_lower(peer), peer->links->ucx_only);
        if (link_peer_is_lower(peer))
                do
                        randombytes_buf(&peer->token, sizeof peer->token);
                while (peer->token == 0);
        open_port(peer);
        uv_timer_start(&peer->deadline, on_deadline, choice_deadline_ms(&peer->choice), 0);
        say_hello(peer);
        if (peer->heard)
                link_peer_heard_hello(peer);
}

void link_peer_heard_hello(struct link_peer *peer)
{
        peer->choice.may_ucx = peer->port && peer->reaches;
        link_peer_step(peer, CHOICE_HEARD_HELLO);
}

/* ---- the end ---- */

static void on_timer_closed(uv_handle_t *handle)
{
        struct link_peer *peer = handle->data;
        struct links *links = peer->links;

        if (--links->open_handles > 0)
                return;
        fabric_core_closed(links->fabric);
        free(links);
}

static void on_members_closed(void *arg)
{
        struct links *links = arg;

        links->members = NULL;
        bulk_ucx_free(links->ucx);
        for (uint32_t i = 0; i < links->n_nodes; i++)
                uv_close((uv_handle_t *)&links->peers[i].deadline, on_timer_closed);
}

void links_finish(struct links *links)
{
        for (uint32_t i = 0; i < links->n_nodes; i++) {
                if (links->peers[i].closing)
                        return;
        }
        if (links->ending)
                return;
        links->ending = true;
        members_close(links->members, on_members_closed, links);
}

static void on_bulk_closed(void *arg)
{
        struct link_peer *peer = arg;
        struct links *links = peer->links;

        if (--peer->closing > 0)
                return;
        if (peer->lost && !links->closing) {
                peer->lost = false;
                fabric_core_down(links->fabric, peer->node, peer->why_down);
        }
        if (links->closing)
                links_finish(links);
        else if (peer->linked && peer->choice.state == CHOICE_OFF)
                link_peer_begin(peer);
}
