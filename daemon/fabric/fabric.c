/*
 * The other nodes as the daemon sees them; see fabric.h and core.h.
 *
 * Messages to self wait in a list of their peer, packed and in order.  So do all messages if the
 * options ask for a delay.  Other messages go to the carrier at once.
 */
#include "daemon/fabric/core.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/compute/device/place/place.h"
#include "proto/cleanup.h"
#include "proto/list.h"
#include "proto/sure.h"

enum { FIRST_TRANSFER = 16 }; /* lower numbers are probes */

struct fabric_peer {
        struct fabric *fabric;
        uint32_t node;
        bool up;
        struct bulk_peer *bulk;
        const char *path;
        char detail[96];
        uint64_t next_transfer, next_announced;
        uint32_t announced; /* payloads */
        uint64_t sent[TRAFFIC_KINDS], received[TRAFFIC_KINDS];
        uint64_t messages[FABRIC_BODIES]; /* sent */
        struct list waiting;              /* struct waiting */
        uint64_t last_due;
};

struct waiting {
        struct list link;
        uint64_t due; /* loop time, milliseconds */
        size_t size;
        uint8_t packed[];
};

struct fabric {
        uv_loop_t *loop;
        const struct fabric_carrier_ops *ops;
        void *carrier;
        uint32_t n_nodes, self, delay_ms;
        struct fabric_events events;
        uv_timer_t timer; /* of the first delayed message */
        uv_idle_t idle;   /* while messages to self, or self's up(), wait */
        unsigned open_handles;
        bool self_reported, closing;
        void (*closed)(void *arg);
        void *closed_arg;
        struct fabric_peer peers[ZERO_NODE_MAX];
};

struct payload {
        struct fabric_peer *peer;
        size_t n;
        enum traffic kind;
        bool sent, announced;
        bulk_done *done;
        void *arg;
};

static struct fabric_peer *peer_of(struct fabric *fabric, uint32_t node)
{
        assert(node < fabric->n_nodes);
        return &fabric->peers[node];
}

/* ---- messages that wait ---- */

static void deliver(struct fabric *fabric, uint32_t node, const Zero__LinkMessage *m)
{
        if (!fabric->closing)
                fabric->events.message(fabric->events.arg, node, m);
}

/* A message whose delay is over. */
static void pass_on(struct fabric_peer *peer, const struct waiting *waiting)
{
        struct fabric *fabric = peer->fabric;
        Zero__LinkMessage *m = zero__link_message__unpack(NULL, waiting->size, waiting->packed);

        if (!m) {
                /* out of memory: the link ends, because no message may be lost silently */
                fabric_cut(fabric, peer->node, "out of memory");
                return;
        }
        if (peer->node == fabric->self)
                deliver(fabric, peer->node, m);
        else if (fabric->ops->send(fabric->carrier, peer->node, m))
                fabric_cut(fabric, peer->node, "a message could not be sent");
        zero__link_message__free_unpacked(m, NULL);
}

/* Passes on the due messages that wait now; a message to self may add another one. */
static void pass_on_due(struct fabric_peer *peer)
{
        uint64_t now = uv_now(peer->fabric->loop);
        struct list due;

        list_init(&due);
        list_for_each (&peer->waiting, item) {
                struct waiting *waiting = CONTAINER_OF(item, struct waiting, link);
                if (waiting->due > now)
                        break;
                list_remove(item);
                list_insert(&due, item);
        }
        while (!list_empty(&due)) {
                struct waiting *waiting = CONTAINER_OF(due.next, struct waiting, link);
                list_remove(&waiting->link);
                if (peer->up)
                        pass_on(peer, waiting);
                free(waiting);
        }
}

static void on_timer(uv_timer_t *timer);

/* Starts the timer for the first message that becomes due. */
static void timer_set(struct fabric *fabric)
{
        uint64_t first = UINT64_MAX, now = uv_now(fabric->loop);

        for (uint32_t i = 0; i < fabric->n_nodes; i++) {
                const struct list *waiting = &fabric->peers[i].waiting;
                uint64_t due;
                if (list_empty(waiting))
                        continue;
                due = CONTAINER_OF(waiting->next, struct waiting, link)->due;
                first = due < first ? due : first;
        }
        if (first != UINT64_MAX && !fabric->closing)
                uv_timer_start(&fabric->timer, on_timer, first > now ? first - now : 0, 0);
}

