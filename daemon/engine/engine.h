/*
 * engine.h - what moves and computes a job's bytes on this node, as a whole.
 *
 *   engine.c   start and stop, the tick, messages to the folders below
 *   links.c      which nodes reach each other
 *   create.c     a job is made                        job.c     its steps on this node
 *   resume.c     jobs that an earlier process left    drain.c   leaving between two steps
 */
#pragma once

#include "daemon/core/job.h"
#include "daemon/drop/drop.h"
#include "daemon/gather/gather.h"
#include "daemon/membership/membership.h"
#include "daemon/rank/rank.h"
#include "daemon/reduce/reduce.h"
#include "daemon/reshard/reshard.h"
#include "daemon/shard/shard.h"
#include "daemon/tensors/tensors.h"
#include "daemon/transfer/transfer.h"
#include "daemon/update/update.h"

/* Starts the tick.  All but engine->{loop..part_bytes} is set here. */
int engine_start(struct engine *x);
/* Ends all requests and jobs (state files stay); closed() comes when nothing is in flight. */
void engine_stop(struct engine *x, void (*closed)(void *arg), void *arg);
/* Calls drained() when no step is in flight, or after the timeout; perhaps at once. */
void engine_drain(struct engine *x, uint64_t timeout_ms, void (*drained)(void *arg), void *arg);
/* The link to a node stands, or is lost. */
void engine_up(struct engine *x, uint32_t node);
void engine_down(struct engine *x, uint32_t node, const char *why);
void engine_message(struct engine *x, uint32_t node, const Zero__LinkMessage *m);
/*
 * Takes up the states that an earlier process left: a decided step is finished, one that was not is
 * void.  Damaged or foreign files are reported and left alone.  Before the loop runs.
 */
void jobs_resume(struct engine *x);
/*
 * Tells a node that coordinates jobs by the owner list in force of those that have states of an
 * earlier one here, or mirrors: it may have none, and has them moved, or gets back what it lost,
 * though no rank attaches.
 */
void jobs_claim(struct engine *x, uint32_t node);
/* The job, once it is made; NULL: there is none. */
struct job *job_made(struct engine *x, const char *name);
/* A job's user and root may read it. */
bool job_is_for(const struct job *job, uint32_t uid);
/* The job of that name, for a user; ZERO_EBUSY: its state waits for memory. */
int job_for_user(struct engine *x, const char *name, uint32_t uid, struct job **ret,
                 struct fault *fault);
void job_open_message(struct engine *x, uint32_t node, const Zero__LinkMessage *m);
void job_start_message(struct job *job, const Zero__LinkMessage *m);
void job_part_message(struct job *job, const Zero__Part *part);
void job_decision_message(struct job *job, const Zero__Decision *d);

/* ---- links ----------------------------------------------------------------------- */

/* Tells all nodes which ones this one reaches. */
void links_tell(struct engine *x);
void links_message(struct engine *x, uint32_t node, const Zero__Links *m);
/* A link stands, or is lost. */
void links_up(struct engine *x, uint32_t node);
void links_down(struct engine *x, uint32_t node);
