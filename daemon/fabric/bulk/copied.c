/*
 * A path that takes GPU memory over one that does not: it copies bytes to host memory before they
 * are sent, and from host memory after they have come.  Only for tests: the loop thread waits for
 * the copies.  With the test GPU, whose memory the CPU cannot touch, it shows what the daemon gives
 * to a path and takes from it.
 *
 * Invariant: the path below ends every op before it is closed.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/compute/device/place/place.h"
#include "daemon/fabric/bulk/bulk.h"
#include "proto/cleanup.h"

struct copied_peer {
        struct bulk_peer peer;
        struct bulk_peer *below;
        void (*closed)(void *arg);
        void *closed_arg;
};

struct copied_op {
        void *to; /* destination of a receive; NULL: a send */
        size_t n;
        bulk_done *done;
        void *arg;
        uint8_t bytes[];
};

static struct copied_peer *copied_of(struct bulk_peer *peer)
{
        return CONTAINER_OF(peer, struct copied_peer, peer);
}

static bool is_wanted(const char *way)
{
        const char *wanted = getenv("BULK_GPU");

        return wanted && strcmp(wanted, way) == 0;
}

static void on_done(void *arg, int status)
{
        CLEANUP(cleanup_free) struct copied_op *op = arg;

        if (op->to && status == 0 && is_wanted("spoilt"))
                op->bytes[op->n / 2] ^= 1;
        if (op->to && status == 0)
                place_ops()->copy(op->to, op->bytes, op->n);
        op->done(op->arg, status);
}

static struct copied_op *op_new(void *to, size_t n, bulk_done *done, void *arg)
{
        struct copied_op *op = malloc(sizeof *op + n);

        if (op)
                *op = (struct copied_op){ .to = to, .n = n, .done = done, .arg = arg };
        return op;
}

static int copied_send(struct bulk_peer *peer, uint64_t transfer, const void *p, size_t n,
                       bulk_done *done, void *arg)
{
        struct bulk_peer *below = copied_of(peer)->below;
        CLEANUP(cleanup_free) struct copied_op *op = NULL;
        int r;

        if (place_is_host(place_of(p)))
                return below->ops->send(below, transfer, p, n, done, arg);
        op = op_new(NULL, n, done, arg);
        if (!op)
                return -ENOMEM;
        place_ops()->copy(op->bytes, p, n);
        r = below->ops->send(below, transfer, op->bytes, n, on_done, op);
        if (r == 0)
                (void)STEAL(op);
        return r;
}

static int copied_expect(struct bulk_peer *peer, uint64_t transfer, void *p, size_t n,
                         bulk_done *done, void *arg)
{
        struct bulk_peer *below = copied_of(peer)->below;
        CLEANUP(cleanup_free) struct copied_op *op = NULL;
        int r;

        if (place_is_host(place_of(p)))
                return below->ops->expect(below, transfer, p, n, done, arg);
        op = op_new(p, n, done, arg);
        if (!op)
                return -ENOMEM;
        r = below->ops->expect(below, transfer, op->bytes, n, on_done, op);
        if (r == 0)
                (void)STEAL(op);
        return r;
}

static void copied_forget(struct bulk_peer *peer, uint64_t transfer)
{
        struct bulk_peer *below = copied_of(peer)->below;

        below->ops->forget(below, transfer);
}

static void on_closed(void *arg)
{
        CLEANUP(cleanup_free) struct copied_peer *copied = arg;

        copied->closed(copied->closed_arg);
}

static void copied_close(struct bulk_peer *peer, void (*closed)(void *arg), void *arg)
{
        struct copied_peer *copied = copied_of(peer);

        copied->closed = closed;
        copied->closed_arg = arg;
        copied->below->ops->close(copied->below, on_closed, copied);
}

static const struct bulk_ops copied_ops = {
        .name = "copied",
        .send = copied_send,
        .expect = copied_expect,
        .forget = copied_forget,
        .close = copied_close,
};

bool bulk_copied_wanted(void)
{
        return place_ops() && (is_wanted("copied") || is_wanted("spoilt"));
}

int bulk_copied(struct bulk_peer **peer)
{
        struct copied_peer *copied;

        if (!bulk_copied_wanted())
                return 0;
        copied = calloc(1, sizeof *copied);
        if (!copied)
                return -ENOMEM;
        copied->peer.ops = &copied_ops;
        copied->peer.gpu = true;
        copied->below = *peer;
        *peer = &copied->peer;
        return 0;
}