static void on_timer(uv_timer_t *timer)
{
        struct fabric *fabric = timer->data;

        for (uint32_t i = 0; i < fabric->n_nodes; i++)
                pass_on_due(&fabric->peers[i]);
        timer_set(fabric);
}

static void on_idle(uv_idle_t *idle)
{
        struct fabric *fabric = idle->data;

        uv_idle_stop(idle);
        if (!fabric->self_reported && !fabric->closing) {
                fabric->self_reported = true;
                fabric->events.up(fabric->events.arg, fabric->self);
        }
        if (fabric->delay_ms == 0)
                pass_on_due(peer_of(fabric, fabric->self));
}

static void drop_waiting(struct fabric_peer *peer)
{
        list_for_each (&peer->waiting, item) {
                list_remove(item);
                free(CONTAINER_OF(item, struct waiting, link));
        }
}

static int put_off(struct fabric_peer *peer, const Zero__LinkMessage *m)
{
        struct fabric *fabric = peer->fabric;
        size_t size = zero__link_message__get_packed_size(m);
        uint64_t due = uv_now(fabric->loop) + randombytes_uniform(fabric->delay_ms + 1);
        struct waiting *waiting;

        if (size > LINK_MESSAGE_MAX)
                return -EMSGSIZE;
        waiting = sure_realloc(NULL, sizeof *waiting + size); /* no link to this node could end */
        waiting->due = due > peer->last_due ? due : peer->last_due;
        peer->last_due = waiting->due;
        waiting->size = zero__link_message__pack(m, waiting->packed);
        list_insert(&peer->waiting, &waiting->link);
        if (fabric->delay_ms)
                timer_set(fabric);
        else
                uv_idle_start(&fabric->idle, on_idle);
        return 0;
}

int fabric_send(struct fabric *fabric, uint32_t node, const Zero__LinkMessage *m)
{
        struct fabric_peer *peer = peer_of(fabric, node);
        int r;

        if (!peer->up || fabric->closing)
                return -ENOTCONN;
        if (node == fabric->self || fabric->delay_ms)
                r = put_off(peer, m);
        else
                r = fabric->ops->send(fabric->carrier, node, m);
        assert((unsigned)m->body_case < FABRIC_BODIES);
        peer->messages[m->body_case] += r == 0;
        if (r == -ENOMEM) /* a message is lost in the middle of the others */
                fabric_cut(fabric, node, "out of memory");
        return r;
}

/* ---- payloads ---- */

static void on_payload(void *arg, int status)
{
        struct payload *payload = arg;
        struct fabric_peer *peer = payload->peer;

        if (status == 0 && payload->sent)
                peer->sent[payload->kind] += payload->n;
        else if (status == 0)
                peer->received[payload->kind] += payload->n;
        peer->announced -= payload->announced;
        payload->done(payload->arg, status);
        free(payload);
}

static struct payload *payload_new(struct fabric_peer *peer, enum traffic kind, size_t n, bool sent,
                                   bulk_done *done, void *arg)
{
        struct payload *payload = malloc(sizeof *payload);

        if (payload)
                *payload = (struct payload){ peer, n, kind, sent, false, done, arg };
        return payload;
}

uint64_t fabric_transfer(struct fabric *fabric, uint32_t node)
{
        return peer_of(fabric, node)->next_transfer++;
}

bool fabric_takes(const struct fabric *fabric, uint32_t node, uint32_t place, size_t n)
{
        const struct bulk_peer *bulk;

        assert(node < fabric->n_nodes);
        bulk = fabric->peers[node].bulk;
        return place_is_host(place) || (bulk && bulk->gpu && n >= BULK_AWAY_MIN);
}

bool fabric_checks(const struct fabric *fabric, uint32_t node)
{
        const struct bulk_peer *bulk;

        assert(node < fabric->n_nodes);
        bulk = fabric->peers[node].bulk;
        return bulk && bulk->checked;
}

