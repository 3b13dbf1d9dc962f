/*
 * reshard.h - moves shards to their holders when the owner list has changed, when a node has lost
 * its shards, or when a mirror has missed a put.
 *
 *   fill.c           at the coordinator: orders fills, and knows their progress
 *   fill_target.c    at the holder's node: the phases of a fill
 *   fill_order.c     ... reads the order             fill_pull.c   ... pulls the bytes
 *   fill_source.c    at a source
 *   old_placement.c  states of earlier placements, until another one is complete
 *   move.c           how far jobs have moved
 *
 * All sources are at one version and decision, and no step runs.  The holder's node makes a draft,
 * pulls what it lacks (rules/pieces.h) straight into the draft's planes, then asks each source for
 * tensor steps and sets.  A source whose state has changed meanwhile, by a step or by a put,
 * refuses, and the fill has no effect.  Otherwise the draft is named, in one instant, and becomes
 * the job's state.
 */
#pragma once

#include "daemon/job/shard/shard.h"

/* ---- at the coordinator ---- */

enum { FILL_SILENCE_MS = 120000 };

struct fill_order {
        const struct job_spec *job;
        Zero__Layout *layout;
        /* to: in force. from: the same if a holder lacks its state; an owner that no node knows of
         * has NO_NODE. */
        const struct placement *from, *to;
        uint32_t holder;             /* in `to` */
        uint64_t version, attempt;   /* attempt: above all that any node has heard of */
        Zero__Decision *last;        /* NULL: no step was decided */
        uint64_t puts;               /* of the new state: those of the other holders */
        const bool *readable;        /* [holder of `from`] */
        const uint64_t *source_puts; /* [holder of `from`]: puts, as it has told */
};

/* A fill in progress. */
struct fill;
/* Called exactly once, never before fill_start() returns; standing is valid only with ZERO_OK. */
typedef void fill_done(void *arg, int status, const char *text, const Zero__Standing *standing);
/* NULL: out of memory. done() gets ZERO_EBUSY while an earlier fill has not ended on that node. */
struct fill *fill_start(struct engine *x, const struct fill_order *order, fill_done *done,
                        void *arg);
/* done() is still called. */
void fill_cancel(struct fill *f);
/* Bytes in their place, bytes in all, and bytes that came from other nodes. */
void fill_progress(const struct fill *f, uint64_t *ret_bytes, uint64_t *ret_total,
                   uint64_t *ret_moved);
/* Gives up fills without a sign for FILL_SILENCE_MS. */
void fills_tick(struct engine *x);
void fill_progress_message(struct engine *x, uint32_t node, const Zero__LinkMessage *m);

/* ---- at the holder's node ---- */

void fill_target_message(struct engine *x, uint32_t node, const Zero__LinkMessage *m);

/* ---- at a source ---- */

void fill_source_pull_message(struct job *job, uint32_t node, const Zero__Pull *request);
void fill_source_info_message(struct job *job, uint32_t node, const Zero__LinkMessage *m);

/* ---- states of earlier placements ---- */

/* Carries out a decided step. */
void old_placement_take_up(struct job *job);
/* The coordinator says where the job stood when its placement ended, or that another one is
 * complete. */
void old_placement_settle_message(struct job *job, uint32_t node, const Zero__LinkMessage *m);
void old_placement_placed_message(struct engine *x, uint32_t node, const Zero__LinkMessage *m);

/* ---- a job's move from one owner list to another ---- */

struct move {
        uint64_t from, to;     /* epochs; equal where holders get back what they lost */
        uint64_t bytes, total; /* moved, of all; total 0: unknown */
};
/* False: as far as this node knows, the job does not move. */
bool job_moves(const struct job *job, struct move *ret);
/* The coordinator says how far the job is; m NULL: it does not move. */
void job_move_told(struct job *job, const Zero__Move *m);

extern const struct module fill_target_module, old_placement_module;
extern const struct shard_observer old_placement_observer;
