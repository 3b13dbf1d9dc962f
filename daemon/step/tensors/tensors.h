/* tensors.h - clients read and write planes; a hash of planes that does not depend on the
 * partition. */
#pragma once

#include "daemon/job/core/push_window.h"
#include "daemon/job/shard/shard.h"

int access_start(struct job *job, struct push_window *window, const Zero__Access *access, bool put,
                 uint64_t timeout_ms, struct request *r, struct fault *fault);
void access_pull_message(struct job *job, uint32_t node, const Zero__Pull *request);
void access_put_message(struct job *job, uint32_t node, const Zero__LinkMessage *m);

/* A place among the calls of a user (turns.c). */
struct turn {
        struct list link;
        uint32_t uid;
        bool begun;
        void (*begin)(struct turn *turn);
};

/* Norms of tensors on their way from the owners; norms.c. */
struct norms {
        struct list link; /* tensors.norms */
        struct turn turn; /* of planes other than GRAD */
        struct job *job;
        struct push_window *window; /* counts it among the client's gets */
        uint32_t plane, first, count;
        uint64_t attempt; /* with GRAD */
        uint64_t timeout_ms;
        uint32_t rank;           /* of done */
        struct request *request; /* of planes other than GRAD; NULL: ended */
        /* GRAD: the norms are there, or the status says why not; the norms are freed afterwards. */
        void (*done)(struct norms *n);
        uint32_t pending; /* nodes */
        int status;
        char text[200];
        uint64_t elements, oldest, newest;
        struct norm_sum *sums; /* [count] */
        double *values;        /* [count] */
};
/* Asks the owners.  Planes other than GRAD: r ends with the norms, as soon as all owners have the
 * same version of the plane.  -ENOMEM and the like are statuses. */
int norms_start(struct job *job, struct push_window *window, const Zero__Norms *m,
                uint64_t timeout_ms, struct request *r, struct fault *fault);
/* The same for GRAD, for the rank that asks: owners answer when the sums are complete, and refuse
 * when the attempt is over.  What the rank has asked already in this attempt is not asked again. */
int norms_start_grad(struct job *job, struct push_window *window, const Zero__Norms *m,
                     uint32_t rank, void (*done)(struct norms *n), struct norms **ret,
                     struct fault *fault);
/* Puts the norms into the request's result. */
void norms_result(const struct norms *n, struct request *r);
/* norms_told.c */
void norms_ask_message(struct job *job, uint32_t node, const Zero__LinkMessage *m);

/* Places in checksum.sum: master and moments by plane - ZERO_PLANE_MASTER, then these. */
enum { CHECKSUM_STEP = UPDATE_PLANES, CHECKSUM_SET, CHECKSUM_PLANES };
/* A hash of each plane over this owner's part: sums of block hashes, in any order. */
struct checksum {
        uint64_t sum[CHECKSUM_PLANES][2];
        uint64_t version; /* of all planes */
};
struct checksum_asker {
        struct list link; /* private */
        /* ZERO_ENOJOB: the job was dropped, or the daemon stops.  May be called before the ask
         * returns. */
        void (*done)(struct checksum_asker *a, int status, const struct checksum *sum);
};
/* Computes the hash on compute threads once the job has reached that version and no update runs.
 * ZERO_ENOMEM: done() is never called. */
int checksum_ask(struct replica *h, uint64_t version, struct checksum_asker *a);

extern const struct module tensors_module;
extern const struct shard_observer tensors_observer;
