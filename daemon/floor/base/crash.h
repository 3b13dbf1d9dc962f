/*
 * Points at which a test can kill the daemon.
 *
 * In builds with -Dcrash_points=true and with ZEROD_CRASH=NAME:N in the environment, SIGKILL ends
 * the process when it passes the point NAME for the N-th time (NAME alone: for the first time),
 * whatever its other threads are doing.  ZEROD_CRASH=list prints all names.  In other builds points
 * compile to nothing, and the variable is refused like any other that zerod does not know.
 */
#pragma once

#include <stdbool.h>

#include "proto/fault.h"

/* clang-format off */
/* X(point, name): the job's coordinator passes the points coordinator.*. */
#define CRASH_POINT_MAP(X)                                                                         \
        X(PUSH_ACCEPTED, "push.accepted") /* a rank's micro-batch is accepted, not answered */      \
        X(PUSH_SUMMED, "push.summed") /* the node's ranks are summed */                            \
        X(PUSH_OFFERED, "push.offered") /* the sum is offered to another owner */                  \
        X(PUSH_SENDING, "push.sending") /* an owner has asked for its part */                      \
        X(ACCUMULATOR_PART, "accumulator.part") /* some of the part has come */                    \
        X(ACCUMULATOR_LANDED, "accumulator.landed") /* all of the part has come */                 \
        X(ACCUMULATOR_ADDED, "accumulator.added") /* the part is added to the gradient */          \
        X(MIRROR_OFFERED, "mirror.offered") /* an owner's sum is offered to its mirror */          \
        X(MIRROR_SENDING, "mirror.sending") /* the mirror has asked for the sum */                 \
        X(VOTE_KEPT, "vote.kept") /* the ranks' blobs are written, the vote is not */              \
        X(VOTE_RECORDED, "vote.recorded") /* the vote is recorded, not sent */                     \
        X(VOTE_SENT, "vote.sent") /* the vote is sent */                                           \
        X(COORDINATOR_READY, "coordinator.ready") /* all ranks have called zero_step() */          \
        X(COORDINATOR_AHEAD, "coordinator.ahead") /* a rank has said how it will end the step */  \
        X(COORDINATOR_ASKING, "coordinator.asking") /* an owner is asked for its vote */           \
        X(COORDINATOR_DECIDED, "coordinator.decided") /* all votes are there, nobody is told */    \
        X(COORDINATOR_TELLING, "coordinator.telling") /* a node is told the decision */            \
        X(COORDINATOR_STARTING, "coordinator.starting") /* a new attempt, nobody is told */        \
        X(COORDINATOR_STARTED, "coordinator.started") /* all nodes are told */                     \
        X(COORDINATOR_RECOVERING, "coordinator.recovering") /* owners have said what they hold */  \
        X(DECISION_HEARD, "decision.heard") /* a node has heard the decision */                    \
        X(DECISION_ANSWERING, "decision.answering") /* it is recorded, no rank is told */       \
        X(DECISION_ANSWERED, "decision.answered") /* ranks are told */                             \
        X(ATTEMPT_BEGUN, "attempt.begun") /* a node has heard of a new attempt */                  \
        X(ATTACH_ENTERED, "attach.entered") /* a rank is in the job, but not told */            \
        X(OPEN_ANSWERING, "open.answering") /* the coordinator has asked where the job stands */   \
        X(OPEN_ANSWERED, "open.answered") /* the coordinator is told */                            \
        X(RECORD_TORN, "record.torn") /* a record is written, its checksum is not */               \
        X(RECORD_BOTH, "record.both") /* the record is published, the older copy counts too */     \
        X(RECORD_STEPS, "record.steps") /* tensor steps are raised, the record is not */           \
        X(RECORD_FINISHED, "record.finished") /* the step is over, its marks are not cleared */    \
        X(BLOB_TORN, "blob.torn") /* a rank's blob is written, its checksum is not */          \
        X(UPDATE_BEGIN, "update.begin") /* the decision is recorded, no chunk touched */           \
        X(UPDATE_VALID, "update.valid") /* an undo slot is held, nothing of the chunk changed */   \
        X(UPDATE_TORN, "update.torn") /* some of a chunk has changed, its version has not */       \
        X(UPDATE_COPIED, "update.copied") /* a chunk has its version, the slot is not yet free */  \
        X(UPDATE_CHUNK, "update.chunk") /* a chunk is updated, its serve bytes are not */          \
        X(UPDATE_FINISH, "update.finish") /* all chunks are updated, the record is not */          \
        X(UPDATE_DONE, "update.done") /* the record is updated, the coordinator not told */        \
        X(AHEAD_KEPT, "ahead.kept") /* a chunk is updated before the decision */                   \
        X(AHEAD_UNDONE, "ahead.undone") /* its old values are put back, its version is not */      \
        X(RESUME_REPLAYED, "resume.replayed") /* old values are put back */                        \
        X(RESUME_OPENED, "resume.opened") /* a job's file is open, nothing is done */              \
        X(RESUME_TAKEN, "resume.taken") /* the job is known, a recorded step not carried out */    \
        X(DROP_NOTED, "drop.noted") /* the drop is noted, nothing of the job is deleted */         \
        X(DROP_DELETED, "drop.deleted") /* the job's state is deleted, no other node is told */    \
        X(PLANES_AWAY, "planes.away") /* a state is on its GPU, the file still has its planes */   \
        X(PLANES_WRITTEN, "planes.written") /* planes are written back, the file does not say so */\
        X(MOVE_WHOLE, "move.whole") /* all states are moved, no node is told */                    \
        X(MOVE_PLACED, "move.placed") /* all states are moved, the old ones are still there */     \
        X(MOVE_DROPPED, "move.dropped") /* an old state is deleted */                              \
        X(CHECKPOINT_BLOCK, "checkpoint.block") /* a block of a shard is written */                \
        X(CHECKPOINT_SHARD, "checkpoint.shard") /* a shard is on the disk, nobody is told */       \
        X(CHECKPOINT_FILLED, "checkpoint.filled") /* the manifest is written, the rename is not done */\
        X(CHECKPOINT_NAMED, "checkpoint.named") /* it is renamed, no older one is deleted */       \
        X(CHECKPOINT_THINNED, "checkpoint.thinned") /* an older one has lost its name, not its files */\
        X(RESTORE_FILLED, "restore.filled") /* a draft is complete, nothing is replaced */         \
        X(RESTORE_NAMED, "restore.named") /* the draft has the state's name, its blobs have not */ \
        X(FILL_DRAFTED, "fill.drafted") /* a holder's draft is made, nothing is in it */           \
        X(FILL_SENDING, "fill.sending") /* a source sends part of its state */                     \
        X(FILL_FILLED, "fill.filled") /* the draft is complete, it has no name */
/* clang-format on */

enum crash_point {
#define X(point, name) CRASH_##point,
        CRASH_POINT_MAP(X)
#undef X
                CRASH_POINT_COUNT
};

#ifdef ZEROD_CRASH_POINTS
enum { CRASH_POINTS = 1 };
#else
enum { CRASH_POINTS = 0 };
#endif

/*
 * Reads $ZEROD_CRASH and removes it from the environment.  Call it before any thread starts.
 * *ret_done: the names were printed, so the process should end.
 */
int crash_setup(bool *ret_done, struct fault *fault);
/* NAME or NAME:N */
int crash_arm(const char *text, struct fault *fault);
void crash_pass(enum crash_point point);

/* Any thread. */
static inline void crash_point(enum crash_point point)
{
        if (CRASH_POINTS)
                crash_pass(point);
}
