/*
 * bulk_path.h - what the suite needs of an implementation of bulk.h; one file a path gives it.
 */
#pragma once

#include "daemon/fabric/bulk.h"

/* One side of a path, alone in its loop or beside the other side. */
struct bulk_path;

/* Whether both sides can be given different tokens, and can live in two processes. */
extern const bool bulk_path_is_remote;

/* Two sides in one loop; broken is called with the side's index's address (&index[i]). */
void bulk_path_pair(uv_loop_t *loop, const uint64_t token[2], struct bulk_path **ret,
                    struct bulk_peer *ret_peer[2]);

/* Two processes: made before the fork, then each opens its own side.  */
struct bulk_rendezvous {
        int fd[2]; /* a socket pair: side i talks on fd[i] */
        uint8_t key[32];
};
void bulk_path_side(uv_loop_t *loop, const struct bulk_rendezvous *at, int side, uint64_t token,
                    struct bulk_path **ret, struct bulk_peer **ret_peer);

/* When its peers are closed. */
void bulk_path_free(struct bulk_path *path);
