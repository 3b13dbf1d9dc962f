/* The suite's end of the path inside one process. */
#include "tests/conformance/bulk/bulk_path.h"

#include <stdlib.h>

const bool bulk_path_is_remote = false;

void bulk_path_pair(uv_loop_t *loop, const uint64_t token[2], struct bulk_path **ret,
                    struct bulk_peer *ret_peer[2])
{
        if (bulk_inproc_pair(loop, token[0], &ret_peer[0], &ret_peer[1]))
                abort();
        *ret = NULL;
}

void bulk_path_side(uv_loop_t *loop, const struct bulk_rendezvous *at, int side, uint64_t token,
                    struct bulk_path **ret, struct bulk_peer **ret_peer)
{
        abort();
}

void bulk_path_free(struct bulk_path *path)
{
}