int fabric_expect(struct fabric *fabric, uint32_t node, uint64_t transfer, enum traffic kind,
                  void *p, size_t n, bulk_done *done, void *arg)
{
        struct fabric_peer *peer = peer_of(fabric, node);
        CLEANUP(cleanup_free) struct payload *payload = NULL;
        int r;

        if (!peer->bulk)
                return node == fabric->self ? -EINVAL : -ENOTCONN;
        payload = payload_new(peer, kind, n, false, done, arg);
        if (!payload)
                return -ENOMEM;
        r = peer->bulk->ops->expect(peer->bulk, transfer, p, n, on_payload, payload);
        if (r)
                return r;
        (void)STEAL(payload);
        return 0;
}

int fabric_payload(struct fabric *fabric, uint32_t node, uint64_t transfer, enum traffic kind,
                   const void *p, size_t n, bulk_done *done, void *arg)
{
        struct fabric_peer *peer = peer_of(fabric, node);
        CLEANUP(cleanup_free) struct payload *payload = NULL;
        int r;

        if (!peer->bulk)
                return node == fabric->self ? -EINVAL : -ENOTCONN;
        payload = payload_new(peer, kind, n, true, done, arg);
        if (!payload)
                return -ENOMEM;
        payload->announced = transfer & BULK_ANNOUNCED;
        r = peer->bulk->ops->send(peer->bulk, transfer, p, n, on_payload, payload);
        if (r)
                return r;
        peer->announced += payload->announced;
        (void)STEAL(payload);
        return 0;
}

uint64_t fabric_announce(struct fabric *fabric, uint32_t node, enum traffic kind, const void *p,
                         size_t n, bulk_done *done, void *arg)
{
        struct fabric_peer *peer = peer_of(fabric, node);
        uint64_t transfer = BULK_ANNOUNCED | peer->next_announced;

        if (!peer->bulk || !peer->bulk->announces || !place_is_host(place_of(p)) ||
            peer->announced == BULK_ANNOUNCED_MAX ||
            fabric_payload(fabric, node, transfer, kind, p, n, done, arg))
                return 0;
        peer->next_announced++;
        return transfer;
}

void fabric_forget(struct fabric *fabric, uint32_t node, uint64_t transfer)
{
        struct fabric_peer *peer = peer_of(fabric, node);

        if (peer->bulk)
                peer->bulk->ops->forget(peer->bulk, transfer);
}

/* ---- what the carrier says ---- */

void fabric_core_up(struct fabric *fabric, uint32_t node, struct bulk_peer *bulk, const char *path,
                    const char *detail)
{
        struct fabric_peer *peer = peer_of(fabric, node);

        assert(!peer->up);
        peer->up = true;
        peer->bulk = bulk;
        peer->path = path;
        snprintf(peer->detail, sizeof peer->detail, "%s", detail);
        if (!fabric->closing)
                fabric->events.up(fabric->events.arg, node);
}

void fabric_core_lost(struct fabric *fabric, uint32_t node)
{
        struct fabric_peer *peer = peer_of(fabric, node);

        peer->up = false;
        peer->bulk = NULL;
        peer->path = "none";
        peer->detail[0] = '\0';
        drop_waiting(peer);
}

void fabric_core_down(struct fabric *fabric, uint32_t node, const char *why)
{
        assert(!peer_of(fabric, node)->up);
        if (!fabric->closing)
                fabric->events.down(fabric->events.arg, node, why);
}

void fabric_core_message(struct fabric *fabric, uint32_t node, const Zero__LinkMessage *m)
{
        deliver(fabric, node, m);
}

void fabric_cut(struct fabric *fabric, uint32_t node, const char *why)
{
        if (node != fabric->self && fabric->ops)
                fabric->ops->cut(fabric->carrier, node, why);
}

const uint64_t *fabric_messages(const struct fabric *fabric, uint32_t node)
{
        assert(node < fabric->n_nodes);
        return fabric->peers[node].messages;
}

