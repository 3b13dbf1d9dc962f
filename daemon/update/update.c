/*
 * Updates this owner's chunks after a decision.
 *
 * Groups are updated in the order in which ranks used them in the step before, so that the next
 * forward pass waits for its first group alone.  A group whose old bytes somebody still reads
 * (pins) is passed over until the last reader has gone.  Each worker commits chunk by chunk through
 * its undo slot.  On a GPU a group is updated in place (launch.h), also from contributions whose
 * sum was deferred.  A group is at the new version as soon as its last chunk is; the record is
 * finished after the last group.
 */
#include "daemon/update/launch.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/crash.h"
#include "daemon/base/log.h"
#include "proto/cleanup.h"

enum { TASK_CHUNKS = 512 };
enum { IDLE_STEPS = 8 }; /* steps without a gradient of a group before the warning */
enum group_phase { GROUP_PENDING, GROUP_RUNNING, GROUP_FINISHED };

struct update_group {
        enum group_phase phase;
        uint32_t next_chunk, in_flight; /* tasks */
        uint64_t save_from;             /* shard_observer.update_begin */
        struct offer *deferred;         /* NULL: the sum is in the state */
};

struct update {
        uint64_t version, attempt;      /* to reach; the attempt that was decided */
        struct update_scalars *scalars; /* [tensor] */
        struct update_group *groups;    /* [group] */
        uint32_t unfinished, in_flight; /* groups; tasks */
};

struct update_task {
        struct offload_task task;
        struct replica *replica;
        uint32_t group, first, end; /* chunks */
        uint64_t save_from;
};

static int update_new(struct replica *h)
{
        struct update *u = calloc(1, sizeof *u);

        if (!u)
                return -ENOMEM;
        h->update = u;
        u->scalars = calloc(h->job->layout->n_tensors + 1, sizeof *u->scalars);
        u->groups = calloc(h->job->layout->n_groups, sizeof *u->groups);
        return u->scalars && u->groups ? 0 : -ENOMEM;
}

static void update_free(struct replica *h)
{
        struct update *u = h->update;

        if (!u)
                return;
        free(u->scalars);
        free(u->groups);
        free(u);
}

/* ---- who saves what changes -------------------------------------------------------- */

static uint64_t save_begin(struct replica *h, uint32_t group)
{
        uint64_t from = UINT64_MAX;

        for_observers (h->job->x, o)
                if (o->update_begin && from == UINT64_MAX)
                        from = o->update_begin(h, group);
        return from;
}

static void save_chunk(const struct replica *h, uint32_t chunk, struct undo_values old,
                       uint64_t from)
{
        for_observers (h->job->x, o)
                if (o->update_chunk)
                        o->update_chunk(h, chunk, old, from);
}

static void save_end(struct replica *h)
{
        for_observers (h->job->x, o)
                if (o->update_end)
                        o->update_end(h);
}

/* ---- one chunk, on an offload thread -------------------------------------------- */

static bool chunk_present(const struct replica *h, const struct plan_chunk *c)
{
        const struct plan *plan = h->state->plan;
        uint64_t end = c->in_group + c->n;

        for (uint32_t i = c->first_segment; i < plan->n_segments; i++) {
                const struct plan_segment *s = &plan->segments[i];

                if (s->group != c->group || s->in_group >= end)
                        break;
                if (h->state->present[s->tensor])
                        return true;
        }
        return false;
}

static void chunk_update(const struct replica *h, uint32_t chunk, uint32_t worker,
                         uint64_t save_from)
{
        struct state *state = h->state;
        const struct plan_chunk *c = &state->plan->chunks[chunk];
        struct undo_values old = { .planes = { NULL } };
        bool present;

        if (state_chunk_version(state, chunk) == h->update->version)
                return; /* committed before a crash; the restart has served it */
        present = chunk_present(h, c);
        if (present) {
                old = undo_update(state, worker, chunk, h->update->version, h->job->x->ops,
                                  h->update->scalars);
        } else {
                if (save_from != UINT64_MAX)
                        old = undo_values(state, worker, chunk);
                undo_skip(state, chunk, h->update->version);
        }
        crash_point(CRASH_UPDATE_CHUNK);
        if (save_from != UINT64_MAX)
                save_chunk(h, chunk, old, save_from);
        if (present)
                state_serve_chunk(state, h->job->layout, chunk, h->job->x->ops);
}

static void update_run(struct offload_task *task, uint32_t worker)
{
        struct update_task *t = CONTAINER_OF(task, struct update_task, task);
        struct update *u = t->replica->update;

        if (!state_in_file(t->replica->state)) {
                const struct offer *deferred = u->groups[t->group].deferred;

                launch_chunks(t->replica, u->scalars,
                              deferred ? deferred_node_gradient(deferred) : NULL, t->first, t->end,
                              u->version);
                return;
        }
        for (uint32_t c = t->first; c < t->end; c++)
                chunk_update(t->replica, c, worker, t->save_from);
}

