/* States that were left, restored or filled are taken up where their records stand. */
#include "daemon/update/update.h"

#include "daemon/base/crash.h"
#include "proto/cleanup.h"

/* What the job is told to be at: the coordinator tells those behind, and those ahead know. */
static const struct state_record *record_behind(struct list *replicas)
{
        const struct state_record *behind = NULL;
        uint64_t least = UINT64_MAX;

        list_for_each (replicas, item) {
                const struct state_record *r =
                        CONTAINER_OF(item, struct replica, link)->state->record;
                uint64_t attempt = r->attempt + (r->phase == ATTEMPT_DECIDED);

                if (attempt < least) {
                        least = attempt;
                        behind = r;
                }
        }
        return behind;
}

void replica_take_up(struct replica *h)
{
        const struct job *job = h->job;

        for (uint32_t g = 0; g < job->layout->n_groups; g++)
                h->shard_version[g] = group_version(job, g, h->state->record->version);
        accumulator_take_up(h);
        if (h->state->record->phase == ATTEMPT_DECIDED)
                update_start(h);
}

void job_take_up(struct job *job)
{
        bool old_placement =
                list_empty(&job->replicas); /* all that is here is of an earlier placement */
        const struct state_record *record =
                record_behind(old_placement ? &job->old_replicas : &job->replicas);
        bool decided = record->phase == ATTEMPT_DECIDED;

        job->attempt = record->attempt + decided;
        job->version = record->version + (decided && record->commit);
        job->loss_scale = record->loss_scale > 0 ? record->loss_scale : job->loss_scale;
        job->grad_norm = record->grad_norm;
        job->skipped = record->skipped;
        if (record->decided_attempt)
                job->last = (struct step_result){ .version = job->version,
                                                  .attempt = record->decided_attempt,
                                                  .skipped = !record->commit,
                                                  .grad_norm = record->grad_norm,
                                                  .loss_scale = record->loss_scale };
        crash_point(CRASH_RESUME_TAKEN);
        for_replicas (job, h)
                replica_take_up(h);
        for_modules (job->x, module)
                if (module->job_stands)
                        module->job_stands(job);
}
