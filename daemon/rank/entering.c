/*
 * A rank whose join the coordinator has answered gets its windows, and enters the job.
 *
 * Windows on a GPU take their time (gpu_setup.c): the rank enters when they are there, if it is
 * then still to do so.  It may have ended, or given up; the job may have ended, or the link on
 * which the join was answered.
 */
#include "daemon/rank/local.h"

#include <stdlib.h>

#include "daemon/base/crash.h"
#include "proto/cleanup.h"

/* Whether the job, which has started with this rank in it, is there and has its place for it. */
static int rank_check(const struct rank *rank, const struct job *job, struct fault *fault)
{
        const struct rank_needs *needs = &rank->needs;

        if (!job || !job->started || job_find(rank->x, rank->job_name) != job)
                return fault_set(fault, ZERO_EABORTED, "the job ended while the rank attached");
        if (rank->rank >= job->world_size)
                return fault_set(fault, ZERO_ERANK, "rank %u is outside the world size %u",
                                 rank->rank, job->world_size);
        if (job->ranks[rank->rank])
                return fault_set(fault, ZERO_ERANK, "rank %u is taken by process %u on this node",
                                 rank->rank, job->ranks[rank->rank]->pid);
        if ((job->n_attached || reduce_any(job)) && job->grad_dtype != needs->grad_dtype)
                return fault_set(fault, ZERO_ECONFLICT,
                                 "ranks of one node push one dtype: %s here, %s so far",
                                 dtype_name(needs->grad_dtype), dtype_name(job->grad_dtype));
        return 0;
}

/* Windows in host memory. */
static int rank_windows(struct rank *rank, struct job *job, struct fault *fault)
{
        const struct rank_needs *needs = &rank->needs;
        int status =
                push_window_new_rank(job->layout, rank->needs.push_groups, rank->needs.grad_dtype,
                                     rank->needs.windows.on_gpu, &rank->window, fault);

        if (status)
                return status;
        return gather_admit(job, &needs->windows, needs->hold_groups, needs->local_world_size,
                            &rank->gather, fault);
}

/* With its windows. */
static int rank_enter(struct rank *rank, struct job *job, struct fault *fault)
{
        int status = rank_check(rank, job, fault);

        if (status)
                return status;
        rank->holds = calloc(job->layout->n_groups, sizeof *rank->holds);
        if (!rank->holds)
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        job->grad_dtype = rank->needs.grad_dtype;
        job->ranks[rank->rank] = rank;
        job->rank_states[rank->rank].window = rank->window;
        job->rank_states[rank->rank].refused = false; /* it hands in anew what was not accepted */
        reduce_rejoin(job, rank->rank);
        job->n_attached++;
        job_hold(job);
        rank->job = job;
        rank_called(rank, "zero_attach");
        layouts_unref(STEAL(rank->layout));
        return 0;
}

/* Where it was to enter, nobody needs them any more. */
static void windows_give(struct rank *rank)
{
        if (rank->gather)
                gather_leave(STEAL(rank->gather), rank->hold_groups);
        push_window_unref(STEAL(rank->window));
}

static void rank_turned_away(struct rank *rank, int status, const char *text)
{
        windows_give(rank);
        rank_part(rank, true);
        attach_refused(rank, status, text);
}

/* Everything is there. */
static void rank_entering(struct rank *rank, struct job *job)
{
        struct fault fault = { 0 };
        int status = rank_enter(rank, job, &fault);

        if (status) {
                rank_turned_away(rank, status, fault.text);
                return;
        }
        list_remove(&rank->link);
        crash_point(CRASH_ATTACH_ENTERED);
        if (!rank->job->rank_states[rank->rank].stepped) /* else when that step is over */
                attach_end(rank, ZERO_OK, "");
}

/* What was not to be had, or not in time, is of no use to anybody. */
static void rank_equipped(struct rank *rank, int status, const char *text)
{
        struct job *job = rank->gather ? gather_job(rank->gather) : NULL;
        bool rejoin = rank->rejoin;

        rank->rejoin = false;
        if (rank->left) { /* rank_leave() has told the coordinator */
                windows_give(rank);
                rank_free(rank);
        } else if (!rank->attaching) { /* the client has given up */
                windows_give(rank);
                rank_withdraw(rank);
                rank_part(rank, true);
        } else if (rejoin) {
                windows_give(rank);
                rank_join(rank);
        } else if (status) {
                rank_turned_away(rank, status, text);
        } else {
                rank_entering(rank, job);
        }
}

/* The coordinator has let it into the job. */
void rank_admitted(struct rank *rank)
{
        struct job *job = job_find(rank->x, rank->job_name);
        struct fault fault = { 0 };
        int status = rank_check(rank, job, &fault);

        if (!status && rank->needs.windows.on_gpu) {
                if (rank_make_windows(rank, job, rank_equipped) == 0)
                        return;
                status = fault_set(&fault, ZERO_ENOMEM, "out of memory");
        }
        if (!status)
                status = rank_windows(rank, job, &fault);
        if (status)
                rank_turned_away(rank, status, fault.text);
        else
                rank_entering(rank, job);
}
