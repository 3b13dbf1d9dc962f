/*
 * Begins a job's coordinator: asks the nodes what they know of the job and reads their answers.
 * If a node has no room for the job, finished jobs give up their place.
 */
#include "daemon/cluster/coordinator/coordinator.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/floor/base/log.h"
#include "proto/cleanup.h"
#include "proto/sure.h"

struct opening {
        struct coordinated *c;
        uint32_t node;
        uint64_t given; /* c->given when the node was asked, or DROP_UNDER_WAY */
};

#define DROP_UNDER_WAY UINT64_MAX

/* ---- a job that this node begins to coordinate --------------------------------------------- */

struct coordinated *coordinated_new(struct engine *x, const struct job_spec *spec,
                                    uint64_t return_until_ms)
{
        struct shared_layout *shared = layouts_take(x, spec->uid, spec->layout);
        struct coordinated *c = shared ? calloc(1, sizeof *c) : NULL;

        if (!c) {
                layouts_unref(shared);
                return NULL;
        }
        c->x = x;
        c->references = 1;
        c->shared = shared;
        c->spec = *spec;
        c->layout = shared->layout;
        if (!coordinated_init(c, return_until_ms)) {
                coordinated_unref(c);
                return NULL;
        }
        list_insert(&x->coordinators, &c->link);
        composing_job(c);
        for (uint32_t n = 0; n < x->cluster->n_nodes; n++)
                coordinated_event(c, (struct coordinator_event){ .kind = COORDINATOR_LINKS,
                                                                 .node = n,
                                                                 .cut = x->cut[n] });
        for (uint32_t n = 0; n < x->cluster->n_nodes; n++)
                coordinated_event(
                        c, (struct coordinator_event){ .kind = COORDINATOR_NODE_UP, .node = n });
        return c;
}

/* ---- what nodes know --------------------------------------------------------------------- */

static void decision_read(const Zero__Decision *d, struct standing *s)
{
        s->decided_attempt = d->attempt;
        s->skipped = d->skipped;
        s->decision = (struct decision){ .commit = d->commit,
                                         .overflow = d->overflow,
                                         .finite = d->finite,
                                         .grad_norm = d->grad_norm,
                                         .grad_scale = d->grad_scale,
                                         .loss_scale = d->loss_scale,
                                         .good_steps = d->good_steps };
}

int standing_read(const Zero__Standing *m, struct told_state *ret, struct standing *standing,
                  struct fault *fault)
{
        *ret = (struct told_state){ .place = { m->epoch, m->n_owners, m->owner, m->copy },
                                    .attempt = m->attempt,
                                    .puts = m->puts,
                                    .standing = standing };
        *standing = (struct standing){ .version = m->version,
                                       .done = m->done,
                                       .fresh = m->fresh,
                                       .prepared_attempt = m->prepared_attempt,
                                       .decision.loss_scale = 0 };
        if (m->decision)
                decision_read(m->decision, standing);
        exact_sum_init(&standing->vote.norm);
        standing->vote.finite = m->finite;
        if (standing->prepared_attempt == 0)
                return 0;
        if (m->n_norm != EXACT_SUM_BINS || !m->params)
                return fault_set(fault, ZERO_EPROTO, "its vote cannot be read");
        memcpy(standing->vote.norm.bin, m->norm, sizeof standing->vote.norm.bin);
        return step_params_from_message(m->params, &standing->params, fault);
}

static void node_opened(struct coordinated *c, uint32_t node, const Zero__Opened *o)
{
        size_t n = o->n_standings <= STATES_MAX ? o->n_standings : 0;
        struct told_state *states = calloc(n + 1, sizeof *states);
        struct standing *standings = calloc(n + 1, sizeof *standings);
        struct coordinator_event e = { .kind = COORDINATOR_OPENED,
                                       .node = node,
                                       .known = o->known,
                                       .created = o->created,
                                       .attempt = o->attempt,
                                       .states = states };
        struct fault fault;

        if (!states || !standings) {
                coordinated_event(c, (struct coordinator_event){ .kind = COORDINATOR_ASK_AGAIN,
                                                                 .node = node,
                                                                 .created = o->created });
                free(standings);
                free(states);
                return;
        }
        if (o->n_standings > STATES_MAX)
                e.status = fault_set(&fault, ZERO_EPROTO,
                                     "it has %zu states of the job, more than the limit of %d",
                                     o->n_standings, STATES_MAX);
        for (size_t i = 0; o->known && i < n && !e.status; i++) {
                e.status = standing_read(o->standings[i], &states[i], &standings[i], &fault);
                e.n_states += !e.status;
        }
        e.text = e.status ? fault.text : "";
        coordinated_event(c, e);
        free(standings);
        free(states);
}

