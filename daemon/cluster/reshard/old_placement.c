/*
 * States of placements that are no longer in force.
 *
 * No step runs on them.  The coordinator says where the job stood (Settle): a decided step is
 * carried out, any other is void.  Then the placement in force is filled from these states, and
 * when that placement is complete they are deleted (Placed).  Until then they are all that exists
 * of the job.
 */
#include "daemon/cluster/reshard/fill_target.h"
#include "daemon/step/update/update.h"

#include <assert.h>

#include "daemon/floor/base/crash.h"
#include "daemon/floor/base/log.h"
#include "daemon/job/rules/moving.h"
#include "proto/cleanup.h"

void old_placement_take_up(struct job *job)
{
        list_for_each (&job->old_replicas, item) {
                replica_take_up(CONTAINER_OF(item, struct replica, link));
        }
}

static bool is_read(const struct replica *h)
{
        for (uint32_t g = 0; g < h->job->layout->n_groups; g++)
                if (h->pins[g])
                        return true;
        return h->updating || h->capture;
}

/* ---- Settle ---------------------------------------------------------------------------- */

static bool settles(const struct job *job, uint64_t call)
{
        list_for_each ((struct list *)&job->old_replicas, item) {
                if (CONTAINER_OF(item, struct replica, link)->settling == call)
                        return true;
        }
        return false;
}

static void settle(struct replica *h, const Zero__Decision *last, uint64_t call)
{
        const struct owner_event e = { .kind = OWNER_SETTLE,
                                       .attempt = last ? last->attempt : 0,
                                       .commit = last && last->commit };
        struct owner_actions actions;
        struct owner o;

        owner_of_replica(h, &o);
        owner_step(&o, &e, &actions);
        for (uint32_t i = 0; i < actions.n; i++) {
                const struct owner_record *to = &actions.items[i].record;

                if (actions.items[i].kind == OWNER_DECIDE) {
                        update_begin(h, last, to);
                } else { /* OWNER_ABORT */
                        state_abort(h->state, to->attempt);
                        assert(record_stands(h, to));
                }
        }
        if (h->updating)
                h->settling = call;
}

static void settled(struct job *job, uint64_t call)
{
        Zero__LinkMessage m = job_message(job->name);

        m.call = call;
        if (!settles(job, call))
                answer(job->x, job->coordinator, &m, ZERO_OK, "");
}

/* Deletes states of a move that was given up.  Those that somebody reads are deleted later. */
static void drop_void(struct job *job, uint64_t stands)
{
        list_for_each (&job->old_replicas, item) {
                struct replica *h = CONTAINER_OF(item, struct replica, link);

                if (!state_void(&job->placement, stands, h->state->id.epoch) || is_read(h))
                        continue;
                log_info("job %s: deleted its state of epoch %llu, which no step used", job->name,
                         (unsigned long long)h->state->id.epoch);
                state_drop_later(job->x, job, STEAL(h->state));
                replica_free(h);
        }
}

void old_placement_settle_message(struct job *job, uint32_t node, const Zero__LinkMessage *m)
{
        bool some = false;

        list_for_each (&job->old_replicas, item) {
                struct replica *h = CONTAINER_OF(item, struct replica, link);

                if (h->state->id.epoch != m->settle->epoch)
                        continue;
                some = true;
                settle(h, m->settle->last, m->call);
        }
        if (some)
                drop_void(job, m->settle->epoch);
        if (some)
                settled(job, m->call);
        else
                answer(job->x, node, m, ZERO_EABORTED,
                       "the node's states of that placement are gone");
}

static void old_placement_updated(struct replica *h)
{
        uint64_t call = h->settling;

        h->settling = 0;
        if (call)
                settled(h->job, call);
}

/* ---- Placed ---------------------------------------------------------------------------- */

/* Deletes old states once another placement is complete and nobody reads them. */
static void old_placement_sweep(struct job *job)
{
        list_for_each (&job->old_replicas, item) {
                struct replica *h = CONTAINER_OF(item, struct replica, link);

                if (!state_ends(&job->placement, job->reshard->whole, h->state->id.epoch) ||
                    is_read(h))
                        continue;
                log_info("job %s: deleted its state of epoch %llu: the job is complete at epoch "
                         "%llu",
                         job->name, (unsigned long long)h->state->id.epoch,
                         (unsigned long long)job->placement.epoch);
                state_drop_later(job->x, job, STEAL(h->state));
                replica_free(h);
                crash_point(CRASH_MOVE_DROPPED);
        }
}

/* States lost in earlier placements are not in the job's list. */
static void sweep_lost(struct engine *x, const char *job)
{
        uint32_t n = store_sweep_lost(x->store, job, x->placement.epoch);

        if (n)
                log_info("job %s: deleted %u of its states that were lost on a GPU: the job is "
                         "complete at epoch %llu",
                         job, n, (unsigned long long)x->placement.epoch);
}

void old_placement_placed_message(struct engine *x, uint32_t node, const Zero__LinkMessage *m)
{
        struct job *job = job_find(x, m->job);

        if (node != coordinator_of(x, m->job) || m->placed->epoch != x->placement.epoch)
                return;
        crash_point(CRASH_MOVE_PLACED);
        sweep_lost(x, m->job);
        if (!job)
                return;
        job->reshard->whole = m->placed->epoch;
        old_placement_sweep(job);
}

static void old_placement_tick(struct engine *x)
{
        list_for_each (&x->jobs, item) {
                old_placement_sweep(CONTAINER_OF(item, struct job, link));
        }
}

const struct module old_placement_module = { .job_at = offsetof(struct job, reshard),
                                             .job_bytes = sizeof(struct job_reshard),
                                             .tick = old_placement_tick };
const struct shard_observer old_placement_observer = { .updated = old_placement_updated };
