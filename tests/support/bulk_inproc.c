/*
 * The bulk path between two ends in one process: a send is an event in the sender's queue,
 * which copies the bytes into the other end's receive.  Both ends have the one token, so there
 * is none to compare.
 *
 * Invariant: `other` is NULL as soon as either end is closing.
 */
#include "tests/support/fabric_inproc.h"

#include <errno.h>
#include <stdlib.h>

#include "daemon/compute/device/gpu/gpu.h"
#include "daemon/fabric/bulk/common.h"
#include "proto/cleanup.h"

struct inproc_end {
        struct bulk_base base;
        struct bulk_queue queue;
        struct inproc_end *other;
        struct list sends; /* not yet copied */
        struct bulk_event gone;
};

struct inproc_send {
        struct bulk_op op;
        struct list link;
        struct inproc_end *from;
        uint64_t transfer;
        const void *p;
        size_t n;
};

static struct inproc_end *end_of(struct bulk_peer *peer)
{
        return CONTAINER_OF(peer, struct inproc_end, base.peer);
}

static void run_send(struct bulk_event *event)
{
        struct inproc_send *send = CONTAINER_OF(event, struct inproc_send, op.event);
        struct inproc_end *from = send->from;

        list_remove(&send->link);
        if (!from->other) {
                bulk_base_break(&from->base, "the other end is closed");
                bulk_op_end(&from->queue, &send->op, -EIO);
                return;
        }
        bulk_base_whole(&from->other->base, send->transfer, send->p, send->n);
        from->base.peer.sent_bytes += send->n;
        bulk_op_end(&from->queue, &send->op, 0);
}

static int inproc_send(struct bulk_peer *peer, uint64_t transfer, const void *p, size_t n,
                       bulk_done *done, void *arg)
{
        struct inproc_end *end = end_of(peer);
        struct inproc_send *send;
        int r = bulk_base_usable(&end->base);

        if (r)
                return r;
        send = calloc(1, sizeof *send);
        if (!send)
                return -ENOMEM;
        bulk_op_init(&send->op, done, arg);
        send->op.event.run = run_send;
        send->from = end;
        send->transfer = transfer;
        send->p = p;
        send->n = n;
        list_insert(&end->sends, &send->link);
        bulk_queue_push(&end->queue, &send->op.event);
        return 0;
}

static void on_closed(uv_handle_t *handle)
{
        struct bulk_queue *queue = handle->data;
        struct inproc_end *end = CONTAINER_OF(queue, struct inproc_end, queue);

        bulk_base_deinit(&end->base);
        end->base.closed(end->base.closed_arg);
        free(end);
}

static void run_gone(struct bulk_event *event)
{
        struct inproc_end *end = CONTAINER_OF(event, struct inproc_end, gone);

        uv_close((uv_handle_t *)&end->queue.idle, on_closed);
}

static void inproc_close(struct bulk_peer *peer, void (*closed)(void *arg), void *arg)
{
        struct inproc_end *end = end_of(peer);

        bulk_base_begin_close(&end->base, closed, arg);
        list_for_each (&end->sends, item) {
                struct inproc_send *send = CONTAINER_OF(item, struct inproc_send, link);
                list_remove(&send->link);
                list_remove(&send->op.event.link);
                bulk_op_end(&end->queue, &send->op, -ECANCELED);
        }
        if (end->other) {
                bulk_base_break(&end->other->base, "the other end closed");
                end->other->other = NULL;
                end->other = NULL;
        }
        bulk_queue_push(&end->queue, &end->gone);
}

static const struct bulk_ops inproc_ops = {
        .name = "inproc",
        .send = inproc_send,
        .expect = bulk_base_expect,
        .forget = bulk_base_forget,
        .close = inproc_close,
};

static struct inproc_end *end_new(void)
{
        struct inproc_end *end = calloc(1, sizeof *end);

        if (!end)
                return NULL;
        bulk_base_init(&end->base, &inproc_ops, &end->queue, NULL, NULL);
        end->base.peer.gpu = gpus_count() > 0;
        list_init(&end->sends);
        end->gone.run = run_gone;
        list_init(&end->gone.link);
        return end;
}

int bulk_inproc_pair(uv_loop_t *loop, uint64_t token, struct bulk_peer **ret_a,
                     struct bulk_peer **ret_b)
{
        CLEANUP(cleanup_free) struct inproc_end *a = end_new();
        CLEANUP(cleanup_free) struct inproc_end *b = end_new();

        if (!a || !b)
                return -ENOMEM;
        bulk_queue_init(&a->queue, loop);
        bulk_queue_init(&b->queue, loop);
        a->other = b;
        b->other = a;
        *ret_a = &STEAL(a)->base.peer;
        *ret_b = &STEAL(b)->base.peer;
        return 0;
}
