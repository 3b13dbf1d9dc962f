/*
 * Copies of planes and gradients for other nodes; see staging.h.
 *
 * Invariant: every accepted payload ends with done(), once.  Payloads begin in the order of the
 * calls.
 */
#include "daemon/job/transfer/staging.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"

struct staged {
        struct list link; /* transfer.staged */
        struct copy copy;
        struct job *job;
        uint32_t node;
        uint64_t transfer;
        enum traffic kind;
        const void *p;
        size_t n;
        void *buffer; /* NULL: it waits for memory */
        bool gone;    /* the link is down */
        bulk_done *done;
        void *arg;
};

static void staging_advance(struct engine *x);

static void staged_end(struct staged *s, int status)
{
        struct engine *x = s->job->x;
        bulk_done *done = s->done;
        void *arg = s->arg;

        list_remove(&s->link);
        x->transfer->staging_bytes -= s->buffer ? s->n : 0;
        transit_free(s->buffer);
        free(s);
        done(arg, status);
        staging_advance(x);
}

static void staged_sent(void *arg, int status)
{
        staged_end(arg, status);
}

/* As fabric_payload(); tells the node where memory is lacking. */
static int payload_send(struct job *job, uint32_t node, uint64_t transfer, enum traffic kind,
                        const void *p, size_t n, bulk_done *done, void *arg)
{
        int r = fabric_payload(job->x->fabric, node, transfer, kind, p, n, done, arg);

        if (r == -ENOMEM)
                ask_refuse(job, node, transfer, ZERO_ENOMEM, "out of memory");
        return r;
}

static void staged_copied(struct offload_task *task)
{
        struct staged *s = CONTAINER_OF(task, struct staged, copy.task);

        /* the node is gone, and its request with it, or the request was refused */
        if (s->gone ||
            payload_send(s->job, s->node, s->transfer, s->kind, s->buffer, s->n, staged_sent, s))
                staged_end(s, -ENOTCONN);
}

/* False: there is no memory now; payloads in progress will free some. */
static bool staged_begin(struct engine *x, struct staged *s)
{
        if (x->transfer->staging_bytes && x->transfer->staging_bytes + s->n > STAGING_BYTES)
                return false;
        s->buffer = transit_new(s->n);
        if (!s->buffer && x->transfer->staging_bytes)
                return false;
        if (!s->buffer) {
                ask_refuse(s->job, s->node, s->transfer, ZERO_ENOMEM, "out of memory");
                staged_end(s, -ENOMEM);
                return false; /* staged_end() has begun the next one */
        }
        x->transfer->staging_bytes += s->n;
        job_copy(s->job, &s->copy, s->buffer, s->p, s->n, staged_copied);
        return true;
}

static void staging_advance(struct engine *x)
{
        list_for_each (&x->transfer->staged, item) {
                struct staged *s = CONTAINER_OF(item, struct staged, link);

                if (!s->buffer && !staged_begin(x, s))
                        return;
        }
}

/* A copy on this thread takes less time than another thread's answer. */
static int copied_payload(struct staged *s)
{
        struct transfer *transfer = s->job->x->transfer;

        s->buffer = transit_new(s->n);
        if (!s->buffer) {
                ask_refuse(s->job, s->node, s->transfer, ZERO_ENOMEM, "out of memory");
                free(s);
                return -ENOMEM;
        }
        memcpy(s->buffer, s->p, s->n);
        transfer->staging_bytes += s->n;
        list_insert(&transfer->staged, &s->link);
        staged_copied(&s->copy.task);
        return 0;
}

int staged_payload(struct job *job, uint32_t node, uint64_t transfer, enum traffic kind,
                   const void *p, size_t n, bool pushed, bulk_done *done, void *arg)
{
        struct engine *x = job->x;
        struct staged *s;

        if (fabric_takes(x->fabric, node, place_of(p), n) &&
            !(pushed && fabric_checks(x->fabric, node)))
                return payload_send(job, node, transfer, kind, p, n, done, arg);
        if (!node_set_has(x->up, node))
                return -ENOTCONN;
        s = malloc(sizeof *s);
        if (!s) {
                ask_refuse(job, node, transfer, ZERO_ENOMEM, "out of memory");
                return -ENOMEM;
        }
        *s = (struct staged){ .job = job,
                              .node = node,
                              .transfer = transfer,
                              .kind = kind,
                              .p = p,
                              .n = n,
                              .done = done,
                              .arg = arg };
        if (place_is_host(place_of(p)))
                return copied_payload(s);
        list_insert(&x->transfer->staged, &s->link);
        staging_advance(x);
        return 0;
}

static struct staged *find_waiting(struct engine *x, uint32_t node)
{
        list_for_each (&x->transfer->staged, item) {
                struct staged *s = CONTAINER_OF(item, struct staged, link);

                if (s->node == node && !s->buffer)
                        return s;
        }
        return NULL;
}

void staging_down(struct engine *x, uint32_t node)
{
        struct staged *s;

        list_for_each (&x->transfer->staged, item) {
                s = CONTAINER_OF(item, struct staged, link);
                s->gone = s->gone || s->node == node;
        }
        while ((s = find_waiting(x, node))) /* search again: the end of one begins others */
                staged_end(s, -ENOTCONN);
}
