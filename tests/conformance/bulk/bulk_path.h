/*
 * bulk_path.h - what the suite (and the bench) needs of an implementation of bulk.h; one
 * file a path gives it.
 */
#pragma once

#include "daemon/fabric/bulk/bulk.h"

struct bulk_path; /* what must outlive the peers; NULL: nothing */

/* Two processes: made before the fork, then each opens its own side. */
struct bulk_rendezvous {
        int fd[2]; /* a socket pair that keeps messages apart; side i talks on fd[i] */
        uint8_t key[32];
};

struct bulk_path_ops {
        /* Both sides can be given different tokens, and can live in two processes. */
        bool remote;
        /* Two sides in one loop. */
        void (*pair)(uv_loop_t *loop, const uint64_t token[2], struct bulk_path **ret,
                     struct bulk_peer *ret_peer[2]);
        /* One side; waits for the other one. */
        void (*side)(uv_loop_t *loop, const struct bulk_rendezvous *at, int side, uint64_t token,
                     struct bulk_path **ret, struct bulk_peer **ret_peer);
        /* When its peers are closed. */
        void (*free)(struct bulk_path *path);
};

extern const struct bulk_path_ops bulk_path_inproc, bulk_path_tcp, bulk_path_tcp_plain,
        bulk_path_tcp_encrypted, bulk_path_ucx, bulk_path_ucx_get;
