/*
 * AdamW on this owner's chunks, after a decision.
 *
 * Groups are updated in layout order, which is the order in which the next forward pass wants
 * them; a group whose old bytes are still being read (pinned) is passed over until they are
 * not.  Each worker commits chunk by chunk through its redo slot.  A group that is through
 * is at the new version at once; the record is finished when all are.
 */
#include "daemon/exchange/checkpoint.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/crash.h"
#include "daemon/store/redo.h"
#include "proto/cleanup.h"

enum { TASK_CHUNKS = 512 };
enum group_phase { GROUP_PENDING, GROUP_RUNNING, GROUP_FINISHED };

struct update_group {
        enum group_phase phase;
        uint32_t next_chunk, in_flight; /* tasks */
};

struct update {
        struct job *job;
        bool running;
        uint64_t version, attempt;      /* to be reached; the attempt decided */
        struct adamw_scalars *scalars;  /* [tensor] */
        struct update_group *groups;    /* [group] */
        uint32_t unfinished, in_flight; /* groups; tasks */
};

struct update_task {
        struct offload_task task;
        struct job *job;
        uint32_t group, first, end; /* chunks */
};

int update_new(struct job *job, struct update **ret)
{
        struct update *u = calloc(1, sizeof *u);

        if (!u)
                return -ENOMEM;
        u->job = job;
        u->scalars = calloc(job->layout->n_tensors + 1, sizeof *u->scalars);
        u->groups = calloc(job->layout->n_groups, sizeof *u->groups);
        if (!u->scalars || !u->groups) {
                update_free(u);
                return -ENOMEM;
        }
        *ret = u;
        return 0;
}

void update_free(struct update *u)
{
        if (!u)
                return;
        free(u->scalars);
        free(u->groups);
        free(u);
}

bool update_running(const struct update *u)
{
        return u->running;
}

bool update_reads(const struct update *u, uint32_t group)
{
        return u->running && u->groups[group].phase != GROUP_FINISHED;
}

/* ---- one chunk, on an offload thread -------------------------------------------- */

static bool chunk_present(const struct job *job, const struct plan_chunk *c)
{
        const struct plan *plan = job->state->plan;
        uint64_t end = c->in_group + c->n;

        for (uint32_t i = c->first_segment; i < plan->n_segments; i++) {
                const struct plan_segment *s = &plan->segments[i];

                if (s->group != c->group || s->in_group >= end)
                        break;
                if (job->state->present[s->tensor])
                        return true;
        }
        return false;
}

/* New values of the chunk into the redo buffer, tensor by tensor. */
static void chunk_compute(const struct job *job, const struct plan_chunk *c, struct redo_view out)
{
        const struct state *state = job->state;
        uint32_t segment = c->first_segment, done = 0;

        while (done < c->n) {
                const struct plan_segment *s = &state->plan->segments[segment++];
                uint64_t left = s->in_group + s->count - (c->in_group + done);
                uint32_t n = left < c->n - done ? (uint32_t)left : c->n - done;
                uint64_t p = c->master + done, m = c->moment + done;

                if (state->present[s->tensor]) {
                        job->x->ops->adamw(&job->update->scalars[s->tensor], n, state->master + p,
                                           state->exp_avg + m, state->exp_avg_sq + m,
                                           state->grad + m, out.p + done, out.m + done,
                                           out.v + done);
                } else {
                        memcpy(out.p + done, state->master + p, n * sizeof(float));
                        memcpy(out.m + done, state->exp_avg + m, n * sizeof(float));
                        memcpy(out.v + done, state->exp_avg_sq + m, n * sizeof(float));
                }
                done += n;
        }
}

static void chunk_update(const struct job *job, uint32_t chunk, uint32_t worker)
{
        struct state *state = job->state;
        const struct plan_chunk *c = &state->plan->chunks[chunk];
        const struct plan_shard *shard = &state->plan->shards[c->group];
        enum zero_dtype dtype = job->layout->groups[c->group].dtype;
        struct redo_view view;

        if (state_chunk_version(state, chunk) == job->update->version)
                return; /* it was committed before a crash; serve was made from it since */
        if (!chunk_present(job, c)) {
                redo_keep(state, chunk, job->update->version);
                return;
        }
        view = redo_begin(state, worker, chunk);
        chunk_compute(job, c, view);
        redo_commit(state, worker, chunk, job->update->version);
        crash_point(CRASH_UPDATE_CHUNK);
        if (shard->serve != UINT64_MAX)
                job->x->ops->serve(dtype,
                                   state->serve + shard->serve +
                                           (c->in_group - shard->range.first) * dtype_size(dtype),
                                   view.p, c->n);
}

static void update_run(struct offload_task *task, uint32_t worker)
{
        struct update_task *t = CONTAINER_OF(task, struct update_task, task);

        for (uint32_t c = t->first; c < t->end; c++)
                chunk_update(t->job, c, worker);
}

/* ---- the order of groups ---------------------------------------------------------- */

