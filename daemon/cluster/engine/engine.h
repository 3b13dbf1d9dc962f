/*
 * engine.h - moves and computes the bytes of this node's jobs.
 *
 *   engine.c   start and stop, the tick, messages to the folders below
 *   links.c    which nodes reach each other
 *   create.c   creates a job                          job.c     its steps on this node
 *   resume.c   jobs that an earlier process left      drain.c   stops between two steps
 */
#pragma once

#include "daemon/cluster/drop/drop.h"
#include "daemon/cluster/membership/membership.h"
#include "daemon/cluster/reshard/reshard.h"
#include "daemon/job/core/progress.h"
#include "daemon/job/shard/shard.h"
#include "daemon/job/transfer/transfer.h"
#include "daemon/step/gather/gather.h"
#include "daemon/step/rank/rank.h"
#include "daemon/step/reduce/reduce.h"
#include "daemon/step/tensors/tensors.h"
#include "daemon/step/update/update.h"

/* Starts the tick.  The caller has set engine->{loop..part_bytes}; this sets the rest. */
int engine_start(struct engine *x);
/*
 * Ends all requests and jobs (state files stay); closed() comes when nothing is in flight.  The
 * engine takes no call from then on: the caller closes the fabric, or starts the engine again, at
 * once.
 */
void engine_stop(struct engine *x, void (*closed)(void *arg), void *arg);
/* Calls drained() when no step is in flight, or after the timeout; perhaps before this returns. */
void engine_drain(struct engine *x, uint64_t timeout_ms, void (*drained)(void *arg), void *arg);
/* The link to a node stands, or has gone down. */
void engine_up(struct engine *x, uint32_t node);
void engine_down(struct engine *x, uint32_t node, const char *why);
void engine_message(struct engine *x, uint32_t node, const Zero__LinkMessage *m);
/*
 * Takes up the states of an earlier process: finishes a decided step, voids any other.  Damaged or
 * foreign files are reported and left alone.  Call before the loop runs.
 */
void jobs_resume(struct engine *x);
/*
 * Tells a node which of the jobs that it coordinates have old states or mirrors here.  The node may
 * not know of those.  It then has the states moved or filled, even if no rank attaches.
 */
void jobs_claim(struct engine *x, uint32_t node);
/* NULL: no such job, or it is still being created. */
struct job *job_made(struct engine *x, const char *name);
/* Whether the user may read the job: its own user and root may. */
bool job_is_for(const struct job *job, uint32_t uid);
/* Finds the job for a user; ZERO_EBUSY: its state waits for memory. */
int job_for_user(struct engine *x, const char *name, uint32_t uid, struct job **ret,
                 struct fault *fault);
void job_open_message(struct engine *x, uint32_t node, const Zero__LinkMessage *m);
void job_start_message(struct job *job, const Zero__LinkMessage *m);
void job_part_message(struct job *job, const Zero__Part *part);
void job_decision_message(struct job *job, const Zero__Decision *d);

/* ---- links ----------------------------------------------------------------------- */

void links_message(struct engine *x, uint32_t node, const Zero__Links *m);
/* A link stands, or has gone down. */
void links_up(struct engine *x, uint32_t node);
void links_down(struct engine *x, uint32_t node);