/* ---- the order of groups ---------------------------------------------------------- */

static void update_tell(struct replica *h)
{
        for_observers (h->job->x, o)
                if (o->updated)
                        o->updated(h);
}

static void done_tell(struct replica *h)
{
        Zero__LinkMessage m = job_message(h->job->name);
        Zero__Done done = ZERO__DONE__INIT;

        done.attempt = h->update->attempt;
        done.owner = h->owner;
        done.copy = h->copy;
        m.body_case = ZERO__LINK_MESSAGE__BODY_DONE;
        m.done = &done;
        fabric_send(h->job->x->fabric, h->job->coordinator, &m);
}

static void update_finish(struct replica *h)
{
        const struct owner_event e = { .kind = OWNER_UPDATED };
        struct owner_actions actions;
        struct owner o;

        h->updating = false;
        owner_of_replica(h, &o);
        owner_step(&o, &e, &actions);
        for (uint32_t i = 0; i < actions.n; i++) {
                if (actions.items[i].kind == OWNER_TELL_DONE) {
                        done_tell(h);
                        continue;
                }
                crash_point(CRASH_UPDATE_FINISH); /* OWNER_FINISH */
                state_finish(h->state);
                assert(record_stands(h, &actions.items[i].record));
                crash_point(CRASH_UPDATE_DONE);
        }
        update_tell(h);
        if (!o.replicas[0].in_force)
                return;
        accumulator_updated(h);
        shard_settled(h->job);
}

static void group_finish(struct replica *h, uint32_t group)
{
        struct update *u = h->update;
        bool last = --u->unfinished == 0, saved = u->groups[group].save_from != UINT64_MAX;

        log_debug("job %s: owner %u has updated group '%s'", h->job->name, h->owner,
                  h->job->layout->groups[group].name);
        u->groups[group].phase = GROUP_FINISHED;
        h->unread[group] = false;
        deferred_release(STEAL(u->groups[group].deferred));
        shard_ready(h, group, u->version);
        if (last)
                update_finish(h);
        else
                accumulator_group_free(h, group);
        if (saved)
                save_end(h);
}

static void update_advance(struct replica *h);

static void update_done(struct offload_task *task)
{
        struct update_task *t = CONTAINER_OF(task, struct update_task, task);
        struct replica *h = t->replica;
        struct job *job = h->job;
        struct update_group *g = &h->update->groups[t->group];
        uint32_t group = t->group;

        free(t);
        h->update->in_flight--;
        g->in_flight--;
        if (g->in_flight == 0 && g->next_chunk == h->state->plan->shards[group].first_chunk +
                                                          h->state->plan->shards[group].n_chunks)
                group_finish(h, group);
        update_advance(h);
        job_unref(job);
}

static bool group_submit(struct replica *h, uint32_t group)
{
        struct update_group *g = &h->update->groups[group];
        const struct plan_shard *shard = &h->state->plan->shards[group];
        uint32_t end = shard->first_chunk + shard->n_chunks;
        /* a GPU does not take turns with gathers: fewer launches are better */
        uint32_t most = state_in_file(h->state) ? TASK_CHUNKS : shard->n_chunks;
        struct update_task *t;

        if (g->phase == GROUP_FINISHED || g->next_chunk == end ||
            (g->phase == GROUP_PENDING && h->pins[group]))
                return false;
        t = calloc(1, sizeof *t);
        if (!t)
                return false;
        if (g->phase == GROUP_PENDING)
                g->save_from = save_begin(h, group);
        *t = (struct update_task){ .task = { .run = update_run, .done = update_done },
                                   .replica = h,
                                   .group = group,
                                   .first = g->next_chunk,
                                   .end = end - g->next_chunk > most ? g->next_chunk + most : end,
                                   .save_from = g->save_from };
        g->phase = GROUP_RUNNING;
        g->next_chunk = t->end;
        g->in_flight++;
        h->update->in_flight++;
        job_ref(h->job);
        offload_submit(h->job->x->offload, &t->task);
        return true;
}

/* Keeps the workers busy, but no more than that, so that gathers get their turn. */
static void update_advance(struct replica *h)
{
        struct update *u = h->update;
        uint32_t limit = offload_workers(h->job->x->offload) + 1, i = 0;

        if (!h->updating)
                return;
        while (u->in_flight < limit && i < h->job->layout->n_groups)
                if (!group_submit(h, h->order[i]))
                        i++;
}

