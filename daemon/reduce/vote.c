/*
 * An owner's vote: the norm of each complete group, and, once all groups are complete and the
 * coordinator has asked, everything the vote follows from is recorded, then it is sent.
 */
#include "daemon/reduce/accumulator.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/crash.h"
#include "daemon/store/blobs.h"
#include "proto/cleanup.h"

/* The norm of one group, on an offload thread. */
struct measure {
        struct offload_task task;
        struct replica *replica;
        uint32_t group;
        uint64_t generation;
        struct group_norm norm;
};

/* ---- completion and vote ---------------------------------------------------------- */

static void measure_run(struct offload_task *task, uint32_t worker)
{
        struct measure *m = CONTAINER_OF(task, struct measure, task);

        accumulator_add(m->replica, m->group, NULL, &m->norm);
}

/* What the ranks keep with the step, into memory that outlives the process. */
static int accumulator_keep(struct replica *h, struct fault *fault)
{
        const struct job *job = h->job;

        for (uint32_t r = 0; r < job->world_size; r++) {
                const struct blob *k = &h->accumulator->kept[r];
                int status = state_blob_stage(h->state, r, job->attempt, k->data, k->bytes);

                if (status)
                        return fault_set(fault, status == -EDQUOT ? ZERO_EQUOTA : ZERO_ESHM,
                                         "no room for what the ranks keep with the step: %s",
                                         strerror(-status));
        }
        return 0;
}

/* The vote, with all it follows from, into memory that outlives the process. */
static void accumulator_record(struct replica *h, const struct exact_sum *sum, bool finite,
                               struct fault *fault)
{
        const struct step_params *params = &h->accumulator->params;
        const struct job *job = h->job;
        struct state_record record;

        if (h->state->record->attempt < job->attempt) /* attempts were aborted meanwhile */
                state_abort(h->state, job->attempt);
        record = *h->state->record;
        memcpy(h->state->present, h->accumulator->present, job->layout->n_tensors);
        if (accumulator_keep(h, fault))
                return;
        crash_point(CRASH_VOTE_KEPT);
        record.finite = finite;
        record.norm = *sum;
        record.clip_norm = params->clip_norm;
        record.step_loss_scale = params->loss_scale;
        record.growth_interval = params->growth_interval;
        record.world_size = job->world_size;
        record.n_sets = params->n_sets;
        memcpy(record.sets, params->sets, params->n_sets * sizeof *params->sets);
        state_prepare(h->state, &record);
        crash_point(CRASH_VOTE_RECORDED);
}

/* Every tensor to be updated here has a hyperparameter set in the step. */
static int accumulator_check(const struct replica *h, struct fault *fault)
{
        const struct job *job = h->job;
        uint32_t n_sets = h->accumulator->params.n_sets, t;
        uint64_t set;

        if (!h->accumulator->have_params || n_sets == 0)
                return 0;
        t = state_check_sets(h->state, h->accumulator->params.sets, n_sets);
        if (t == job->layout->n_tensors)
                return 0;
        set = h->state->tensor_set[t];
        if (set < n_sets)
                return fault_set(
                        fault, ZERO_EINVAL,
                        "tensor '%.200s' uses hyperparameter set %llu, which is of %s, but "
                        "the optimizer of its group is %s",
                        job->layout->tensors[t].name, (unsigned long long)set,
                        hyper_optimizer(&h->accumulator->params.sets[set]),
                        optimizer_of(job->layout, job->layout->tensors[t].group)->name);
        return fault_set(fault, ZERO_EINVAL,
                         "tensor '%.200s' uses hyperparameter set %llu, but the step has %u",
                         job->layout->tensors[t].name, (unsigned long long)set, n_sets);
}

