/* This node, and the others by name. */
#include "daemon/core/job.h"

uint64_t exchange_now(const struct exchange *x)
{
        return uv_now(x->loop);
}

const char *node_name(const struct exchange *x, uint32_t node)
{
        return node < x->cluster->n_nodes ? x->cluster->nodes[node].name : "?";
}
