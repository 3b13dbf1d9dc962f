/* tensors.h - clients read and write planes; norms of tensors; a hash of planes that does not
 * depend on the partition. */
#pragma once

#include "daemon/job/core/push_window.h"
#include "daemon/job/shard/shard.h"

int access_start(struct job *job, struct push_window *window, const Zero__Access *access, bool put,
                 uint64_t timeout_ms, struct request *r, struct fault *fault);
void access_pull_message(struct job *job, uint32_t node, const Zero__Pull *request);
void access_put_message(struct job *job, uint32_t node, const Zero__LinkMessage *m);

/* A call's place among the calls of its user (turns.c). */
struct turn {
        struct list link;
        uint32_t uid;
        bool begun;
        void (*begin)(struct turn *turn);
};

/* Norms of tensors on their way from the owners (norms.c).  For GRAD a rank waits, and done() is
 * called.  For other planes a client's request waits. */
struct norms {
        struct list link; /* tensors.norms */
        struct turn turn; /* of planes other than GRAD */
        struct job *job;
        struct push_window *window; /* counts the norms among the client's gets */
        struct plane plane;
        uint32_t first, count;
        uint64_t attempt; /* GRAD */
        uint64_t timeout_ms;
        uint32_t rank;           /* GRAD: the rank that asks */
        struct request *request; /* planes other than GRAD; NULL: the request has ended */
        /* GRAD: called when the norms are there, or the status says why not.  The norms are freed
         * afterwards. */
        void (*done)(struct norms *n);
        uint32_t pending; /* nodes whose answers are missing */
        int status;
        char text[200];
        uint64_t elements, oldest, newest;
        struct norm_sum *sums; /* [count] */
        double *values;        /* [count] */
};
/* Asks the owners for norms of a plane other than GRAD.  r ends with the norms once all owners have
 * the same version of the plane.  Returns 0 or a ZERO_ code. */
int norms_start(struct job *job, struct push_window *window, const Zero__Norms *m,
                uint64_t timeout_ms, struct request *r, struct fault *fault);
/* Asks the owners for norms of GRAD, for the rank that asks.  Owners answer when their sums are
 * complete, and refuse when the attempt is over.  If the rank has asked for the same in this
 * attempt and waits, the owners are not asked again. */
int norms_start_grad(struct job *job, struct push_window *window, const Zero__Norms *m,
                     uint32_t rank, void (*done)(struct norms *n), struct norms **ret,
                     struct fault *fault);
/* Gives the norms to the request's result. */
void norms_result(const struct norms *n, struct request *r);
/* norms_told.c */
void norms_ask_message(struct job *job, uint32_t node, const Zero__LinkMessage *m);

/* Indices of checksum.sum: plane_updated(k) is at k, then come these. */
enum { CHECKSUM_STEP = UPDATE_PLANES, CHECKSUM_SET, CHECKSUM_PLANES };
/* A hash of each plane over an owner's part: sums of block hashes, in any order. */
struct checksum {
        uint64_t sum[CHECKSUM_PLANES][2];
        uint64_t version; /* the version of all planes */
};
struct checksum_asker {
        struct list link; /* private */
        /* ZERO_ENOJOB: the job was dropped, or the daemon stops.  May be called before
         * checksum_ask() returns. */
        void (*done)(struct checksum_asker *a, int status, const struct checksum *sum);
};
/* Computes the hash on compute threads, once the job has reached that version and no update runs.
 * ZERO_ENOMEM: done() is never called. */
int checksum_ask(struct replica *h, uint64_t version, struct checksum_asker *a);

extern const struct module tensors_module;
extern const struct shard_observer tensors_observer;