void fabric_info(const struct fabric *fabric, uint32_t node, struct fabric_info *ret)
{
        const struct fabric_peer *peer = &fabric->peers[node];

        assert(node < fabric->n_nodes);
        *ret = (struct fabric_info){ .up = peer->up, .bulk = peer->path, .gpu = "" };
        if (peer->bulk && place_ops())
                ret->gpu = peer->bulk->gpu ? "direct" : "staged";
        if (node != fabric->self && fabric->ops)
                fabric->ops->info(fabric->carrier, node, &ret->link);
        else
                ret->link.up = true;
        memcpy(ret->bulk_detail, peer->detail, sizeof ret->bulk_detail);
        if (peer->bulk && peer->bulk->silent_ms > 2 * BULK_BEAT_MS)
                snprintf(ret->bulk_detail, sizeof ret->bulk_detail, "silent for %u s",
                         peer->bulk->silent_ms / 1000);
        memcpy(ret->sent, peer->sent, sizeof ret->sent);
        memcpy(ret->received, peer->received, sizeof ret->received);
        ret->sent[TRAFFIC_CONTROL] = ret->link.sent_bytes;
        ret->received[TRAFFIC_CONTROL] = ret->link.received_bytes;
}

bool fabric_all_speak(const struct fabric *fabric, uint32_t version)
{
        for (uint32_t i = 0; i < fabric->n_nodes; i++) {
                struct fabric_info info;

                fabric_info(fabric, i, &info);
                if (i != fabric->self && info.link.speaks < version)
                        return false;
        }
        return true;
}

void fabric_goodbye(struct fabric *fabric, uint32_t node, bool drained)
{
        Zero__Goodbye goodbye = ZERO__GOODBYE__INIT;
        Zero__LinkMessage m = ZERO__LINK_MESSAGE__INIT;

        if (node == fabric->self || !fabric_all_speak(fabric, MESSAGES_GOODBYE))
                return;
        goodbye.drained = drained;
        m.body_case = ZERO__LINK_MESSAGE__BODY_GOODBYE;
        m.goodbye = &goodbye;
        (void)fabric_send(fabric, node, &m); /* a node that is down hears it when it is up */
}

/* ---- life ---- */

int fabric_core_new(uv_loop_t *loop, const struct fabric_core_options *options,
                    const struct fabric_events *events, struct fabric **ret)
{
        struct fabric *fabric = calloc(1, sizeof *fabric);

        if (!fabric)
                return -ENOMEM;
        fabric->loop = loop;
        fabric->n_nodes = options->n_nodes;
        fabric->self = options->self;
        fabric->delay_ms = options->delay_ms;
        fabric->events = *events;
        for (uint32_t i = 0; i < fabric->n_nodes; i++) {
                struct fabric_peer *peer = &fabric->peers[i];
                peer->fabric = fabric;
                peer->node = i;
                peer->path = "none";
                peer->next_transfer = FIRST_TRANSFER;
                list_init(&peer->waiting);
        }
        fabric->peers[fabric->self].up = true;
        fabric->peers[fabric->self].path = "self";
        uv_timer_init(loop, &fabric->timer);
        fabric->timer.data = fabric;
        uv_idle_init(loop, &fabric->idle);
        fabric->idle.data = fabric;
        uv_idle_start(&fabric->idle, on_idle);
        fabric->open_handles = 2;
        *ret = fabric;
        return 0;
}

void fabric_core_set_carrier(struct fabric *fabric, const struct fabric_carrier_ops *ops,
                             void *carrier)
{
        fabric->ops = ops;
        fabric->carrier = carrier;
}

static void on_handle_closed(uv_handle_t *handle)
{
        struct fabric *fabric = handle->data;

        if (--fabric->open_handles > 0)
                return;
        if (fabric->closed)
                fabric->closed(fabric->closed_arg);
        free(fabric);
}

void fabric_core_closed(struct fabric *fabric)
{
        for (uint32_t i = 0; i < fabric->n_nodes; i++)
                drop_waiting(&fabric->peers[i]);
        uv_close((uv_handle_t *)&fabric->timer, on_handle_closed);
        uv_close((uv_handle_t *)&fabric->idle, on_handle_closed);
}

void fabric_close(struct fabric *fabric, void (*closed)(void *arg), void *arg)
{
        assert(!fabric->closing);
        fabric->closing = true;
        fabric->closed = closed;
        fabric->closed_arg = arg;
        if (fabric->ops)
                fabric->ops->close(fabric->carrier);
        else
                fabric_core_closed(fabric);
}
