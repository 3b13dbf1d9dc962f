/*
 * common.h - what the bulk paths share: a queue through which outcomes reach the
 * owner from the loop and never from inside a call, the table of expected payloads,
 * and the rules that decide whether a payload that comes may land.
 *
 * Invariants: every op that was accepted ends exactly once; a receive leaves the table
 * when it ends; a peer breaks at most once and never after its close was asked for.
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
/* Runs what is queued now; true if there was anything.  Only from a callback of the loop, and
 * last there: what runs may close the queue's owner. */
bool bulk_queue_drain(struct bulk_queue *queue);
/* The loop will not sleep in its next turn. */
void bulk_queue_wake(struct bulk_queue *queue);

/* A send or a receive; the first member of what malloc() gave for it. */
struct bulk_op {
        struct bulk_event event;
        bulk_done *done;
        void *arg;
        int status;
};

void bulk_op_init(struct bulk_op *op, bulk_done *done, void *arg);
/* Queues done(arg, status); the op is freed behind it. */
void bulk_op_end(struct bulk_queue *queue, struct bulk_op *op, int status);

struct receive {
        struct bulk_op op;
        struct receive *next;
        uint64_t transfer;
        uint8_t *p;
        size_t n;
        size_t arrived; /* bytes, where it comes in pieces */
        bool moving;    /* others than this thread write to p */
        bool forgotten; /* while moving: ends as cancelled */
};

/* Forgotten numbers that are remembered, so that a payload already under way is dropped
 * instead of ending the connection. */
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
/* No receive may be left. */
void bulk_base_deinit(struct bulk_base *base);
/* ops->expect and, for paths that do not write in place step by step, ops->forget. */
int bulk_base_expect(struct bulk_peer *peer, uint64_t transfer, void *p, size_t n, bulk_done *done,
                     void *arg);
void bulk_base_forget(struct bulk_peer *peer, uint64_t transfer);
/* Whether send may be called: 0 or -ENOTCONN. */
int bulk_base_usable(const struct bulk_base *base);
/* The path broke by itself; why is a literal. */
void bulk_base_break(struct bulk_base *base, const char *why);
/* Every receive that is not moving ends as cancelled. */
void bulk_base_begin_close(struct bulk_base *base, void (*closed)(void *arg), void *arg);

/*
 * A payload has come.  0: it lands at *ret, which is moving now; 1: it was
 * forgotten, drop its n bytes; 2: it is announced, and not expected yet; -EPROTO: it breaks the
 * rules and the peer is broken.
 */
int bulk_base_arrive(struct bulk_base *base, uint64_t transfer, uint64_t n, struct receive **ret);
/* A whole payload of this process, at p: it is copied to where it belongs, GPU memory or not. */
void bulk_base_whole(struct bulk_base *base, uint64_t transfer, const void *p, uint64_t n);
/* A piece of a payload of n bytes in all: it is copied to where it belongs, and the receive
 * ends with the last one.  Unexpected pieces break the peer, and so do pieces of announced payloads
 * and pieces for GPU memory. */
void bulk_base_piece(struct bulk_base *base, uint64_t transfer, uint64_t n, uint64_t offset,
                     const void *p, size_t size);
/* A moving receive has ended. */
void bulk_base_landed(struct bulk_base *base, struct receive *receive, int status);
/* Gives up a receive, moving or not, at once: nothing may write to it any more. */
void bulk_base_drop(struct bulk_base *base, struct receive *receive);
