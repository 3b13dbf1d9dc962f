/* What the bulk paths share; see common.h. */
#include "daemon/fabric/bulk/common.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/compute/device/place/place.h"
#include "proto/cleanup.h"

/* ---- queue ---- */

static void on_idle(uv_idle_t *idle)
{
        if (!bulk_queue_drain(idle->data))
                uv_idle_stop(idle);
}

void bulk_queue_init(struct bulk_queue *queue, uv_loop_t *loop)
{
        uv_idle_init(loop, &queue->idle);
        queue->idle.data = queue;
        list_init(&queue->events);
}

void bulk_queue_wake(struct bulk_queue *queue)
{
        uv_idle_start(&queue->idle, on_idle);
}

void bulk_queue_push(struct bulk_queue *queue, struct bulk_event *event)
{
        list_insert(&queue->events, &event->link);
        bulk_queue_wake(queue);
}

bool bulk_queue_drain(struct bulk_queue *queue)
{
        struct list now;

        if (list_empty(&queue->events))
                return false;
        /* events that these queue wait for the next round */
        list_insert(&queue->events, &now);
        list_remove(&queue->events);
        while (!list_empty(&now)) {
                struct bulk_event *event = CONTAINER_OF(now.next, struct bulk_event, link);
                list_remove(&event->link);
                event->run(event);
        }
        if (list_empty(&queue->events) && !uv_is_closing((uv_handle_t *)&queue->idle))
                uv_idle_stop(&queue->idle);
        return true;
}

/* ---- ops ---- */

static void run_op(struct bulk_event *event)
{
        struct bulk_op *op = CONTAINER_OF(event, struct bulk_op, event);

        op->done(op->arg, op->status);
        free(op);
}

void bulk_op_init(struct bulk_op *op, bulk_done *done, void *arg)
{
        list_init(&op->event.link);
        op->event.run = run_op;
        op->done = done;
        op->arg = arg;
        op->status = 0;
}

void bulk_op_end(struct bulk_queue *queue, struct bulk_op *op, int status)
{
        op->status = status;
        op->event.run = run_op;
        bulk_queue_push(queue, &op->event);
}

/* ---- receives ---- */

#define ANY_LENGTH SIZE_MAX

static struct receive **bucket_of(const struct receives *l, uint64_t transfer)
{
        return &l->buckets[(transfer * 0x9e3779b97f4a7c15u >> 32) & (l->n_buckets - 1)];
}

static int receives_grow(struct receives *l)
{
        struct receives larger = { .n_buckets = l->n_buckets ? l->n_buckets * 2 : 64 };

        larger.buckets = calloc(larger.n_buckets, sizeof *larger.buckets);
        if (!larger.buckets)
                return -ENOMEM;
        for (size_t i = 0; i < l->n_buckets; i++) {
                for (struct receive *at = l->buckets[i], *next; at; at = next) {
                        struct receive **bucket = bucket_of(&larger, at->transfer);
                        next = at->next;
                        at->next = *bucket;
                        *bucket = at;
                }
        }
        free(l->buckets);
        l->buckets = larger.buckets;
        l->n_buckets = larger.n_buckets;
        return 0;
}

static void receives_remove(struct receives *l, struct receive *receive)
{
        struct receive **at = bucket_of(l, receive->transfer);

        while (*at != receive)
                at = &(*at)->next;
        *at = receive->next;
        l->n--;
}

static struct receive *find(const struct bulk_base *base, uint64_t transfer)
{
        struct receive *at = base->receives.n ? *bucket_of(&base->receives, transfer) : NULL;

        while (at && at->transfer != transfer)
                at = at->next;
        return at;
}

/* -1: the number is not remembered. */
static int forgotten_find(const struct receives *l, uint64_t transfer)
{
        for (int i = 0; i < RECEIVES_FORGOTTEN; i++)
                if (l->forgotten[i].used && l->forgotten[i].transfer == transfer)
                        return i;
        return -1;
}

static void forgotten_add(struct receives *l, uint64_t transfer, size_t n)
{
        l->forgotten[l->next_forgotten].transfer = transfer;
        l->forgotten[l->next_forgotten].n = n;
        l->forgotten[l->next_forgotten].used = true;
        l->next_forgotten = (l->next_forgotten + 1) % RECEIVES_FORGOTTEN;
}

/* True if the number was remembered with this length; the last bytes end that. */
static bool forgotten_take(struct receives *l, uint64_t transfer, uint64_t n, bool last)
{
        int i = forgotten_find(l, transfer);

        if (i < 0)
                return false;
        l->forgotten[i].used = !last;
        return l->forgotten[i].n == n || l->forgotten[i].n == ANY_LENGTH;
}

/* ---- peers ---- */

static void run_breaking(struct bulk_event *event)
{
        struct bulk_base *base = CONTAINER_OF(event, struct bulk_base, breaking);

        if (base->peer.broken)
                base->peer.broken(base->peer.broken_arg, base->why);
}

void bulk_base_init(struct bulk_base *base, const struct bulk_ops *ops, struct bulk_queue *queue,
                    void (*broken)(void *, const char *), void *arg)
{
        *base = (struct bulk_base){
                .peer = { .ops = ops, .broken = broken, .broken_arg = arg },
                .queue = queue,
                .breaking.run = run_breaking,
        };
        list_init(&base->breaking.link);
}

void bulk_base_deinit(struct bulk_base *base)
{
        assert(base->receives.n == 0);
        list_remove(&base->breaking.link);
        free(base->receives.buckets);
}

int bulk_base_usable(const struct bulk_base *base)
{
        return base->broken || base->closing ? -ENOTCONN : 0;
}

