/* drop.h - jobs are dropped on all nodes. */
#pragma once

#include "daemon/core/job.h"

/*
 * Whether another drop can be kept here: ZERO_EQUOTA while nodes that are away have too many to
 * hear of.  To be asked before drop_order() wherever a client is behind it.
 */
int drop_admit(struct engine *x, const char *job, struct fault *fault);
/*
 * Drops the job here and on all nodes; those that are away hear of it when they come up, if this
 * node keeps the drop.  told() is called when the job's memory here is free, and those that are up
 * have answered.
 */
typedef void drop_told(struct engine *x, uint32_t node, uint64_t call, bool keeps, uint64_t untold);
void drop_order(struct engine *x, const char *job, uint32_t node, uint64_t call, drop_told *told);
/* Another node tells that the job is dropped. */
void drop_message(struct engine *x, uint32_t node, const Zero__LinkMessage *m);
/* ZERO_EBUSY: a job of that name is being dropped. */
int drop_check(struct engine *x, const char *job, struct fault *fault);
/* What an earlier process has not told to all; once its jobs are found, before they are taken up.
 */
void drops_resume(struct engine *x);
void drops_free(struct engine *x);

/* ---- finished.c ---- */

/* A user's jobs as they concern a new one: those that are finished, and that no session looks at or
 * rank waits to enter, may give it their place. */
struct finished_jobs {
        struct job *first; /* the one that finished first, or NULL */
        uint64_t bytes;    /* layout_state_bytes() of all that are finished */
        uint32_t n_jobs;   /* all jobs of the user */
};
void jobs_finished(struct engine *x, uint32_t uid, struct finished_jobs *ret);
/* What all owners together hold of such a layout, but for tables. */
uint64_t layout_state_bytes(const layout *l);

extern const struct module drop_module;
