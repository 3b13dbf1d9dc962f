/* operation.h - shared by the phases of checkpoints and restores, at the coordinator and at every
 * node. */
#pragma once

#include "daemon/cluster/checkpoint/checkpoint.h"

struct checkpoints {
        struct list operations, schedules, captures, loadings;
        uint64_t last_operation;
        uint64_t stopped_ms;
        double disk_rate; /* bytes a second of the last checkpoint; 0: unknown */
};

/* operation.c, for the phases */
int operation_new(struct engine *x, const struct order *order, bool restore, struct operation **ret,
                  struct fault *fault);
/* Asks for the parts whose bit is set; then comes next(), or the operation fails. */
void operation_ask(struct operation *op, node_set parts, Zero__Snapshot *m,
                   void (*next)(struct operation *op));
void operation_enter(struct operation *op, enum operation_phase phase);
void operation_end(struct operation *op, int status, const char *text);
/* Call after blocking work of the operation.  True: it is over, and perhaps freed. */
bool operation_gone(struct operation *op);
/* checkpoint.c */
int order_check(struct engine *x, const struct order *order, struct fault *fault);
/* convert.c.  The layout that the job gets, packed; *ret stays empty if it is the checkpoint's.
 * The caller frees it. */
int convert_layout(const struct operation *op, ProtobufCBinaryData *ret, struct fault *fault);
/* The same at a node, which takes formats and whole tensors from `packed`, and all else from the
 * checkpoint's. */
int converted_layout(const ProtobufCBinaryData *packed, const layout *saved, layout **ret,
                     struct fault *fault);
/* schedule.c */
void checkpoints_due(struct engine *x);
/* The checkpoint came out well. */
void schedule_done(struct engine *x, const struct operation *op);
void schedule_message(struct engine *x, uint32_t node, const Zero__LinkMessage *m);
/* A restored job takes the schedule over. */
void schedule_dropped(struct engine *x, const char *job, bool replaced);
void schedules_free(struct engine *x);

/* ---- at every node ---- */

/* answer.c */
void snapshot_answer(struct engine *x, uint32_t node, uint64_t call, Zero__Snapshotted *s);
/* owner: only of a checkpoint. */
void snapshot_send_progress(struct engine *x, const char *job, uint32_t node, uint64_t id,
                            uint32_t owner, uint64_t bytes);

struct capture;
void capture_prepare(struct engine *x, uint32_t node, const Zero__LinkMessage *m);
void capture_phase(struct engine *x, uint32_t node, const Zero__LinkMessage *m);
void loading_begin(struct engine *x, uint32_t node, const Zero__LinkMessage *m);
void loading_swap(struct engine *x, uint32_t node, const Zero__LinkMessage *m);
/* id 0: everything that the node has begun. */
void capture_cancel(struct engine *x, uint32_t node, uint64_t id, const char *why);
void loading_cancel(struct engine *x, uint32_t node, uint64_t id);
/* Adds to *n_jobs the running restores on this node that will add a job to the user's. */
int loadings_admit(struct engine *x, const char *name, uint32_t uid, uint64_t *n_jobs,
                   struct fault *fault);
void captures_tick(struct engine *x);
/* The engine goes, and captures that wait for nothing but their disk stay behind. */
void captures_leave(struct engine *x);
void loadings_tick(struct engine *x);
