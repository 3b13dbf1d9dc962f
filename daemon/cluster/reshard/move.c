/* How far the moves of this node's jobs are, as far as this node knows. */
#include "daemon/cluster/reshard/reshard.h"

#include "daemon/cluster/reshard/fill_target.h"
#include "proto/cleanup.h"

enum { TOLD_MS = 10000 }; /* after that the coordinator may be gone */

void job_move_told(struct job *job, const Zero__Move *m)
{
        job->reshard->told_ms = m ? engine_now(job->x) : 0;
        if (m)
                job->reshard->move = (struct move){ m->from, m->to, m->bytes, m->total };
}

/* The progress of a job that its fills made and that has not heard from a coordinator. */
static void fill_targets_sum(const struct job *job, struct move *m)
{
        list_for_each (&job->x->reshard->fill_targets, item) {
                const struct fill_target *f = CONTAINER_OF(item, struct fill_target, link);

                if (f->job != job || f->phase == FILL_TARGET_ENDED)
                        continue;
                m->from = f->from.epoch;
                m->bytes += f->bytes;
                m->total += f->total;
        }
}

bool job_moves(const struct job *job, struct move *ret)
{
        const struct job_reshard *r = job->reshard;
        bool told = r->told_ms && engine_now(job->x) - r->told_ms < TOLD_MS;
        struct move m = { .from = job->placement.epoch, .to = job->placement.epoch };

        if (told)
                m = r->move;
        else if (fill_target_of_job(job))
                fill_targets_sum(job, &m);
        else if (!r->whole && !list_empty(&job->old_replicas))
                m.from = replica_newest_old_placement(job)->state->id.epoch;
        else
                return false;
        *ret = m;
        return true;
}
