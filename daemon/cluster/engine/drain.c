/*
 * Stops between two steps.
 *
 * A daemon that is told to stop first waits, for a bounded time, until the attempts in flight are
 * decided and their updates done.  So nothing that ranks have handed in is lost, and ranks only
 * notice a pause while another process takes the jobs up.
 */
#include "daemon/cluster/engine/lifetime.h"

#include "daemon/floor/base/log.h"
#include "proto/cleanup.h"

static bool ranks_here(const struct job *job)
{
        for (uint32_t r = 0; r < job->world_size; r++)
                if (!job->ranks[r].here)
                        return false;
        return true;
}

/* Whether something was handed in that is lost without a decision. */
static bool step_begun(const struct job *job)
{
        if (reduce_any(job))
                return true;
        for (uint32_t r = 0; r < job->world_size; r++)
                if (job->ranks[r].closed ||
                    (job->ranks[r].session && ordered_any(job->ranks[r].session)))
                        return true;
        for_replicas (job, h)
                if (accumulator_begun(h))
                        return true;
        return false;
}

/* Whether the job updates its states, or has begun a step that can end by itself: its ranks and
 * nodes are there. */
static bool job_in_flight(const struct job *job)
{
        struct wait_line away;

        for_replicas (job, h)
                if (h->updating)
                        return true;
        return job->started && ranks_here(job) && !job_away(job, &away) && step_begun(job);
}

static const struct job *first_in_flight(const struct engine *x)
{
        list_for_each (&x->jobs, item) {
                const struct job *job = CONTAINER_OF(item, struct job, link);

                if (job_in_flight(job))
                        return job;
        }
        return NULL;
}

void drain_check(struct engine *x)
{
        struct lifetime *life = x->lifetime;
        const struct job *job;

        if (!x->draining)
                return;
        job = first_in_flight(x);
        if (job && engine_now(x) < life->drain_until_ms)
                return;
        x->draining = false;
        if (job)
                log_warning("job %s: the step did not end in time; the job's ranks replay the step",
                            job->name);
        life->drained(life->drained_arg);
}

void engine_drain(struct engine *x, uint64_t timeout_ms, void (*drained)(void *arg), void *arg)
{
        const struct job *job = first_in_flight(x);
        struct lifetime *life = x->lifetime;

        x->draining = true;
        life->drained = drained;
        life->drained_arg = arg;
        life->drain_until_ms = engine_now(x) + timeout_ms;
        if (job)
                log_info("job %s: waiting for the end of its step", job->name);
        drain_check(x);
}