void accumulator_vote(struct replica *h)
{
        const struct job *job = h->job;
        struct accumulator *l = h->accumulator;
        Zero__LinkMessage m = job_message(job);
        Zero__Prepared vote = ZERO__PREPARED__INIT;
        struct exact_sum sum;
        struct fault fault = { 0 };
        bool finite = true;

        if (!l->preparing || h->updating)
                return;
        exact_sum_init(&sum);
        for (uint32_t g = 0; g < job->layout->n_groups; g++) {
                if (!accumulator_has(h, g))
                        continue;
                if (!l->groups[g].measured || l->groups[g].busy) /* it may be being settled */
                        return;
                exact_sum_merge(&sum, &l->groups[g].norm.sum);
                finite = finite && l->groups[g].norm.finite;
        }
        exact_sum_normalize(&sum);
        l->preparing = false;
        if (accumulator_check(h, &fault) == 0 && l->have_params)
                accumulator_record(h, &sum, finite, &fault);
        l->voted = l->have_params;
        vote.status = (uint32_t)fault.status;
        vote.text = fault.text;
        vote.attempt = job->attempt;
        vote.owner = h->owner;
        vote.copy = h->copy;
        vote.finite = finite;
        vote.closing = l->have_params;
        vote.n_norm = EXACT_SUM_BINS;
        vote.norm = sum.bin;
        m.body_case = ZERO__LINK_MESSAGE__BODY_PREPARED;
        m.prepared = &vote;
        fabric_send(job->x->fabric, job->coordinator, &m);
        crash_point(CRASH_VOTE_SENT);
}

void accumulator_measured(struct replica *h, uint32_t group)
{
        struct accumulator_group *lg = &h->accumulator->groups[group];

        lg->complete = lg->measured = true;
        if (h->job->dead)
                return;
        mirror_offer(h, group);
        accumulator_vote(h);
}

static void measure_done(struct offload_task *task)
{
        struct measure *m = CONTAINER_OF(task, struct measure, task);
        struct replica *h = m->replica;
        struct job *job = h->job;
        struct accumulator_group *lg = &h->accumulator->groups[m->group];

        lg->busy = false;
        if (m->generation == h->accumulator->generation) {
                lg->norm = m->norm;
                accumulator_measured(h, m->group);
        } else {
                accumulator_forget_present(h, m->group);
                accumulator_advance(h, m->group);
        }
        free(m);
        job_unref(job);
}

void accumulator_measure(struct replica *h, uint32_t group)
{
        struct measure *m = calloc(1, sizeof *m);

        if (!m)
                return;
        m->replica = h;
        job_ref(h->job);
        m->group = group;
        m->generation = h->accumulator->generation;
        group_norm_init(&m->norm, h->job, group);
        m->task.run = measure_run;
        m->task.done = measure_done;
        h->accumulator->groups[group].complete = true;
        h->accumulator->groups[group].busy = true;
        offload_submit(h->job->x->offload, &m->task);
}

/* What the ranks keep with the step; false: it cannot be. */
static bool kept_take(struct replica *h, const Zero__Prepare *m)
{
        const struct job *job = h->job;
        struct accumulator *l = h->accumulator;

        if (l->n_kept != job->world_size) {
                struct blob *kept = calloc(job->world_size, sizeof *kept);

                if (!kept)
                        return false;
                accumulator_forget_kept(l);
                l->kept = kept;
                l->n_kept = job->world_size;
        }
        for (uint32_t r = 0; r < l->n_kept; r++)
                blob_clear(&l->kept[r]);
        for (size_t i = 0; i < m->n_kept; i++)
                if (m->kept[i]->rank >= l->n_kept || m->kept[i]->blob.len > ZERO_BLOB_MAX ||
                    blob_set(&l->kept[m->kept[i]->rank], m->kept[i]->blob.data,
                             m->kept[i]->blob.len))
                        return false;
        return true;
}

void accumulator_prepare(struct replica *h, const Zero__Prepare *m,
                         const struct step_params *params)
{
        struct accumulator *l = h->accumulator;

        if (m->attempt != h->job->attempt || (params && !kept_take(h, m)))
                return; /* the step's deadline will say so */
        l->preparing = true;
        l->have_params = params != NULL;
        if (params)
                l->params = *params;
        accumulator_vote(h);
}
