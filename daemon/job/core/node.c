/* The time, and what a node knows of itself and the others. */
#include "daemon/job/core/job.h"

#include <time.h>

uint64_t engine_now(const struct engine *x)
{
        return uv_now(x->loop);
}

const char *node_name(const struct engine *x, uint32_t node)
{
        return node < x->cluster->n_nodes ? x->cluster->nodes[node].name : "?";
}

bool node_keeps_notes(const struct engine *x)
{
        return x->placement.epoch || node_set_has(placement_nodes(&x->placement), x->cluster->self);
}

uint64_t stamp_after(uint64_t last)
{
        struct timespec t;
        uint64_t now;

        clock_gettime(CLOCK_REALTIME, &t);
        now = (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
        return last >= now ? last + 1 : now;
}
