/* drop.h - jobs are dropped on all nodes. */
#pragma once

#include "daemon/job/core/job.h"

/*
 * Whether this node can keep one more drop: ZERO_EQUOTA while absent nodes have not heard of too
 * many.  For a client, call this before drop_order().
 */
int drop_admit(struct engine *x, const char *job, struct fault *fault);
/*
 * Drops the job here and on all nodes.  Nodes that are away hear of it when they come up, if this
 * node keeps the drop.  Calls told() when the job's memory here is free and the nodes that are up
 * have answered.
 */
typedef void drop_told(struct engine *x, uint32_t node, uint64_t call, bool keeps, node_set untold);
void drop_order(struct engine *x, const char *job, uint32_t node, uint64_t call, drop_told *told);
/* Another node says that the job is dropped. */
void drop_message(struct engine *x, uint32_t node, const Zero__LinkMessage *m);
/* Whether the drop of such a job only waits for what still uses the job on this node. */
bool drop_only_ends(struct engine *x, const char *job);
/* ZERO_EBUSY while a job of that name is being dropped. */
int drop_check(struct engine *x, const char *job, struct fault *fault);
/* Takes up drops of an earlier process, after its jobs are found and before they are taken up. */
void drops_resume(struct engine *x);
void drops_free(struct engine *x);

/* ---- finished.c ---- */

/* What a user's jobs leave for a new one. */
struct finished_jobs {
        struct job *first; /* the one whose end helps and that has been finished longest, or NULL */
        uint64_t bytes;    /* the sum of layout_state_bytes() over those whose end helps */
        bool full;         /* it is their number that leaves no place */
};
void jobs_finished(struct engine *x, uint32_t uid, const layout *l, struct finished_jobs *ret);
/* What all owners together hold for such a layout, without tables. */
uint64_t layout_state_bytes(const layout *l);

extern const struct module drop_module;
