/*
 * How a step is decided: it drives job/step.c.
 *
 * When all ranks are ready, the owners' nodes are asked; each answers for every holder on it.
 * When all holders have voted, the decision goes to every node.  A vote that refuses, or
 * a mirror whose sum is not its owner's, is told to the ranks instead.
 */
#include "daemon/coordinator/coordinator.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/base/crash.h"
#include "daemon/base/log.h"
#include "proto/cleanup.h"

static size_t handed_fill(const struct coordinator *c, Zero__Kept *kept, Zero__Kept **pointers)
{
        size_t n = 0;

        for (uint32_t r = 0; r < c->step.world_size; r++) {
                if (c->handed[r].bytes == 0)
                        continue;
                zero__kept__init(&kept[n]);
                kept[n].rank = r;
                kept[n].blob = (ProtobufCBinaryData){ c->handed[r].bytes, c->handed[r].data };
                pointers[n] = &kept[n];
                n++;
        }
        return n;
}

/* What the ranks of a node keep with the step; of this attempt alone. */
static int handed_take(struct coordinator *c, uint32_t node, const Zero__Ready *ready,
                       struct fault *fault)
{
        for (uint32_t r = 0; r < c->step.world_size; r++)
                if (c->step.node_of_rank[r] == node)
                        kept_clear(&c->handed[r]);
        for (size_t i = 0; i < ready->n_kept; i++) {
                const Zero__Kept *k = ready->kept[i];

                if (k->rank >= c->step.world_size || k->blob.len > ZERO_BLOB_MAX ||
                    c->step.node_of_rank[k->rank] != node)
                        return fault_set(fault, ZERO_EPROTO, "what a rank keeps is malformed");
                if (kept_set(&c->handed[k->rank], k->blob.data, k->blob.len))
                        return fault_set(fault, ZERO_ENOMEM, "out of memory");
        }
        return 0;
}

static void coordinator_prepare(struct coordinator *c)
{
        Zero__LinkMessage m = coordinator_to(c);
        Zero__Prepare prepare = ZERO__PREPARE__INIT;
        Zero__Kept *kept = calloc(c->step.world_size, sizeof *kept);
        Zero__Kept **pointers = calloc(c->step.world_size, sizeof *pointers);
        struct step_params_message params;

        if (!kept || !pointers)
                abort(); /* some hundred bytes: nothing sensible is left to do */
        prepare.attempt = c->step.attempt;
        if (!c->step.norm_only) {
                prepare.params = step_params_to_message(&c->step.params, &params);
                prepare.n_kept = handed_fill(c, kept, pointers);
                prepare.kept = pointers;
        }
        m.body_case = ZERO__LINK_MESSAGE__BODY_PREPARE;
        m.prepare = &prepare;
        crash_point(CRASH_COORDINATOR_READY);
        for (uint64_t left = placement_nodes(&c->step.view); left; left &= left - 1) {
                fabric_send(c->x->fabric, (uint32_t)__builtin_ctzll(left), &m);
                crash_point(CRASH_COORDINATOR_ASKING);
        }
        free(kept);
        free(pointers);
}

static void send_to(struct coordinator *c, uint32_t node, const Zero__Decision *d)
{
        Zero__LinkMessage m = coordinator_to(c);

        m.body_case = ZERO__LINK_MESSAGE__BODY_DECISION;
        m.decision = (Zero__Decision *)d;
        fabric_send(c->x->fabric, node, &m);
}

void decision_fill(const struct coordinator *c, Zero__Decision *ret)
{
        const struct step *s = &c->step;

        ret->attempt = s->decided_attempt;
        ret->commit = s->decision.commit;
        ret->finite = s->decision.finite;
        ret->overflow = s->decision.overflow;
        ret->grad_norm = s->decision.grad_norm;
        ret->grad_scale = s->decision.grad_scale;
        ret->good_steps = s->decision.good_steps;
        ret->skipped = s->skipped;
        ret->version = s->version;
        ret->loss_scale = s->loss_scale;
}

void decision_send(struct coordinator *c, uint32_t node)
{
        Zero__Decision d = ZERO__DECISION__INIT;

        if (c->step.decided_attempt == 0)
                return;
        decision_fill(c, &d);
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

/* Two copies of the same shards have summed the same gradients, and not to the same. */
static void refusal_name(struct coordinator *c)
{
        const struct placement *view = &c->step.view;
        uint32_t owner = holder_owner(view, c->step.odd);

        fault_set(&c->step.refusal, c->step.refusal.status,
                  "nodes %s and %s hold the same shards and have summed the same gradients, but "
                  "not to the same: the memory of one of the two is damaged",
                  node_name(c->x, holder_node(view, holder_of(view, owner, 0))),
                  node_name(c->x, holder_node(view, c->step.odd)));
        log_error_for(c->uid, "job %s: %s", c->name, c->step.refusal.text);
}

/* The ranks' calls fail; the attempt goes on, and may be ended by another call. */
static void refusal_send(struct coordinator *c)
{
        Zero__Decision d = ZERO__DECISION__INIT;

        if (c->step.odd != NO_HOLDER)
                refusal_name(c);
        d.attempt = c->step.attempt;
        d.status = (uint32_t)c->step.refusal.status;
        d.text = c->step.refusal.text;
        for (uint32_t n = 0; n < c->x->cluster->n_nodes; n++)
                send_to(c, n, &d);
}

static void coordinator_decide(struct coordinator *c)
{
        crash_point(CRASH_COORDINATOR_DECIDED);
        for (uint32_t n = 0; n < c->x->cluster->n_nodes; n++) {
                if (c->step.norm_only)
                        norm_send(c, n);
                else
                        decision_send(c, n);
                crash_point(CRASH_COORDINATOR_TELLING);
        }
}

void coordinator_ready(struct coordinator *c, uint32_t node, const Zero__LinkMessage *m)
{
        const Zero__Ready *ready = m->ready;
        struct step_params params;
        enum step_action action = STEP_NOTHING;
        struct fault fault;
        int r = 0;

        if (ready->params)
                r = step_params_from_message(ready->params, &params, &fault);
        if (!r && ready->params && c->step.phase != STEP_FORMING &&
            ready->attempt == c->step.attempt)
                r = handed_take(c, node, ready, &fault);
        if (!r)
                r = step_ready(&c->step, node, ready->attempt, ready->params ? &params : NULL,
                               ready->rank, &action, &fault);
        answer(c->x, node, m, r, r ? fault.text : "");
        if (action == STEP_PREPARE)
                coordinator_prepare(c);
}

void coordinator_vote(struct coordinator *c, uint32_t node, const Zero__Prepared *p)
{
        uint32_t holder = coordinator_holder(c, node, p->owner, p->copy);
        struct votes vote = { .finite = p->finite };
        enum step_action action;

        if (holder == NO_HOLDER || p->n_norm != EXACT_SUM_BINS || p->closing == c->step.norm_only)
                return;
        exact_sum_init(&vote.norm);
        memcpy(vote.norm.bin, p->norm, sizeof vote.norm.bin);
        if (p->status)
                fault_set(&vote.refused, (int)p->status, "%s", p->text);
        step_vote(&c->step, holder, p->attempt, &vote, &action);
        if (action == STEP_DECIDE)
                coordinator_decide(c);
        else if (action == STEP_REFUSE)
                refusal_send(c);
}
