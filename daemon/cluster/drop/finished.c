/* Finished jobs that may give up their place for another job. */
#include "daemon/cluster/drop/drop.h"
#include "daemon/job/core/progress.h"
#include "daemon/job/shard/shard.h"

#include "proto/cleanup.h"

uint64_t layout_state_bytes(const layout *l)
{
        uint64_t bytes = 0;

        for (uint32_t g = 0; g < l->n_groups; g++) {
                const struct layout_group *group = &l->groups[g];
                struct range all = { 0, group->elements };
                uint64_t trainable = partition_trainable(l, g, all);
                uint64_t planes = 1 + group->eager; /* with the old values */

                bytes += group->elements * layout_group_served(group) +
                         format_bytes(optimizer_master(group), group->elements) +
                         trainable * planes * sizeof(float);
                for (uint32_t i = 0; i < optimizer_group_moments(l, g); i++)
                        bytes += planes * optimizer_moment_bytes(l, g, all, i);
        }
        return bytes;
}

void jobs_finished(struct engine *x, uint32_t uid, const layout *l, struct finished_jobs *ret)
{
        *ret = (struct finished_jobs){ .full = jobs_full(x, uid, l, false) };
        if (jobs_full(x, uid, l, true))
                return;
        list_for_each (&x->jobs, item) {
                struct job *job = CONTAINER_OF(item, struct job, link);

                if (job->uid != uid || !job_gives_place(job) ||
                    (ret->full && !job_end_makes_place(job, l)))
                        continue;
                ret->bytes += layout_state_bytes(job->layout);
                if (!ret->first || job->progress->finished_ms < ret->first->progress->finished_ms)
                        ret->first = job;
        }
}
