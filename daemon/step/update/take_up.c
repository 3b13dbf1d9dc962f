/* Takes up states that an earlier process left, or that were restored or filled, where their
 * records stand. */
#include "daemon/step/update/update.h"

#include "daemon/floor/base/crash.h"
#include "proto/cleanup.h"

static const struct replica *replica_behind(const struct job *job)
{
        const struct list *lists[] = { &job->replicas, &job->old_replicas };
        const struct replica *behind = NULL;
        struct owner least, o;

        for (uint32_t i = 0; i < 2; i++)
                list_for_each ((struct list *)lists[i], item) {
                        const struct replica *h = CONTAINER_OF(item, struct replica, link);

                        owner_of_replica(h, &o);
                        if (behind && !owner_behind(&o.replicas[0], &least.replicas[0]))
                                continue;
                        behind = h;
                        least = o;
                }
        return behind;
}

void replica_take_up(struct replica *h)
{
        const struct owner_event e = { .kind = OWNER_GIVEN };
        const struct job *job = h->job;
        struct owner_actions actions;
        struct owner o;

        for (uint32_t g = 0; g < job->layout->n_groups; g++)
                h->shard_version[g] = group_version(job, g, h->state->record->version);
        accumulator_take_up(h);
        owner_of_replica(h, &o);
        owner_step(&o, &e, &actions);
        /* a crash left chunks of both versions */
        for (uint32_t g = 0; g < job->layout->n_groups; g++)
                h->changing[g] = actions.n && h->state->record->commit &&
                                 layout_group_trainable(job->layout, g);
        if (actions.n) /* OWNER_UPDATE */
                update_start(h);
}

void job_take_up(struct job *job)
{
        const struct state_record *record = replica_behind(job)->state->record;
        const struct owner_record facts = record_facts(record);
        const struct owner_stand stand = owner_stand(&facts);

        job->attempt = stand.attempt;
        job->version = stand.version;
        job->last = (struct step_result){
                .version = job->version,
                .attempt = record->decided_attempt,
                .skipped = !record->commit,
                .n_skipped = record->skipped,
                .grad_norm = record->grad_norm,
                .loss_scale = record->loss_scale > 0 ? record->loss_scale : job->last.loss_scale,
        };
        crash_point(CRASH_RESUME_TAKEN);
        for_replicas (job, h)
                replica_take_up(h);
        for_modules (job->x, module)
                if (module->job_stands)
                        module->job_stands(job);
}