/* ---- asking ---------------------------------------------------------------------------- */

/* Finished jobs are dropped only if that makes enough room: none is lost for a job that never fits.
 */
static bool displacing_helps(const struct coordinated *c, const struct finished_jobs *finished)
{
        return finished->full || finished->bytes + c->given >= layout_state_bytes(c->layout);
}

static bool displaced_is_dropped(const struct coordinated *c)
{
        struct fault fault;

        return !c->displaced[0] || !drop_check(c->x, c->displaced, &fault);
}

/*
 * The node has no room for the job.  Drops the user's job that has been finished longest, so that
 * the node can be asked again.  False: there is no such job, or dropping it would not help.  A node
 * that was asked before a drop ended may not have seen the room that the drop made.
 */
static bool displace(const struct opening *o, int status, const char *text)
{
        struct coordinated *c = o->c;
        struct engine *x = c->x;
        struct finished_jobs finished;
        struct fault fault;

        if (c->state.settled || (status != ZERO_EQUOTA && status != ZERO_ESHM))
                return false;
        if (o->given == c->given) {
                const struct job *old;

                jobs_finished(x, c->uid, c->layout, &finished);
                old = finished.first;
                if (!old || !displacing_helps(c, &finished) || drop_admit(x, old->name, &fault))
                        return false;
                log_warning_for(
                        old->uid,
                        "job %s: dropped: it has been finished for %llu s, and job %s needs its "
                        "place on node %s: %.300s",
                        old->name,
                        (unsigned long long)(engine_now(x) - old->progress->finished_ms) / 1000,
                        c->name, node_name(x, o->node), text);
                c->given += layout_state_bytes(old->layout);
                snprintf(c->displaced, sizeof c->displaced, "%s", old->name);
                drop_order(x, c->displaced, x->cluster->self, 0, NULL);
        }
        return true;
}

static void open_answered(void *arg, int status, const char *text, const Zero__LinkMessage *m)
{
        struct opening *o = arg;
        struct coordinated *c = o->c;
        uint32_t node = o->node;

        if (!status && (!m || m->body_case != ZERO__LINK_MESSAGE__BODY_OPENED))
                status = ZERO_EPROTO;
        if (c->state.dead) {
                ;
        } else if (!status && m->opened->later) {
                coordinated_event(c, (struct coordinator_event){ .kind = COORDINATOR_ASK_AGAIN,
                                                                 .node = node });
        } else if (!status) {
                node_opened(c, node, m->opened);
        } else {
                bool displaced = displace(o, status, text);

                coordinated_event(
                        c, (struct coordinator_event){ .kind = displaced ? COORDINATOR_ASK_AGAIN
                                                                         : COORDINATOR_OPEN_FAILED,
                                                       .node = node,
                                                       .status = status,
                                                       .text = text });
        }
        free(o);
        coordinated_unref(c);
}

void opening_ask(struct coordinated *c, uint32_t node, bool create)
{
        Zero__LinkMessage m = job_message(c->name);
        Zero__Open open = ZERO__OPEN__INIT;
        struct opening *o = sure_realloc(NULL, sizeof *o);

        *o = (struct opening){ c, node, displaced_is_dropped(c) ? c->given : DROP_UNDER_WAY };
        coordinated_ref(c);
        JOB_SPEC_WRITE(&open, c);
        open.layout = c->shared->message;
        open.create = create;
        m.body_case = ZERO__LINK_MESSAGE__BODY_OPEN;
        m.open = &open;
        call_send(c->x, node, &m, 10 * CALL_MS, open_answered, o);
}
