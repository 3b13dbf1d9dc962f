/*
 * common.h - shared by the bulk paths: a queue that reports outcomes from the loop and never inside
 * a call, the table of expected payloads, and the rules for payloads that come.
 *
 * Invariants: every accepted op ends exactly once; a receive leaves the table when it ends; a peer
 * breaks at most once, and never after its close.
 */
#pragma once

#include "daemon/fabric/bulk/bulk.h"
#include "proto/list.h"

/* Something to run from the loop. */
struct bulk_event {
        struct list link;
        void (*run)(struct bulk_event *event);
};

struct bulk_queue {
        uv_idle_t idle; /* data is the queue */
        struct list events;
};

void bulk_queue_init(struct bulk_queue *queue, uv_loop_t *loop);
void bulk_queue_push(struct bulk_queue *queue, struct bulk_event *event);
/* Runs what is queued now; true if there was something.  Call only from a callback of the loop,
 * as its last action: what runs may close the queue's owner. */
bool bulk_queue_drain(struct bulk_queue *queue);
/* Keeps the loop from sleeping in its next turn. */
void bulk_queue_wake(struct bulk_queue *queue);

/* A send or a receive; the first member of what malloc() gave for it. */
struct bulk_op {
        struct bulk_event event;
        bulk_done *done;
        void *arg;
        int status;
};

void bulk_op_init(struct bulk_op *op, bulk_done *done, void *arg);
/* Queues done(arg, status) and frees the op afterwards. */
void bulk_op_end(struct bulk_queue *queue, struct bulk_op *op, int status);

struct receive {
        struct bulk_op op;
        struct receive *next;
        uint64_t transfer;
        uint8_t *p;
        size_t n;
        size_t arrived; /* bytes, if it comes in pieces */
        bool moving;    /* somebody else than this thread writes to p */
        bool forgotten; /* while moving: it ends as cancelled */
};

/* How many forgotten numbers are remembered: a payload with such a number is dropped and does not
 * break the connection. */
enum { RECEIVES_FORGOTTEN = 256 };

struct receives {
        struct receive **buckets;
        size_t n_buckets, n;
        struct {
                uint64_t transfer;
                size_t n;
                bool used;
        } forgotten[RECEIVES_FORGOTTEN];
        size_t next_forgotten;
};

/* The part of every peer that does not depend on the path; its first member. */
struct bulk_base {
        struct bulk_peer peer;
        struct bulk_queue *queue;
        struct receives receives;
        struct bulk_event breaking;
        const char *why; /* a literal */
        bool broken, closing;
        void (*closed)(void *arg);
        void *closed_arg;
};

void bulk_base_init(struct bulk_base *base, const struct bulk_ops *ops, struct bulk_queue *queue,
                    void (*broken)(void *, const char *), void *arg);
/* No receive may exist. */
void bulk_base_deinit(struct bulk_base *base);
/* ops->expect and, for paths that do not write in place step by step, ops->forget. */
int bulk_base_expect(struct bulk_peer *peer, uint64_t transfer, void *p, size_t n, bulk_done *done,
                     void *arg);
void bulk_base_forget(struct bulk_peer *peer, uint64_t transfer);
/* Whether send() may be called: 0 or -ENOTCONN. */
int bulk_base_usable(const struct bulk_base *base);
/* The path broke by itself; why is a literal. */
void bulk_base_break(struct bulk_base *base, const char *why);
/* Cancels every receive that is not moving. */
void bulk_base_begin_close(struct bulk_base *base, void (*closed)(void *arg), void *arg);

/*
 * A payload has come.  0: it belongs to *ret, which is moving from now on; 1: it was forgotten,
 * drop its n bytes; 2: it was announced and is not expected yet; -EPROTO: it breaks the rules, and
 * the peer is broken.
 */
int bulk_base_arrive(struct bulk_base *base, uint64_t transfer, uint64_t n, struct receive **ret);
/* Copies a whole payload of this process, at p, to where it belongs, GPU memory or not. */
void bulk_base_whole(struct bulk_base *base, uint64_t transfer, const void *p, uint64_t n);
/* Copies a piece of a payload of n bytes to where it belongs; the last piece ends the receive.
 * Unexpected pieces break the peer, and so do pieces of announced payloads and pieces for GPU
 * memory. */
void bulk_base_piece(struct bulk_base *base, uint64_t transfer, uint64_t n, uint64_t offset,
                     const void *p, size_t size);
/* A moving receive has ended. */
void bulk_base_landed(struct bulk_base *base, struct receive *receive, int status);
/* Gives up a receive at once, moving or not: nothing may write to it any more. */
void bulk_base_drop(struct bulk_base *base, struct receive *receive);
