/* Reads a message that asks for a fill: bounds it, and checks it against the job on this node. */
#include "daemon/cluster/reshard/fill_target.h"

#include <string.h>

#include "proto/cleanup.h"

uint32_t fill_target_holder(const struct fill_target *f)
{
        return holder_of(&f->to, f->owner, f->copy);
}

static bool holder_valid(const struct placement *p, uint32_t owner, uint32_t copy)
{
        return owner < p->n_owners && copy < p->copies;
}

static int read_sources(struct fill_target *f, const Zero__Fill *m, struct fault *fault)
{
        for (size_t i = 0; i < m->n_sources; i++) {
                const Zero__FillSource *s = m->sources[i];
                uint32_t h;

                if (!holder_valid(&f->from, s->owner, s->copy))
                        return fault_set(fault, ZERO_EPROTO,
                                         "a source is an owner or mirror that the old owner list "
                                         "does not have");
                h = holder_of(&f->from, s->owner, s->copy);
                if (holder_node(&f->from, h) == NO_NODE)
                        return fault_set(fault, ZERO_EPROTO, "the node of a source is unknown");
                f->readable[h] = true;
                f->source_puts[h] = s->puts;
        }
        return 0;
}

/* The record of a state that begins an attempt, with the last decision in it. */
static int read_record(struct state_record *r, const Zero__Fill *m, struct fault *fault)
{
        const Zero__Decision *d = m->last;

        *r = (struct state_record){ .version = m->version,
                                    .attempt = m->attempt,
                                    .world_size = m->world_size };
        if (d) {
                r->decided_attempt = d->attempt;
                DECISION_COPY(r, d);
        }
        if (m->version > STATE_STEP_MAX || m->attempt <= r->decided_attempt)
                return fault_set(
                        fault, ZERO_EPROTO,
                        "the version is too large, or the attempt is not after the decided one");
        return 0;
}

int fill_target_read_order(struct fill_target *f, const Zero__Fill *m, struct job_spec *ret_spec,
                           struct fault *fault)
{
        uint32_t n_nodes = f->x->cluster->n_nodes;
        int r;

        if (!placement_from_message(m->from, n_nodes, true, &f->from) ||
            !placement_from_message(m->to, n_nodes, false, &f->to))
                return fault_set(fault, ZERO_EPROTO, "an owner list of the fill cannot be read");
        r = read_sources(f, m, fault);
        if (r == 0)
                r = read_record(&f->record, m, fault);
        if (r)
                return r;
        JOB_SPEC_READ(ret_spec, m);
        if (!holder_valid(&f->to, m->owner, m->copy) || m->puts > STATE_PUTS_MAX || !m->layout ||
            job_spec_check(ret_spec, fault))
                return fault_set(fault, ZERO_EPROTO,
                                 "the fill's owner, mirror, puts, world size, dtype or layout is "
                                 "out of range");
        f->owner = m->owner;
        f->copy = m->copy;
        f->puts = m->puts;
        if (holder_node(&f->to, fill_target_holder(f)) != f->x->cluster->self)
                return fault_set(fault, ZERO_EPROTO,
                                 "the owner list puts these shards on another node");
        r = optimizer_layout(m->layout, &ret_spec->layout, fault);
        return r < 0 ? fault_set(fault, ZERO_ENOMEM, "out of memory") : r;
}

/* ---- the job ------------------------------------------------------------------------------ */

bool fill_target_of_job(const struct job *job)
{
        list_for_each (&job->x->reshard->fill_targets, item) {
                const struct fill_target *f = CONTAINER_OF(item, struct fill_target, link);

                if (f->job == job && f->phase != FILL_TARGET_ENDED)
                        return true;
        }
        return false;
}

/* A job of that name on this node must be the same job. */
static int check_job(const struct fill_target *fill, const struct job *job,
                     const struct job_spec *spec, struct fault *fault)
{
        int r;

        if (job->opening && !fill_target_of_job(job))
                return fault_set(fault, ZERO_EBUSY, "job '%s' is being created: try again",
                                 job->name);
        r = job_spec_compare(spec, &job->spec, fault);
        if (r) /* another user's job may go: the fill is tried again */
                return r == ZERO_EPERM ? ZERO_ECONFLICT : r;
        list_for_each (&job->x->reshard->fill_targets, item) {
                const struct fill_target *f = CONTAINER_OF(item, struct fill_target, link);

                if (f->job == job && f->owner == fill->owner && f->copy == fill->copy)
                        return fault_set(fault, ZERO_EBUSY,
                                         "another fill of the same shards has not ended");
        }
        return 0;
}

static bool is_in_force(const struct placement *a, const struct placement *b)
{
        return a->epoch == b->epoch && a->copies == b->copies && a->n_owners == b->n_owners &&
               memcmp(a->node, b->node, a->n_owners * sizeof a->node[0]) == 0;
}

int fill_target_join_job(struct fill_target *f, const struct job_spec *spec, struct fault *fault)
{
        struct job *job = job_find(f->x, spec->name);
        int r = 0;

        if (!is_in_force(&f->to, job ? &job->placement : &f->x->placement))
                r = fault_set(fault, ZERO_ECONFLICT, "another owner list is in force on this node");
        if (r == 0)
                r = job ? check_job(f, job, spec, fault)
                        : job_admit(f->x, spec->name, spec->uid, spec->layout, fault);
        if (r || job) {
                layout_free(spec->layout);
        } else {
                job = job_new(f->x, spec);
                if (job)
                        list_insert(&f->x->jobs, &job->link);
                else
                        r = fault_set(fault, ZERO_ENOMEM, "out of memory");
        }
        if (r)
                return r;
        f->made_job = job->opening;
        f->job = job;
        job_ref(job);
        return 0;
}
