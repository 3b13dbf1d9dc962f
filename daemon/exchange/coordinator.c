/*
 * Drives job/step.c for the jobs that this node coordinates: joins come in, the job is opened on
 * all nodes, votes are collected, decisions go out, and everybody is told who is late.
 */
#include "daemon/exchange/coordinator.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"
#include "proto/cleanup.h"

struct coordinator *coordinator_find(const struct exchange *x, const char *name)
{
        list_for_each (&x->coordinators, item) {
                struct coordinator *c = CONTAINER_OF(item, struct coordinator, link);

                if (strcmp(c->name, name) == 0)
                        return c;
        }
        return NULL;
}

const struct step *coordinator_step(const struct exchange *x, const char *job)
{
        const struct coordinator *c = coordinator_find(x, job);

        return c ? &c->step : NULL;
}

void coordinator_unref(struct coordinator *c)
{
        if (--c->references)
                return;
        step_deinit(&c->step);
        layout_free(c->layout);
        if (c->message)
                zero__layout__free_unpacked(c->message, NULL);
        free(c);
}

Zero__LinkMessage coordinator_to(const struct coordinator *c)
{
        Zero__LinkMessage m = ZERO__LINK_MESSAGE__INIT;

        m.job = (char *)c->name;
        m.epoch = c->step.epoch;
        return m;
}

/* ---- ranks leave -------------------------------------------------------------------- */

static void coordinator_part(struct coordinator *c, uint32_t node, uint32_t rank, bool orderly)
{
        Zero__LinkMessage m = coordinator_to(c);
        Zero__Part part = ZERO__PART__INIT;

        join_forget(c, node, rank);
        if (rank >= c->step.world_size || c->step.node_of_rank[rank] != node)
                return;
        step_part(&c->step, rank, orderly);
        part.rank = rank;
        part.orderly = orderly;
        part.told = true;
        m.body_case = ZERO__LINK_MESSAGE__BODY_PART;
        m.part = &part;
        send_all(c->x, &m);
        if (!orderly)
                log_warning("job %s: rank %u on %s was lost", c->name, rank, node_name(c->x, node));
}

/* ---- steps ----------------------------------------------------------------------------- */

static void coordinator_prepare(struct coordinator *c)
{
        Zero__LinkMessage m = coordinator_to(c);
        Zero__Prepare prepare = ZERO__PREPARE__INIT;
        struct step_params_message params;

        prepare.attempt = c->step.attempt;
        if (!c->step.norm_only)
                prepare.params = step_params_to_message(&c->step.params, &params);
        m.body_case = ZERO__LINK_MESSAGE__BODY_PREPARE;
        m.prepare = &prepare;
        for (uint32_t o = 0; o < c->x->n_owners; o++)
                fabric_send(c->x->fabric, c->x->owner_node[o], &m);
}

static void send_to(struct coordinator *c, uint32_t node, const Zero__Decision *d)
{
        Zero__LinkMessage m = coordinator_to(c);

        m.body_case = ZERO__LINK_MESSAGE__BODY_DECISION;
        m.decision = (Zero__Decision *)d;
        fabric_send(c->x->fabric, node, &m);
}

/* The last decision, which a node that has heard it already ignores. */
static void decision_send(struct coordinator *c, uint32_t node)
{
        const struct step *s = &c->step;
        Zero__Decision d = ZERO__DECISION__INIT;
        struct step_params_message params;

        d.attempt = s->decided_attempt;
        d.commit = s->decision.commit;
        d.finite = s->decision.finite;
        d.overflow = s->decision.overflow;
        d.grad_norm = s->decision.grad_norm;
        d.clip = s->decision.clip;
        d.good_steps = s->decision.good_steps;
        d.params = step_params_to_message(&s->decided_params, &params);
        d.version = s->version;
        d.loss_scale = s->loss_scale;
        send_to(c, node, &d);
}

static void norm_send(struct coordinator *c, uint32_t node)
{
        Zero__Decision d = ZERO__DECISION__INIT;

        d.norm_only = true;
        d.attempt = c->step.attempt;
        d.grad_norm = c->step.norm;
        d.finite = c->step.norm == c->step.norm; /* the norm is NaN if any gradient is */
        d.version = c->step.version;
        d.loss_scale = c->step.loss_scale;
        send_to(c, node, &d);
}

/* The ranks' calls fail; the attempt goes on, and may be ended by another call. */
static void refusal_send(struct coordinator *c)
{
        Zero__Decision d = ZERO__DECISION__INIT;

        d.attempt = c->step.attempt;
        d.status = (uint32_t)c->step.refusal.status;
        d.text = c->step.refusal.text;
        for (uint32_t n = 0; n < c->x->cluster->n_nodes; n++)
                send_to(c, n, &d);
}

