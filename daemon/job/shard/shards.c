/* Makes an owner's shards and says where they stand; see shard.h. */
#include "daemon/job/shard/shard.h"

#include <string.h>

#include "proto/cleanup.h"
#include "proto/dtype.h"

/* Every state file has as many, whatever the number of compute threads is now. */
enum { UNDO_SLOTS = 64 };

uint32_t shards_place(const struct engine *x, uint32_t owner, uint32_t copy)
{
        const struct placement *placement = &x->placement;

        return x->states_away
                       ? place_nth(holder_device(placement, holder_of(placement, owner, copy)))
                       : 0;
}

int shards_make(const struct engine *x, const struct job_spec *job, const struct placement *under,
                const struct partition *p, uint32_t owner, uint32_t copy, bool draft,
                struct state **ret, struct fault *fault)
{
        struct plan *plan = NULL;
        const struct state_identity id = { .job = *job,
                                           .n_owners = under->n_owners,
                                           .copy = copy,
                                           .epoch = under->epoch,
                                           .place = shards_place(x, owner, copy) };
        uint64_t bytes = plan_owner_bytes(job->layout, p, owner) +
                         dtype_bytes(job_spec_sum_dtype(job),
                                     plan_owner_trained(job->layout, p, owner));
        /* before the plan is made: its tables grow with the elements */
        int r = store_admit(x->store, bytes, place_is_host(id.place) ? 0 : bytes, job->name, fault);
        if (r)
                return r;
        if (plan_new(job->layout, p, owner, (uint32_t)x->conf->chunk, &plan))
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        plan->grad_dtype = job_spec_sum_dtype(job);
        plan->staggered = fabric_all_speak(x->fabric, MESSAGES_GOODBYE);
        r = state_place_check(job, id.place, fault);
        if (r == 0)
                r = (draft ? state_draft : state_create)(x->store, &id, job->layout, plan,
                                                         UNDO_SLOTS, ret, fault);
        if (r)
                plan_free(plan);
        return r;
}

/* ---- where a state stands ---------------------------------------------------------------- */

/* No rank has ever worked on it, and no client has put anything. */
static bool state_fresh(const struct state *state)
{
        const struct state_record *r = state->record;

        return r->version == 0 && r->attempt == JOB_FILLED && r->phase == ATTEMPT_OPEN &&
               !state->puts && !state_putting(state);
}

bool job_fresh(const struct job *job)
{
        for_replicas (job, h)
                if (!state_fresh(h->state))
                        return false;
        list_for_each ((struct list *)&job->old_replicas, item) {
                if (!state_fresh(CONTAINER_OF(item, struct replica, link)->state))
                        return false;
        }
        return true;
}

void record_params(struct state_record *r, const struct step_params *params)
{
        r->n_sets = params->n_sets;
        memcpy(r->sets, params->sets, params->n_sets * sizeof *params->sets);
        r->clip_norm = params->clip_norm;
        r->step_loss_scale = params->loss_scale;
        r->growth_interval = params->growth_interval;
}

static struct step_params recorded_params(const struct state_record *r)
{
        struct step_params p = { .n_sets = r->n_sets,
                                 .clip_norm = r->clip_norm,
                                 .loss_scale = r->step_loss_scale,
                                 .growth_interval = r->growth_interval };

        memcpy(p.sets, r->sets, r->n_sets * sizeof *r->sets);
        return p;
}

Zero__Standing *standing_fill(const struct state *state, struct standing_message *ret)
{
        const struct state_record *r = state->record;
        const struct owner_record facts = record_facts(r);
        const struct owner_stand stand = owner_stand(&facts);
        Zero__Standing *s = &ret->standing;

        zero__standing__init(s);
        s->owner = state->plan->owner;
        s->copy = state->id.copy;
        s->epoch = state->id.epoch;
        s->n_owners = state->id.n_owners;
        s->version = stand.version;
        s->attempt = stand.attempt;
        s->done = stand.done;
        s->fresh = state_fresh(state);
        s->puts = state->puts;
        if (r->decided_attempt) {
                zero__decision__init(&ret->decision);
                DECISION_COPY(&ret->decision, r);
                ret->decision.attempt = r->decided_attempt;
                ret->decision.finite = r->grad_norm == r->grad_norm;
                s->decision = &ret->decision;
        }
        if (!stand.prepared_attempt)
                return s;
        s->prepared_attempt = stand.prepared_attempt;
        s->finite = r->finite;
        memcpy(ret->norm, r->norm.bin, sizeof ret->norm);
        s->n_norm = EXACT_SUM_BINS;
        s->norm = ret->norm;
        ret->given = recorded_params(r);
        s->params = step_params_to_message(&ret->given, &ret->params);
        return s;
}
