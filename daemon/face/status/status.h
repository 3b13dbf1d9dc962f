/*
 * status.h - what this node knows, as plain structs (fields.h); answers are made from them.
 *
 *   record.c       their memory and JSON     fields.c       their types
 *   node.c         the node and its peers    jobs.c         its jobs
 *   gpus.c         its GPUs                  shards.c       who holds which part of every group
 *   membership.c   the owner list, moves     checkpoints.c  checkpoints and restores
 *   metrics.c      records as /metrics             shard_map.c    a picture of shards
 *   verdict.c      what is wrong, as alerts name it  versions.c  who follows a job
 *
 * A report reads the engine and keeps no pointer into it: all that it fills lies in the arena.  If
 * memory runs out arena->failed is set and the report is incomplete.  Loop thread.
 */
#pragma once

#include "daemon/cluster/engine/engine.h"
#include "daemon/face/status/fields.h"

/* A GPU's memory, used by zerod or by anybody else. */
struct gpu_use_now {
        uint64_t free, total;
};

/* Asks the driver, which may wait; any thread.  ret: [GPU]. */
void gpus_use_now(struct gpu_use_now *ret);

/* gpus: [GPU]; NULL if there is no GPU.  started_ms: loop time. */
void report_node(struct arena *arena, struct engine *x, uint64_t started_ms,
                 const struct gpu_use_now *gpus, struct status_node *ret);
void report_config(struct arena *arena, const struct engine *x, struct status_config *ret);
/* From all that is reported already. */
void report_verdict(struct arena *arena, struct status_node *ret);
/* All jobs of this node. */
void report_jobs(struct arena *arena, const struct engine *x, struct status_jobs *ret);
void report_gpus(struct arena *arena, const struct gpu_use_now *now, struct status_node *ret);

/* All jobs that the user may read, with what this node's owners hold. */
void report_shards(struct arena *arena, const struct engine *x, uint32_t uid,
                   struct status_shards *ret);
/* What this node's owners hold of the job. */
void report_replicas(struct arena *arena, const struct job *job, struct status_replicas *ret);
/* told: [owner]; NULL: the owner's node did not answer. */
void report_job_shards(struct arena *arena, const struct job *job,
                       const struct status_replica *const *told, struct status_job_shards *ret);

/*
 * All jobs' shards in bands.  told: [node], what the others told; NULL in it: nothing.  told NULL:
 * what this node tells the others, its own owners alone.
 */
void report_map(struct arena *arena, const struct engine *x, const struct status_map *const *told,
                struct status_map *ret);

/* Who follows the job on this node, and which versions are in memory for them. */
void report_versions_here(struct arena *arena, const struct job *job,
                          struct status_versions_here *ret);
/* Who may follow it beside its owner. */
void report_grants(struct arena *arena, const struct job *job, struct record_numbers *ret);

void report_membership(struct arena *arena, const struct engine *x, struct status_membership *ret);
/* Moves as this node knows them. */
void report_moves_here(struct arena *arena, struct engine *x, struct status_moves_here *ret);
/* All nodes' answers combined.  told: [node]; NULL: the node did not answer. */
void report_moves(struct arena *arena, const struct engine *x,
                  const struct status_moves_here *const *told, struct status_moves *ret);

/* A job's newest checkpoint or restore, and its schedule, for a user. */
int report_progress(struct arena *arena, const struct engine *x, const char *job, uint32_t uid,
                    struct status_progress *ret, struct fault *fault);
/* NULL: the job has no schedule. */
struct status_schedule *report_schedule(struct arena *arena, const struct engine *x,
                                        const char *job);
/* NULL: this node has begun none since it coordinates the job. */
struct status_checkpoint *report_checkpoint(struct arena *arena, const struct engine *x,
                                            const char *job);

/* ---- /metrics ---- */

enum metrics_format { METRICS_CLASSIC, METRICS_OPEN };

/*
 * A record as the text of /metrics: Prometheus' classic format, or OpenMetrics.  A metric is a
 * column of a field's row (fields.h); labels come from the records around the field, and a field
 * that is null has no sample.  The caller frees the text; NULL: out of memory.  Any thread.
 */
char *metrics_text(const struct record_type *type, const void *record, enum metrics_format format,
                   size_t *ret_n);

/* ---- between the files here ---- */

/* What a job waits for longer is an alert (deploy/prometheus/zerod.rules.yml). */
enum { STATUS_RANK_WAIT_S = 120, STATUS_NODE_WAIT_S = 60, STATUS_NO_STEP_S = 60 };

void report_move(const struct move *m, struct status_move *ret);
/* A rank's name in a wait begins with "rank". */
bool wait_is_for_rank(const struct status_wait *w);
/* The node of each owner. */
void report_owners(struct arena *arena, const struct engine *x, const struct placement *placement,
                   struct record_texts *ret);
