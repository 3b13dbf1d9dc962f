/* The time, and the names of nodes. */
#include "daemon/job/core/job.h"

uint64_t engine_now(const struct engine *x)
{
        return uv_now(x->loop);
}

const char *node_name(const struct engine *x, uint32_t node)
{
        return node < x->cluster->n_nodes ? x->cluster->nodes[node].name : "?";
}
