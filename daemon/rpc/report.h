/* What this node knows, as JSON (the stable output that zeroctl prints). */
#pragma once

#include <jansson.h>

#include "daemon/rpc/rpc.h"

json_t *report_move(const struct move *m);
/* A GPU's memory, whosever it is. */
struct gpu_use_now {
        uint64_t free, total;
};

json_t *report_view(const struct exchange *x);
/* gpus: [GPU], NULL where there is none. */
json_t *report_status(const struct rpc *rpc, const struct gpu_use_now *gpus);
json_t *report_gpus(const struct gpu_use_now *now);
json_t *report_cuda(void);
json_t *report_jobs(const struct rpc *rpc);
json_t *report_job(const struct job *job);
json_t *report_config(const struct rpc *rpc);
/* What this node's owners hold, and where: versions are [group] -> number, or null where it is
 * nothing. */
json_t *report_held(const struct job *job);
/* By one owner, borrowed; NULL: none. */
json_t *report_held_by(json_t *held, uint32_t owner);
/* A job's groups and shards; held[owner] as report_held_by() has it (may be NULL). */
json_t *report_shards(const struct job *job, json_t *const *held);