static void update_finish(struct job *job)
{
        struct update *u = job->update;
        Zero__LinkMessage m = job_message(job);
        Zero__Done done = ZERO__DONE__INIT;

        u->running = false;
        crash_point(CRASH_UPDATE_FINISH);
        state_finish(job->state);
        crash_point(CRASH_UPDATE_DONE);
        done.attempt = u->attempt;
        done.owner = (uint32_t)job->x->owner;
        m.body_case = ZERO__LINK_MESSAGE__BODY_DONE;
        m.done = &done;
        fabric_send(job->x->fabric, job->coordinator, &m);
        taking_updated(job);
        landing_updated(job);
        access_updated(job);
        drain_check(job->x);
}

static void group_finish(struct job *job, uint32_t group)
{
        struct update *u = job->update;
        bool last = --u->unfinished == 0;

        u->groups[group].phase = GROUP_FINISHED;
        shard_ready(job, group, u->version);
        if (last)
                update_finish(job);
        else
                landing_group_free(job, group);
}

static void update_advance(struct job *job);

static void update_done(struct offload_task *task)
{
        struct update_task *t = CONTAINER_OF(task, struct update_task, task);
        struct job *job = t->job;
        struct update_group *g = &job->update->groups[t->group];
        uint32_t group = t->group;

        free(t);
        job->update->in_flight--;
        g->in_flight--;
        if (g->in_flight == 0 && g->next_chunk == job->state->plan->shards[group].first_chunk +
                                                          job->state->plan->shards[group].n_chunks)
                group_finish(job, group);
        update_advance(job);
        job_unref(job);
}

static bool group_submit(struct job *job, uint32_t group)
{
        struct update_group *g = &job->update->groups[group];
        const struct plan_shard *shard = &job->state->plan->shards[group];
        uint32_t end = shard->first_chunk + shard->n_chunks;
        struct update_task *t;

        if (g->phase == GROUP_FINISHED || g->next_chunk == end ||
            (g->phase == GROUP_PENDING && job->pins[group]))
                return false;
        t = calloc(1, sizeof *t);
        if (!t)
                return false;
        *t = (struct update_task){ .task = { .run = update_run, .done = update_done },
                                   .job = job,
                                   .group = group,
                                   .first = g->next_chunk,
                                   .end = end - g->next_chunk > TASK_CHUNKS
                                                  ? g->next_chunk + TASK_CHUNKS
                                                  : end };
        g->phase = GROUP_RUNNING;
        g->next_chunk = t->end;
        g->in_flight++;
        job->update->in_flight++;
        job_ref(job);
        offload_submit(job->x->offload, &t->task);
        return true;
}

/* Keeps the workers busy, but not more, so that gathers find their turn in between. */
static void update_advance(struct job *job)
{
        struct update *u = job->update;
        uint32_t limit = offload_workers(job->x->offload) + 1, group = 0;

        if (!u->running)
                return;
        while (u->in_flight < limit && group < job->layout->n_groups)
                if (!group_submit(job, group))
                        group++;
}

void update_unpinned(struct job *job)
{
        update_advance(job);
}

/* ---- the decision -------------------------------------------------------------------- */

/* Everything follows from the record, so an update that is taken up after a crash has the same
 * bits. */
static void update_scalars(struct job *job)
{
        const struct state *state = job->state;
        const struct state_record *record = state->record;

        for (uint32_t i = 0; i < state->plan->n_segments; i++) {
                const struct plan_segment *s = &state->plan->segments[i];
                double divisor =
                        layout_group_divisor(&job->layout->groups[s->group], record->world_size);
                uint64_t set = state->tensor_set[s->tensor];

                if (s->moment == UINT64_MAX)
                        continue;
                assert(set < record->n_sets); /* else this owner had not voted for the step */
                job->update->scalars[s->tensor] = adamw_scalars(
                        record->sets[set].lr, record->sets[set].beta1, record->sets[set].beta2,
                        record->sets[set].eps, record->sets[set].weight_decay,
                        state->tensor_step[s->tensor] + 1, record->grad_scale / divisor);
        }
}

void update_start(struct job *job)
{
        const struct state_record *record = job->state->record;
        bool commit = record->commit;
        struct update *u = job->update;

        assert(!u->running && record->phase == ATTEMPT_DECIDED);
        crash_point(CRASH_UPDATE_BEGIN);
        u->running = true;
        u->attempt = record->attempt;
        u->version = record->version + commit;
        u->unfinished = 1; /* held until all groups have been looked at */
        if (commit)
                update_scalars(job);
        for (uint32_t g = 0; g < job->layout->n_groups; g++) {
                const struct plan_shard *shard = &job->state->plan->shards[g];
                bool work = commit && shard->n_chunks > 0;

                u->groups[g] =
                        (struct update_group){ .phase = work ? GROUP_PENDING : GROUP_FINISHED,
                                               .next_chunk = shard->first_chunk };
                u->unfinished += work;
                if (commit && !work && layout_group_trainable(job->layout, g))
                        shard_ready(job, g, u->version); /* nothing of it to update here */
        }
        update_advance(job);
        if (--u->unfinished == 0)
                update_finish(job);
}

void update_begin(struct job *job, const Zero__Decision *d)
{
        struct state_record record = *job->state->record;

        record.commit = d->commit;
        record.grad_scale = d->grad_scale;
        record.loss_scale = d->loss_scale;
        record.grad_norm = d->grad_norm;
        record.good_steps = d->good_steps;
        record.skipped = d->skipped;
        state_decide(job->state, &record);
        update_start(job);
}
