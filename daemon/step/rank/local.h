/*
 * local.h - shared by attaching (attach.c), the calls of attached ranks (rank.c), the setup of a
 * rank's GPU (setup.c), and messages that wait for the GPU (stream_order.c).
 */
#pragma once

#include "daemon/job/core/layouts.h"
#include "daemon/step/rank/rank.h"
#include "daemon/step/reduce/reduce.h"

/* Ends the lease of a release, now that the GPU no longer reads; r may be NULL. */
rank_call lease_end;
/* ZERO_ENOJOB, ZERO_ENOGROUP; ZERO_ERANK: another session is the rank by now. */
int group_check(const struct rank *rank, uint32_t group, struct fault *fault);
/* Whether the rank may begin to wait for all ranks in that attempt; params: with zero_step(). */
int close_check(const struct rank *rank, uint64_t attempt, const struct step_params *params,
                struct fault *fault);
/* The node's ranks wait for the same thing: others would wait for each other.  Norms of tensors
 * need no other rank's call.  what: of rank->waits. */
int others_check(const struct rank *rank, int what, struct fault *fault);
/* The rank waits for all ranks; what: of rank->waits. */
void rank_wait(struct rank *rank, struct request *r, int what);
/* That attempt, if it is the current one, must not end without the gradient. */
void rank_push_refused(struct rank *rank, uint64_t attempt);

/* ---- setup.c ---- */

/*
 * The setup is over.  If status is 0, this comes after the call that began it has returned.  The
 * session may have ended meanwhile.
 */
typedef void rank_made(struct rank *rank, int status, const char *text);

/* Opens rank->stream_events, or sets rank->no_events; -ENOMEM. */
int rank_make_events(struct rank *rank, const uint8_t (*handles)[ZERO_GPU_HANDLE], uint32_t n,
                     rank_made *made);
/* Makes rank->window, rank->stash if that lies there, and admits rank->holds, on the rank's GPU;
 * -ENOMEM. */
int rank_make_windows(struct rank *rank, struct job *job, rank_made *made);
/* Takes the host memory of rank->stash, and sets rank->stash_reserved; -ENOMEM. */
int rank_reserve_stash(struct rank *rank, struct job *job, rank_made *made);
/* The job that the windows are for; NULL: the setup opens events. */
struct job *rank_setup_job(const struct rank_setup *m);
/* Ranks of the job that have joined and wait for their windows. */
uint32_t setups_waits(const struct job *job, struct wait_line *lines, uint32_t n);
/* Ranks that have left, and whose driver has not answered yet. */
uint32_t setups_left(const struct engine *x, uint32_t uid, uint32_t place);
/* Says what the setup waits for. */
void rank_setup_describe(const struct rank_setup *m, struct wait_line *ret);

/* ---- stream_order.c ---- */

/* Whether a message that names this event (1 + its number; 0: none) has to wait. */
bool ordered_waits(const struct rank *rank, uint32_t event);
/* Whether a message waits that uses the same entry of the stash. */
bool ordered_uses(const struct rank *rank, const Zero__Stash *stash);
/* Whether the rank's GPU may still write to entries of the stash, also of earlier attempts. */
bool ordered_stashes(const struct rank *rank);
/* Queues a copy of m, for call() in its turn, which ends r.  event: as ordered_waits(). */
int ordered_add(struct rank *rank, rank_call *call, const Zero__Request *m, uint32_t event,
                struct request *r, struct fault *fault);
/* Whether messages of the rank wait, and what the first one waits for. */
bool ordered_describe_first(const struct rank *rank, struct wait_line *ret);
/* The session has ended: its messages take no effect, and its leases and events end. */
void ordered_drop(struct rank *rank);
