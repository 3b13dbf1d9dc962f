/* tensors.h - clients read and write planes; a hash of planes that does not depend on the
 * partition. */
#pragma once

#include "daemon/core/push_window.h"
#include "daemon/shard/shard.h"

int access_start(struct job *job, struct push_window *window, const Zero__Access *access, bool put,
                 uint64_t timeout_ms, struct request *r, struct fault *fault);
void access_pull_message(struct job *job, uint32_t node, const Zero__Pull *request);
void access_put_message(struct job *job, uint32_t node, const Zero__LinkMessage *m);

/* Places in checksum.sum: master and moments by plane - ZERO_PLANE_MASTER, then these. */
enum { CHECKSUM_STEP = UPDATE_PLANES, CHECKSUM_SET, CHECKSUM_PLANES };
/* A hash of each plane over this owner's part: sums of block hashes, in any order. */
struct checksum {
        uint64_t sum[CHECKSUM_PLANES][2];
        uint64_t version; /* of all planes */
};
/* Computes the hash on an offload thread once the job has reached that version and no update
 * runs. */
void checksum_start(struct replica *h, uint64_t version,
                    void (*done)(void *arg, const struct checksum *sum), void *arg);

extern const struct module tensors_module;
extern const struct shard_observer tensors_observer;
