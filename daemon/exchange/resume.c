/*
 * Jobs that an earlier process left in the state directory.
 *
 * A step whose decision is in the record is carried out to the end.  What becomes of an
 * attempt that this owner has voted in, the job's coordinator finds out (coordinator.h); any
 * other is void, its gradients count for nothing.  Trainers then attach as to any job.
 */
#include "daemon/exchange/exchange.h"

#include <string.h>

#include "daemon/base/crash.h"
#include "daemon/base/log.h"
#include "proto/cleanup.h"

void job_take_up(struct job *job)
{
        const struct state_record *record = job->state->record;
        bool decided = record->phase == ATTEMPT_DECIDED;

        job->attempt = record->attempt + decided;
        job->version = record->version + (decided && record->commit);
        job->loss_scale = record->loss_scale > 0 ? record->loss_scale : job->loss_scale;
        job->grad_norm = record->grad_norm;
        job->skipped = record->skipped;
        for (uint32_t g = 0; g < job->layout->n_groups; g++)
                job->shard_version[g] = group_version(job, g, record->version);
        if (record->decided_attempt)
                job->last = (struct step_result){ .version = job->version,
                                                  .attempt = record->decided_attempt,
                                                  .skipped = !record->commit,
                                                  .grad_norm = record->grad_norm,
                                                  .loss_scale = record->loss_scale };
        crash_point(CRASH_RESUME_TAKEN);
        if (decided)
                update_start(job);
        coordinator_resume(job);
}

/* The cluster must still cut the groups as the file has them. */
static bool resume_fits(const struct exchange *x, const struct state *state, const char *file)
{
        if (x->owner != NO_OWNER && state->id.n_owners == x->n_owners &&
            state->plan->owner == (uint32_t)x->owner && state->id.copy == 0 &&
            state->id.epoch == 0 && job_name_valid(state->id.job))
                return true;
        log_error("state file %s was made for %u owners, this node being number %u: it is left "
                  "alone; "
                  "restore that owner list to use it",
                  file, state->id.n_owners, state->plan->owner);
        return false;
}

static int resume_job(const char *file, void *arg)
{
        struct exchange *x = arg;
        struct state *state = NULL;
        layout *l = NULL;
        struct fault fault;
        struct job *job;

        if (state_open(x->store, file, &state, &l, &fault)) {
                log_error("state file %s is not used: %s", file, fault.text);
                return 0;
        }
        if (state->record->attempt < JOB_FILLED) {
                log_warning("state file %s was never filled: it is deleted", file);
                layout_free(l);
                state_drop(state);
                return 0;
        }
        if (!resume_fits(x, state, file)) {
                layout_free(l);
                state_close(state);
                return 0;
        }
        job = job_new(x, state->id.job, state->id.uid, state->id.world_size, state->id.reduce_dtype,
                      l);
        if (!job) {
                log_error("state file %s is not used: out of memory", file);
                state_close(state);
                return 0;
        }
        job->state = state;
        job->opening = false;
        crash_point(CRASH_RESUME_OPENED);
        for (uint32_t g = 0; g < job->layout->n_groups; g++)
                state_serve_group(state, job->layout, g, x->ops);
        list_insert(&x->jobs, &job->link);
        job_take_up(job);
        log_info("job %s: taken up at version %llu", job->name, (unsigned long long)job->version);
        return 0;
}

void jobs_resume(struct exchange *x)
{
        int r = store_each(x->store, resume_job, x);

        if (r)
                log_error("the state directory cannot be read: %s", strerror(-r));
}
