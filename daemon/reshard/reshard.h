/*
 * reshard.h - shards move to the nodes that shall hold them: when the list of owners changes, when
 * a node has lost what it held, when a mirror has missed a put.
 *
 *   fill.c          at the coordinator: fills asked for, and how far they are
 *   fill_target.c       at the holder's node: the phases of one
 *   fill_pull.c  its bytes              fill_order.c  what is asked for, read
 *   fill_source.c        at a source
 *   old_placement.c        states of earlier placements, until another one is whole
 *   move.c          how far jobs are on their way
 *
 * All sources stand at one version and decision, and no step runs.  The holder's node makes a
 * draft, pulls what lacks (job/pieces.h) straight into its planes, then asks each source for tensor
 * steps and sets: a source whose state has changed since, by a step or by a put, refuses, and
 * nothing has happened.  Then the draft is named, at one instant, and is the job's.
 */
#pragma once

#include "daemon/shard/shard.h"

/* ---- at the coordinator ---- */

enum { FILL_SILENCE_MS = 120000 };

struct fill_order {
        const char *job;
        uint32_t uid, world_size, reduce_dtype;
        Zero__Layout *layout;
        /* to: in force.  from: the same where a holder lacks its state; owners of whom nothing is
         * known any more have node ZERO_NODE_MAX. */
        const struct placement *from, *to;
        uint32_t holder;             /* of `to` */
        uint64_t version, attempt;   /* attempt: after all that any node has heard of */
        Zero__Decision *last;        /* NULL: none was yet */
        uint64_t puts;               /* that the state has then; as its twin's */
        const bool *readable;        /* [holder of `from`] */
        const uint64_t *source_puts; /* the same: as their standings say */
};

/* One that is under way. */
struct fill;
/* Called exactly once, never before fill_start() returns; standing is there with ZERO_OK alone. */
typedef void fill_done(void *arg, int status, const char *text, const Zero__Standing *standing);
/* NULL: out of memory.  ZERO_EBUSY, as status, tells that an earlier one has not ended there yet.
 */
struct fill *fill_start(struct engine *x, const struct fill_order *order, fill_done *done,
                        void *arg);
/* done() is still called. */
void fill_cancel(struct fill *f);
/* Bytes: in their place, of all; of those, what came from other nodes. */
void fill_progress(const struct fill *f, uint64_t *ret_bytes, uint64_t *ret_total,
                   uint64_t *ret_moved);
/* Gives up those of which nothing was heard for FILL_SILENCE_MS. */
void fills_tick(struct engine *x);
void fill_progress_message(struct engine *x, uint32_t node, const Zero__LinkMessage *m);

/* ---- at the holder's node ---- */

void fill_target_message(struct engine *x, uint32_t node, const Zero__LinkMessage *m);

/* ---- at a source ---- */

void fill_source_pull_message(struct job *job, uint32_t node, const Zero__Pull *request);
void fill_source_info_message(struct job *job, uint32_t node, const Zero__LinkMessage *m);

/* ---- states of earlier placements ---- */

/* A decided step is carried out. */
void old_placement_take_up(struct job *job);
/* Where the job stood when its placement ended; that another one is whole. */
void old_placement_settle_message(struct job *job, uint32_t node, const Zero__LinkMessage *m);
void old_placement_placed_message(struct engine *x, uint32_t node, const Zero__LinkMessage *m);

/* ---- how far the job is on its way from one owner list to another ---- */

/* False: the job does not move, as far as this node knows. */
bool job_moves(const struct job *job, struct move *ret);
/* What the coordinator tells; m NULL: it stays where it is. */
void job_move_told(struct job *job, const Zero__Move *m);

extern const struct module fill_target_module, old_placement_module;
extern const struct shard_observer old_placement_observer;