int bulk_base_expect(struct bulk_peer *peer, uint64_t transfer, void *p, size_t n, bulk_done *done,
                     void *arg)
{
        struct bulk_base *base = CONTAINER_OF(peer, struct bulk_base, peer);
        struct receives *l = &base->receives;
        struct receive *receive;
        int r = bulk_base_usable(base);

        if (r)
                return r;
        assert(peer->gpu || place_is_host(place_of(p)));
        if (find(base, transfer))
                return -EEXIST;
        if (l->n >= l->n_buckets && (r = receives_grow(l)))
                return r;
        receive = calloc(1, sizeof *receive);
        if (!receive)
                return -ENOMEM;
        bulk_op_init(&receive->op, done, arg);
        receive->transfer = transfer;
        receive->p = p;
        receive->n = n;
        receive->next = *bucket_of(l, transfer);
        *bucket_of(l, transfer) = receive;
        l->n++;
        return 0;
}

void bulk_base_drop(struct bulk_base *base, struct receive *receive)
{
        receives_remove(&base->receives, receive);
        bulk_op_end(base->queue, &receive->op, -ECANCELED);
}

void bulk_base_forget(struct bulk_peer *peer, uint64_t transfer)
{
        struct bulk_base *base = CONTAINER_OF(peer, struct bulk_base, peer);
        struct receive *receive = find(base, transfer);

        if (!receive) {
                if (peer->announces && transfer & BULK_ANNOUNCED &&
                    forgotten_find(&base->receives, transfer) < 0)
                        forgotten_add(&base->receives, transfer, ANY_LENGTH);
                return;
        }
        if (receive->moving) {
                receive->forgotten = true;
                return;
        }
        forgotten_add(&base->receives, transfer, receive->n);
        bulk_base_drop(base, receive);
}

void bulk_base_break(struct bulk_base *base, const char *why)
{
        if (base->broken || base->closing)
                return;
        base->broken = true;
        base->why = why;
        bulk_queue_push(base->queue, &base->breaking);
}

void bulk_base_begin_close(struct bulk_base *base, void (*closed)(void *arg), void *arg)
{
        assert(!base->closing);
        base->closing = true;
        base->closed = closed;
        base->closed_arg = arg;
        list_remove(&base->breaking.link);
        for (size_t i = 0; i < base->receives.n_buckets; i++) {
                for (struct receive *at = base->receives.buckets[i], *next; at; at = next) {
                        next = at->next;
                        if (!at->moving)
                                bulk_base_drop(base, at);
                }
        }
}

/* Finds where n bytes, or the last of them, belong; returns what bulk_base_arrive() returns. */
static int match(struct bulk_base *base, uint64_t transfer, uint64_t n, bool last,
                 struct receive **ret)
{
        struct receive *receive;

        if (base->broken || base->closing)
                return -EPROTO;
        receive = find(base, transfer);
        if (!receive && forgotten_take(&base->receives, transfer, n, last))
                return 1;
        if (!receive && base->peer.announces && transfer & BULK_ANNOUNCED)
                return 2;
        if (!receive || receive->moving) {
                bulk_base_break(base, "it sent a payload that nobody expects");
                return -EPROTO;
        }
        if (receive->n != n) {
                bulk_base_break(base, "it sent a payload of the wrong length");
                return -EPROTO;
        }
        *ret = receive;
        return 0;
}

int bulk_base_arrive(struct bulk_base *base, uint64_t transfer, uint64_t n, struct receive **ret)
{
        struct receive *receive;
        int r = match(base, transfer, n, true, &receive);

        if (r)
                return r;
        if (receive->arrived) {
                bulk_base_break(base, "it sent a payload twice");
                return -EPROTO;
        }
        receive->moving = true;
        *ret = receive;
        return 0;
}

static void ended(struct bulk_base *base, struct receive *receive, int status)
{
        receives_remove(&base->receives, receive);
        if (status == 0)
                base->peer.received_bytes += receive->n;
        bulk_op_end(base->queue, &receive->op, receive->forgotten ? -ECANCELED : status);
}

void bulk_base_whole(struct bulk_base *base, uint64_t transfer, const void *p, uint64_t n)
{
        struct receive *receive;

        assert(!base->peer.announces); /* a payload that nobody expects yet has no place to wait */
        if (bulk_base_arrive(base, transfer, n, &receive))
                return;
        if (place_ops())
                place_ops()->copy(receive->p, p, n);
        else if (n)
                memcpy(receive->p, p, n);
        bulk_base_landed(base, receive, 0);
}

void bulk_base_piece(struct bulk_base *base, uint64_t transfer, uint64_t n, uint64_t offset,
                     const void *p, size_t size)
{
        struct receive *receive;

        if (offset > n || size > n - offset || (size == 0 && n > 0)) {
                bulk_base_break(base, "it sent a piece that lies outside its payload");
                return;
        }
        if (transfer & BULK_ANNOUNCED) {
                bulk_base_break(base, "it sent a piece of an announced payload");
                return;
        }
        if (match(base, transfer, n, offset + size == n, &receive))
                return;
        if (size > n - receive->arrived) {
                bulk_base_break(base, "it sent a piece of a payload twice");
                return;
        }
        if (!place_is_host(place_of(receive->p))) {
                bulk_base_break(base, "it sent a payload for GPU memory in pieces");
                return;
        }
        if (size)
                memcpy(receive->p + offset, p, size);
        receive->arrived += size;
        if (receive->arrived == n)
                ended(base, receive, 0);
}

void bulk_base_landed(struct bulk_base *base, struct receive *receive, int status)
{
        assert(receive->moving);
        ended(base, receive, status);
}