/* ---- the decision -------------------------------------------------------------------- */

/* Computes the scalars from the record alone, so an update that goes on after a crash has the same
 * bits. */
static void update_scalars(struct replica *h)
{
        const struct state *state = h->state;
        const struct state_record *record = state->record;

        for (uint32_t i = 0; i < state->plan->n_segments; i++) {
                const struct plan_segment *s = &state->plan->segments[i];
                double divisor =
                        layout_group_divisor(&h->job->layout->groups[s->group], record->world_size);
                uint64_t set = state->tensor_set[s->tensor];

                if (s->moment == UINT64_MAX)
                        continue;
                assert(set < record->n_sets); /* otherwise this owner would not have voted */
                h->update->scalars[s->tensor] =
                        hyper_scalars(&record->sets[set], state->tensor_step[s->tensor] + 1,
                                      record->grad_scale / divisor);
        }
}

void update_start(struct replica *h)
{
        const struct state_record *record = h->state->record;
        bool commit = record->commit;
        struct update *u = h->update;

        assert(!h->updating && record->phase == ATTEMPT_DECIDED);
        crash_point(CRASH_UPDATE_BEGIN);
        h->updating = true;
        u->attempt = record->attempt;
        u->version = record->version + commit;
        u->unfinished = 1; /* until all groups have been looked at */
        if (commit)
                update_scalars(h);
        for (uint32_t g = 0; g < h->job->layout->n_groups; g++) {
                const struct plan_shard *shard = &h->state->plan->shards[g];
                bool work = commit && shard->n_chunks > 0;

                u->groups[g] =
                        (struct update_group){ .phase = work ? GROUP_PENDING : GROUP_FINISHED,
                                               .next_chunk = shard->first_chunk,
                                               .deferred = work ? deferred_take(h, g) : NULL };
                h->unread[g] = work;
                u->unfinished += work;
                if (commit && !work && layout_group_trainable(h->job->layout, g))
                        shard_ready(h, g, u->version); /* this group has nothing to update here */
        }
        update_advance(h);
        if (--u->unfinished == 0)
                update_finish(h);
}

static bool group_present(const struct replica *h, uint32_t group)
{
        const struct layout_group *g = &h->job->layout->groups[group];

        for (uint32_t i = 0; i < g->n_tensors; i++)
                if (h->state->present[g->first_tensor + i])
                        return true;
        return false;
}

/* Whether this owner has the group's first part: it speaks for the group. */
static bool speaks_for(const struct replica *h, uint32_t group)
{
        return h->copy == 0 && layout_group_trainable(h->job->layout, group) &&
               partition_owner(h->job->partition, group, 0) == h->owner;
}

/* A forgotten push looks like a missing gradient; only people can tell the difference. */
static void idle_groups(struct replica *h)
{
        const struct job *job = h->job;
        uint32_t first = 0, n = 0;

        h->committed++;
        for (uint32_t g = 0; g < job->layout->n_groups; g++) {
                h->idle[g] = group_present(h, g) ? 0 : h->idle[g] + 1;
                if (h->idle[g] != IDLE_STEPS || !speaks_for(h, g))
                        continue;
                first = n++ == 0 ? g : first;
        }
        if (n > 0)
                log_warning_for(
                        job->uid,
                        "job %s: no rank has pushed a gradient of group '%s'%s in the last %d "
                        "steps: its parameters stay as they are (zeroctl shards tells which "
                        "groups were updated)",
                        job->name, job->layout->groups[first].name, n > 1 ? " and others" : "",
                        IDLE_STEPS);
}

void update_begin(struct replica *h, const Zero__Decision *d, const struct owner_record *to)
{
        struct state_record record = *h->state->record;

        record.commit = d->commit;
        record.grad_scale = d->grad_scale;
        record.loss_scale = d->loss_scale;
        record.grad_norm = d->grad_norm;
        record.good_steps = d->good_steps;
        record.skipped = d->skipped;
        state_decide(h->state, &record);
        assert(record_stands(h, to));
        if (d->commit)
                idle_groups(h);
        update_start(h);
}

static void updates_retry(struct list *replicas)
{
        list_for_each (replicas, item)
                update_advance(CONTAINER_OF(item, struct replica, link));
}

/* If no task finds memory, nothing is in flight: only this tick resumes the update. */
static void updates_tick(struct engine *x)
{
        list_for_each (&x->jobs, item) {
                struct job *job = CONTAINER_OF(item, struct job, link);

                updates_retry(&job->replicas);
                updates_retry(&job->old_replicas);
        }
}

const struct module update_module = { .tick = updates_tick };
const struct shard_observer update_observer = { .made = update_new,
                                                .freed = update_free,
                                                .unpinned = update_advance };
