/*
 * An owner's vote: the norm of each complete group, and, once all groups are complete and the
 * coordinator has asked, everything the vote follows from is recorded, then it is sent.
 */
#include "daemon/exchange/landing.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/crash.h"
#include "daemon/store/blobs.h"
#include "proto/cleanup.h"

/* The norm of one group, on an offload thread. */
struct measure {
        struct offload_task task;
        struct job *job;
        uint32_t group;
        uint64_t generation;
        struct exact_sum norm;
        bool finite;
};

/* ---- accumulation -------------------------------------------------------------- */

/* Real elements of a segment: the gap behind the tensor has no gradient. */
uint64_t segment_elements(const struct layout_tensor *t, const struct plan_segment *s)
{
        uint64_t first = s->in_group - t->offset;

        if (first >= t->elements)
                return 0;
        return s->count < t->elements - first ? s->count : t->elements - first;
}

/* ---- completion and vote ---------------------------------------------------------- */

static void measure_run(struct offload_task *task, uint32_t worker)
{
        struct measure *m = CONTAINER_OF(task, struct measure, task);
        const struct job *job = m->job;
        const struct plan_shard *shard = &job->state->plan->shards[m->group];
        double divisor = layout_group_divisor(&job->layout->groups[m->group], job->world_size);

        for (uint32_t i = 0; i < shard->n_segments; i++) {
                const struct plan_segment *s =
                        &job->state->plan->segments[shard->first_segment + i];
                uint64_t n = segment_elements(&job->layout->tensors[s->tensor], s);

                if (n && !job->layout->tensors[s->tensor].frozen &&
                    job->landing->present[s->tensor])
                        job->x->ops->norm(job->state->grad + s->moment, n, 1 / (divisor * divisor),
                                          &m->norm, &m->finite);
        }
}

/* What the ranks keep with the step, into memory that outlives the process. */
static int landing_keep(struct job *job, struct fault *fault)
{
        for (uint32_t r = 0; r < job->world_size; r++) {
                const struct kept *k = &job->landing->kept[r];
                int status = state_blob_stage(job->state, r, job->attempt, k->data, k->bytes);

                if (status)
                        return fault_set(fault, status == -EDQUOT ? ZERO_EQUOTA : ZERO_ESHM,
                                         "no room for what the ranks keep with the step: %s",
                                         strerror(-status));
        }
        return 0;
}

/* The vote, with all it follows from, into memory that outlives the process. */
static void landing_record(struct job *job, const struct exact_sum *sum, bool finite,
                           struct fault *fault)
{
        const struct step_params *params = &job->landing->params;
        struct state_record record;

        if (job->state->record->attempt < job->attempt) /* attempts were aborted meanwhile */
                state_abort(job->state, job->attempt);
        record = *job->state->record;
        memcpy(job->state->present, job->landing->present, job->layout->n_tensors);
        if (landing_keep(job, fault))
                return;
        crash_point(CRASH_VOTE_KEPT);
        record.finite = finite;
        record.norm = *sum;
        record.clip_norm = params->clip_norm;
        record.step_loss_scale = params->loss_scale;
        record.growth_interval = params->growth_interval;
        record.world_size = job->world_size;
        record.n_sets = params->n_sets;
        for (uint32_t i = 0; i < params->n_sets; i++) {
                record.sets[i].lr = params->sets[i].lr;
                record.sets[i].beta1 = params->sets[i].beta1;
                record.sets[i].beta2 = params->sets[i].beta2;
                record.sets[i].eps = params->sets[i].eps;
                record.sets[i].weight_decay = params->sets[i].weight_decay;
        }
        state_prepare(job->state, &record);
        crash_point(CRASH_VOTE_RECORDED);
}

/* Every tensor to be updated here has a hyperparameter set in the step. */
static int landing_check(const struct job *job, struct fault *fault)
{
        uint32_t n_sets = job->landing->params.n_sets, t;

        if (!job->landing->have_params || n_sets == 0)
                return 0;
        t = state_check_sets(job->state, n_sets);
        if (t == job->layout->n_tensors)
                return 0;
        return fault_set(fault, ZERO_EINVAL,
                         "tensor '%.200s' uses hyperparameter set %llu, but the step has %u",
                         job->layout->tensors[t].name,
                         (unsigned long long)job->state->tensor_set[t], n_sets);
}

