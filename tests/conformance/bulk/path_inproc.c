/* The suite's end of the path inside one process. */
#include "tests/conformance/bulk/bulk_path.h"

#include <stdlib.h>

#include "tests/support/fabric_inproc.h"

static void pair(uv_loop_t *loop, const uint64_t token[2], struct bulk_path **ret,
                 struct bulk_peer *ret_peer[2])
{
        if (bulk_inproc_pair(loop, token[0], &ret_peer[0], &ret_peer[1]))
                abort();
        *ret = NULL;
}

static void path_free(struct bulk_path *path)
{
}

const struct bulk_path_ops bulk_path_inproc = { .pair = pair, .free = path_free };