static void coordinator_decide(struct coordinator *c)
{
        for (uint32_t n = 0; n < c->x->cluster->n_nodes; n++) {
                if (c->step.norm_only)
                        norm_send(c, n);
                else
                        decision_send(c, n);
        }
}

static void coordinator_ready(struct coordinator *c, uint32_t node, const Zero__LinkMessage *m)
{
        const Zero__Ready *ready = m->ready;
        struct step_params params;
        enum step_action action = STEP_NOTHING;
        struct fault fault;
        int r = 0;

        if (ready->params)
                r = step_params_from_message(ready->params, &params, &fault);
        if (!r)
                r = step_ready(&c->step, node, ready->attempt, ready->params ? &params : NULL,
                               ready->rank, &action, &fault);
        answer(c->x, node, m, r, r ? fault.text : "");
        if (action == STEP_PREPARE)
                coordinator_prepare(c);
}

static void coordinator_vote(struct coordinator *c, uint32_t node, const Zero__Prepared *p)
{
        struct votes vote = { .finite = p->finite };
        enum step_action action;

        if (p->owner >= c->x->n_owners || c->x->owner_node[p->owner] != node ||
            p->n_norm != EXACT_SUM_BINS || p->closing == c->step.norm_only)
                return;
        exact_sum_init(&vote.norm);
        memcpy(vote.norm.bin, p->norm, sizeof vote.norm.bin);
        if (p->status)
                fault_set(&vote.refused, (int)p->status, "%s", p->text);
        step_vote(&c->step, p->owner, p->attempt, &vote, &action);
        if (action == STEP_DECIDE)
                coordinator_decide(c);
        else if (action == STEP_REFUSE)
                refusal_send(c);
}

/* ---- events ---------------------------------------------------------------------------------- */

void coordinator_tick(struct exchange *x)
{
        list_for_each (&x->coordinators, item) {
                coordinator_tell(CONTAINER_OF(item, struct coordinator, link));
        }
}

void coordinator_message(struct exchange *x, uint32_t node, const Zero__LinkMessage *m)
{
        struct coordinator *c;

        if (m->body_case == ZERO__LINK_MESSAGE__BODY_JOIN) {
                coordinator_join(x, node, m);
                return;
        }
        c = coordinator_find(x, m->job);
        if (!c) {
                answer(x, node, m, ZERO_ENOJOB, "the job's coordinator does not know it");
                return;
        }
        switch (m->body_case) {
        case ZERO__LINK_MESSAGE__BODY_PART:
                coordinator_part(c, node, m->part->rank, m->part->orderly);
                break;
        case ZERO__LINK_MESSAGE__BODY_READY:
                coordinator_ready(c, node, m);
                break;
        case ZERO__LINK_MESSAGE__BODY_PREPARED:
                coordinator_vote(c, node, m->prepared);
                break;
        case ZERO__LINK_MESSAGE__BODY_DONE:
                step_done(&c->step, m->done->owner, m->done->attempt);
                break;
        case ZERO__LINK_MESSAGE__BODY_PROGRESS:
                coordinator_report(c, node, m->progress);
                break;
        default:
                break;
        }
}

void coordinator_up(struct exchange *x, uint32_t node)
{
        list_for_each (&x->coordinators, item) {
                struct coordinator *c = CONTAINER_OF(item, struct coordinator, link);

                if (c->phase == OPEN_ASKING && c->nodes[node] == NODE_UNASKED)
                        open_ask(c, node);
                if (c->step.decided_attempt) /* the link may have ended before it was heard */
                        decision_send(c, node);
        }
}

/* Its ranks are lost, and so are the joins that it sent. */
void coordinator_down(struct exchange *x, uint32_t node)
{
        list_for_each (&x->coordinators, item) {
                struct coordinator *c = CONTAINER_OF(item, struct coordinator, link);

                for (uint32_t r = 0; r < c->step.world_size; r++)
                        coordinator_part(c, node, r, false);
                c->reports[node] = (struct report){ 0 };
                list_for_each (&c->joins, waiting) {
                        struct join *j = CONTAINER_OF(waiting, struct join, link);

                        if (j->node == node)
                                join_end(c, j, ZERO_EPEER, "");
                }
        }
}

void coordinator_drop(struct exchange *x, const char *job)
{
        struct coordinator *c = coordinator_find(x, job);

        if (c)
                coordinator_close(c, ZERO_ENOJOB, "the job was dropped");
}

void coordinators_free(struct exchange *x)
{
        list_for_each (&x->coordinators, item) {
                coordinator_close(CONTAINER_OF(item, struct coordinator, link), ZERO_ECLOSED,
                                  "the daemon stops");
        }
}