void landing_vote(struct job *job)
{
        struct landing *l = job->landing;
        Zero__LinkMessage m = job_message(job);
        Zero__Prepared vote = ZERO__PREPARED__INIT;
        struct exact_sum sum;
        struct fault fault = { 0 };
        bool finite = true;

        if (!l->preparing || update_running(job->update))
                return;
        exact_sum_init(&sum);
        for (uint32_t g = 0; g < job->layout->n_groups; g++) {
                if (!landing_has(job, g))
                        continue;
                if (!l->groups[g].measured)
                        return;
                exact_sum_merge(&sum, &l->groups[g].norm);
                finite = finite && l->groups[g].finite;
        }
        exact_sum_normalize(&sum);
        l->preparing = false;
        if (landing_check(job, &fault) == 0 && l->have_params)
                landing_record(job, &sum, finite, &fault);
        l->voted = l->have_params;
        vote.status = (uint32_t)fault.status;
        vote.text = fault.text;
        vote.attempt = job->attempt;
        vote.owner = (uint32_t)job->x->owner;
        vote.finite = finite;
        vote.closing = l->have_params;
        vote.n_norm = EXACT_SUM_BINS;
        vote.norm = sum.bin;
        m.body_case = ZERO__LINK_MESSAGE__BODY_PREPARED;
        m.prepared = &vote;
        fabric_send(job->x->fabric, job->coordinator, &m);
        crash_point(CRASH_VOTE_SENT);
}

static void measure_done(struct offload_task *task)
{
        struct measure *m = CONTAINER_OF(task, struct measure, task);
        struct job *job = m->job;
        struct landing_group *lg = &job->landing->groups[m->group];

        lg->busy = false;
        if (m->generation == job->landing->generation) {
                lg->norm = m->norm;
                lg->finite = m->finite;
                lg->measured = true;
                if (!job->dead)
                        landing_vote(job);
        } else {
                landing_forget_present(job, m->group);
                landing_advance(job, m->group);
        }
        free(m);
        job_unref(job);
}

void landing_measure(struct job *job, uint32_t group)
{
        struct measure *m = calloc(1, sizeof *m);

        if (!m)
                return;
        m->job = job;
        job_ref(job);
        m->group = group;
        m->generation = job->landing->generation;
        m->finite = true;
        exact_sum_init(&m->norm);
        m->task.run = measure_run;
        m->task.done = measure_done;
        job->landing->groups[group].complete = true;
        job->landing->groups[group].busy = true;
        offload_submit(job->x->offload, &m->task);
}

/* What the ranks keep with the step; false: it cannot be. */
static bool kept_take(struct job *job, const Zero__Prepare *m)
{
        struct landing *l = job->landing;

        if (l->n_kept != job->world_size) {
                struct kept *kept = calloc(job->world_size, sizeof *kept);

                if (!kept)
                        return false;
                landing_forget_kept(l);
                l->kept = kept;
                l->n_kept = job->world_size;
        }
        for (uint32_t r = 0; r < l->n_kept; r++)
                kept_clear(&l->kept[r]);
        for (size_t i = 0; i < m->n_kept; i++)
                if (m->kept[i]->rank >= l->n_kept || m->kept[i]->blob.len > ZERO_BLOB_MAX ||
                    kept_set(&l->kept[m->kept[i]->rank], m->kept[i]->blob.data,
                             m->kept[i]->blob.len))
                        return false;
        return true;
}

void landing_prepare(struct job *job, const Zero__Prepare *m, const struct step_params *params)
{
        struct landing *l = job->landing;

        if (!l || m->attempt != job->attempt || (params && !kept_take(job, m)))
                return; /* the step's deadline will say so */
        l->preparing = true;
        l->have_params = params != NULL;
        if (params)
                l->params = *params;
        landing_vote(job);
}
