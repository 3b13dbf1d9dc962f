/*
 * Opening a job on all nodes: each is asked what it knows; from what the owners know follows
 * whether the job is to be made, or where it stands (coordinator.h).
 */
#include "daemon/coordinator/coordinator.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/crash.h"
#include "daemon/base/log.h"
#include "proto/cleanup.h"

struct opening {
        struct coordinator *c;
        uint32_t node;
};

/* It holds shards of the job. */
static bool is_holder(const struct coordinator *c, uint32_t node)
{
        return placement_nodes(&c->step.view) >> node & 1;
}

/* ---- the end of a job that cannot be made -------------------------------------------- */

static void open_fail(struct coordinator *c, int status, const char *text)
{
        Zero__LinkMessage m = coordinator_to(c);
        Zero__Drop drop = ZERO__DROP__INIT;

        m.body_case = ZERO__LINK_MESSAGE__BODY_DROP;
        m.drop = &drop;
        for (uint32_t n = 0; n < c->x->cluster->n_nodes; n++)
                if (c->created[n] && n == c->x->cluster->self) /* ranks may come anew at once */
                        job_discard(c->x, c->name);
                else if (c->created[n])
                        fabric_send(c->x->fabric, n, &m);
        coordinator_close(c, status, text);
}

void open_clash(struct coordinator *c)
{
        bool forming = c->step.epoch == 0, created = false;

        if (c->dead || !c->clash.status)
                return;
        for (uint32_t n = 0; forming && n < c->x->cluster->n_nodes; n++) {
                if (c->nodes[n] == NODE_ASKED)
                        return;
                created = created || c->created[n];
        }
        c->references++; /* it may be closed here */
        if (created)
                open_fail(c, c->clash.status, c->clash.text);
        else
                joins_clash(c);
        c->clash.status = ZERO_OK;
        coordinator_unref(c);
}

/* The job stays as it is until a node comes anew, or it is dropped. */
void open_hinder(struct coordinator *c, int status, uint32_t node, const char *why)
{
        c->hinders = node;
        fault_set(&c->fault, status,
                  "node %s: %.300s; restore the job from a checkpoint, or zeroctl drop it",
                  node_name(c->x, node), why);
        log_error_for(c->uid, "job %s: %s", c->name, c->fault.text);
        joins_admit(c);
}

/* ---- what holders know ----------------------------------------------------------------- */

static void decision_take(const Zero__Decision *d, struct standing *s)
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

static int standing_take(const Zero__Standing *m, struct standing *s, struct fault *fault)
{
        *s = (struct standing){ .version = m->version,
                                .done = m->done,
                                .prepared_attempt = m->prepared_attempt,
                                .decision.loss_scale = 0 };
        if (m->decision)
                decision_take(m->decision, s);
        exact_sum_init(&s->vote.norm);
        s->vote.finite = m->finite;
        if (s->prepared_attempt == 0)
                return 0;
        if (m->n_norm != EXACT_SUM_BINS || !m->params)
                return fault_set(fault, ZERO_EPROTO, "its vote cannot be read");
        memcpy(s->vote.norm.bin, m->norm, sizeof s->vote.norm.bin);
        return step_params_from_message(m->params, &s->params, fault);
}

/* What cannot be read is not gone on with: the node counts as not asked. */
static void node_unreadable(struct coordinator *c, uint32_t node, int status, const char *why)
{
        open_forget(c, node);
        open_hinder(c, status, node, why);
}

int standing_known(struct coordinator *c, uint32_t node, const Zero__Standing *m,
                   struct fault *fault)
{
        uint32_t holder = coordinator_holder(c, node, m->owner, m->copy);
        struct standing standing;
        int r = standing_take(m, &standing, fault);

        step_heard(&c->step, m->attempt);
        if (r)
                return r;
        if (m->placement < c->step.view.epoch)
                return former_known(c, node, m, &standing, fault);
        if (m->placement > c->step.view.epoch)
                return fault_set(fault, ZERO_EPROTO, "it knows of a later list of owners");
        if (holder == NO_HOLDER)
                return fault_set(fault, ZERO_EPROTO, "it holds shards that are not its own");
        if (!c->standings[holder])
                c->standings[holder] = malloc(sizeof **c->standings);
        if (!c->standings[holder])
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        c->fresh[node] = m->fresh;
        c->puts[holder] = m->puts;
        *c->standings[holder] = standing;
        return 0;
}

/* False: the answer makes no sense. */
static bool node_known(struct coordinator *c, uint32_t node, const Zero__Opened *o)
{
        struct fault fault;
        int r = 0;

        c->nodes[node] = NODE_KNOWN;
        c->created[node] = o->created;
        c->lacks[node] = !o->known;
        step_heard(&c->step, o->attempt);
        formers_retell(c->formers, node);
        if (!o->known)
                return true;
        for (size_t i = 0; i < o->n_standings && !r; i++)
                r = standing_known(c, node, o->standings[i], &fault);
        if (r)
                node_unreadable(c, node, fault.status, fault.text);
        return r == 0;
}

/* ---- asking ---------------------------------------------------------------------------- */

/* Finished jobs are dropped only where their places suffice: nothing is lost for a job that never
 * fits. */
static bool displacing_helps(const struct coordinator *c, const struct finished_jobs *finished)
{
        return finished->n_jobs >= c->x->conf->job_limit ||
               finished->bytes + c->given >= layout_state_bytes(c->layout);
}

/*
 * There is no place for the job: the finished job of the same user that finished first gives its
 * own. The next tick asks the node again.  False: there is none, or it would not help.
 */
static bool open_displace(struct coordinator *c, uint32_t node, int status, const char *text)
{
        struct exchange *x = c->x;
        struct finished_jobs finished;
        struct fault fault;

        if (c->settled || (status != ZERO_EQUOTA && status != ZERO_ESHM))
                return false;
        if (!c->displaced[0] || !drop_check(x, c->displaced, &fault)) {
                const struct job *old;

                jobs_finished(x, c->uid, &finished);
                old = finished.first;
                if (!old || !displacing_helps(c, &finished))
                        return false;
                log_warning_for(
                        old->uid,
                        "job %s: dropped: it has been finished for %llu s, and job %s needs its "
                        "place on node %s: %.300s",
                        old->name, (unsigned long long)(exchange_now(x) - old->finished_ms) / 1000,
                        c->name, node_name(x, node), text);
                c->given += layout_state_bytes(old->layout);
                snprintf(c->displaced, sizeof c->displaced, "%s", old->name);
                drop_order(x, c->displaced, x->cluster->self, 0, NULL);
        }
        c->nodes[node] = NODE_KNOWN;
        return true;
}

static void open_answered(void *arg, int status, const char *text, const Zero__LinkMessage *m)
{
        struct opening *o = arg;
        struct coordinator *c = o->c;
        uint32_t node = o->node;

        free(o);
        if (!c->dead && status == ZERO_EPEER) {
                c->nodes[node] = NODE_UNASKED; /* again when it is up */
        } else if (!c->dead && (status || !m || m->body_case != ZERO__LINK_MESSAGE__BODY_OPENED)) {
                char why[400];

                if (open_displace(c, node, status, text)) {
                        coordinator_unref(c);
                        return;
                }

                snprintf(why, sizeof why, "node %s: %.300s", node_name(c->x, node), text);
                if (c->settled)
                        open_hinder(c, status ? status : ZERO_EPROTO, node, text);
                else
                        open_fail(c, status ? status : ZERO_EPROTO, why);
        } else if (!c->dead) {
                if (node_known(c, node, m->opened))
                        open_settle(c);
        }
        open_clash(c);
        coordinator_unref(c);
}

static void open_send(struct coordinator *c, uint32_t node, bool create)
{
        Zero__LinkMessage m = coordinator_to(c);
        Zero__Open open = ZERO__OPEN__INIT;
        struct opening *o = malloc(sizeof *o);

        if (!o)
                return;
        *o = (struct opening){ c, node };
        c->references++;
        c->nodes[node] = NODE_ASKED;
        c->rounds[node] = c->round;
        open.uid = c->uid;
        open.world_size = c->step.world_size;
        open.reduce_dtype = c->reduce_dtype;
        open.layout = c->message;
        open.create = create;
        m.body_case = ZERO__LINK_MESSAGE__BODY_OPEN;
        m.open = &open;
        call_send(c->x, node, &m, 10 * CALL_MS, open_answered, o);
}

void open_ask(struct coordinator *c, uint32_t node)
{
        open_send(c, node, false);
}

void open_forget(struct coordinator *c, uint32_t node)
{
        c->nodes[node] = NODE_UNASKED;
        c->round++;
        for (uint32_t h = 0; h < placement_holders(&c->step.view); h++)
                if (holder_node(&c->step.view, h) == node) {
                        free(c->standings[h]);
                        c->standings[h] = NULL;
                }
        former_forget_node(c, node);
}

void open_done(struct coordinator *c, uint32_t holder, uint64_t attempt)
{
        struct standing *s = holder == NO_HOLDER ? NULL : c->standings[holder];

        if (s && c->settled && attempt == c->step.decided_attempt) { /* it was behind, perhaps */
                s->version = c->step.version;
                s->decided_attempt = attempt;
                s->decision = c->step.decision;
                s->skipped = c->step.skipped;
                s->prepared_attempt = 0;
        }
        if (s && s->decided_attempt == attempt)
                s->done = true;
        if (c->settled)
                step_done(&c->step, holder, attempt);
}

/* ---- where the job stands -------------------------------------------------------------- */

static void open_adopt(struct coordinator *c, const struct recovery *r)
{
        step_adopt(&c->step, r);
        c->settled = true;
        log_info_for(c->uid, "job %s: stands at version %llu", c->name,
                     (unsigned long long)c->step.version);
}

static void node_open(struct coordinator *c, uint32_t node)
{
        if (step_node_has_ranks(&c->step, node))
                c->return_until_ms = exchange_now(c->x) + RETURN_MS;
        step_node_open(&c->step, node);
}

/* A holder as it stands, against the others. */
static int holder_open(struct coordinator *c, uint32_t holder, struct fault *fault)
{
        const struct recovery now = step_stands(&c->step);
        const struct standing *s = c->standings[holder];
        bool behind;

        if (recover_one(s, &now, &behind, fault))
                return fault->status;
        c->step.done[holder] = !behind && s->done;
        return 0;
}

/* What it has is compared; it hears the last decision, in case it missed it. */
static bool holders_fit(struct coordinator *c, uint32_t node)
{
        struct fault fault;
        int r = 0;

        for (uint32_t h = 0; h < placement_holders(&c->step.view) && !r; h++)
                if (holder_node(&c->step.view, h) == node && c->standings[h])
                        r = holder_open(c, h, &fault);
        if (r)
                open_hinder(c, ZERO_ECONFLICT, node, fault.text);
        else
                decision_send(c, node);
        return r == 0;
}

/* From the states of the placement in force, or of the one before: those of one copy at least. */
static void open_recover(struct coordinator *c)
{
        const struct placement *place = c->whole ? &c->step.view : &c->former->place;
        struct recovery r;
        struct fault fault;
        uint32_t odd = 0;
        int status;

        crash_point(CRASH_COORDINATOR_RECOVERING);
        if (c->whole)
                status = recover((const struct standing *const *)c->standings, place, &r, &odd,
                                 &fault);
        else
                status = former_recover(c->former, &r, &odd, &fault);
        if (status)
                open_hinder(c, fault.status, holder_node(place, odd), fault.text);
        else
                open_adopt(c, &r);
}

/* Makes the job where it is not: on all owners, or on some where none has ever been worked on. */
static void open_create(struct coordinator *c)
{
        int32_t lost = recover_lost((const struct standing *const *)c->standings, &c->step.view);
        bool some = false, fresh = true;

        for (uint32_t o = 0; o < c->step.view.n_owners; o++) {
                uint32_t node = c->step.view.node[o];

                if (c->lacks[node])
                        continue;
                some = true;
                fresh = fresh && c->fresh[node];
        }
        if (some && !fresh) {
                open_hinder(c, ZERO_ECONFLICT, c->step.view.node[lost],
                            "its state of the job is gone");
        } else if (!c->may_create) {
                if (!some)
                        coordinator_close(c, ZERO_ENOJOB,
                                          "the job is gone: it was dropped, or its "
                                          "state was lost on all nodes");
        } else {
                for (uint32_t n = 0; n < c->x->cluster->n_nodes; n++)
                        if (is_holder(c, n) && c->lacks[n])
                                open_send(c, n, true);
        }
}

static bool holders_known(const struct coordinator *c)
{
        for (uint32_t o = 0; o < c->step.view.n_owners; o++)
                if (c->nodes[c->step.view.node[o]] != NODE_KNOWN)
                        return false;
        return true;
}

/* Nodes that have not told what they have. */
static uint64_t others_unknown(const struct coordinator *c)
{
        uint64_t unknown = 0;

        for (uint32_t n = 0; n < c->x->cluster->n_nodes; n++)
                if (c->nodes[n] != NODE_KNOWN)
                        unknown |= 1ull << n;
        return unknown;
}

/*
 * Whoever was declared dead is not waited for by a job that would be made; one that would go back
 * stays as it is, for of that it is known that something is lost.
 */
static uint64_t find_untold(const struct coordinator *c, enum opening_choice choice,
                            const struct former *former)
{
        uint64_t unknown = others_unknown(c), dead = c->step.view.dead;

        if (choice == OPENING_MOVES)
                return unknown & lists_untold(&c->step.view, former->place.epoch + 1, ~unknown);
        if (choice == OPENING_MAKES)
                return unknown & ~dead & lists_untold(&c->step.view, 0, ~unknown | dead);
        return 0;
}

static void log_unknown(struct coordinator *c, uint32_t node, bool waited)
{
        const char *name = node_name(c->x, node);

        if (waited || !(c->untold >> node & 1))
                log_info_for(c->uid, "job %s: node %s has not said what it has of the job: %s",
                             c->name, name, waited ? "it is waited for" : "going on without it");
        else if (c->may_be_there)
                log_warning_for(c->uid,
                                "job %s: it may be on node %s: start its daemon, or give the job "
                                "another name, or, if the node is dead, see takeover in zeroctl(1)",
                                c->name, name);
        else
                log_warning_for(
                        c->uid,
                        "job %s: node %s may have steps of it that no other node has: start "
                        "its daemon, or drop the job and restore it from a checkpoint",
                        c->name, name);
}

/*
 * Nodes that hold nothing by the list in force may have what is newer than what is known so far.
 * They are waited for, but not for ever: such a node may hang.  One that is not linked starts anew
 * at this moment, or is dead; but where there were lists between the one that is gone by and the
 * one in force (gap), it is given as long as any other, in case that one has lost its memory that
 * tells of such a list.  Without end those are waited for that may have what nobody else has
 * (untold).
 */
static bool others_wait(struct coordinator *c, bool gap)
{
        uint64_t unknown = others_unknown(c), now = exchange_now(c->x), waited = 0;
        bool first = c->others_until_ms == 0;

        if (first)
                c->others_until_ms = now + OTHERS_MS;
        for (uint32_t n = 0; n < c->x->cluster->n_nodes; n++) {
                bool patient = gap || c->x->linked >> n & 1;
                uint64_t until = c->others_until_ms - (patient ? 0 : OTHERS_MS - AWAY_MS);

                if (unknown >> n & 1 && now < until)
                        waited |= 1ull << n;
        }
        for (uint32_t n = 0; n < c->x->cluster->n_nodes; n++) {
                if (!(unknown >> n & 1) || (waited ? !first : c->missed >> n & 1))
                        continue;
                log_unknown(c, n, waited != 0);
                c->missed |= waited ? 0 : 1ull << n;
        }
        return waited || c->untold;
}

/* All nodes of the placement in force have answered for the first time. */
static void open_choose(struct coordinator *c)
{
        struct former *former = NULL;
        enum opening_choice choice = opening_choose((const struct standing *const *)c->standings,
                                                    &c->step.view, c->formers, &former);
        bool first =
                choice == OPENING_MAKES && c->step.view.epoch == 0; /* nobody else can have it */
        bool gap = choice == OPENING_MOVES && former->place.epoch + 1 < c->step.view.epoch;

        c->untold = find_untold(c, choice, former);
        c->may_be_there = choice == OPENING_MAKES;
        if (choice != OPENING_STANDS && !first && others_wait(c, gap))
                return;
        c->others_until_ms = c->missed = 0;
        c->former = former;
        switch (choice) {
        case OPENING_STANDS:
                c->whole = true;
                open_recover(c);
                break;
        case OPENING_MOVES:
                c->whole = false;
                open_recover(c);
                break;
        case OPENING_MAKES:
                open_create(c);
                break;
        case OPENING_WAITS:
                break;
        }
}

/* Each node that has answered since. */
static void open_nodes(struct coordinator *c)
{
        for (uint32_t n = 0; n < c->x->cluster->n_nodes && !c->fault.status; n++) {
                if (c->nodes[n] != NODE_KNOWN)
                        continue;
                if (!is_holder(c, n) && c->lacks[n]) {
                        open_send(c, n, true);
                        continue;
                }
                if (!holders_fit(c, n) || placing_lacks(c, n))
                        continue;
                c->nodes[n] = NODE_OPEN;
                node_open(c, n);
                if (c->stale >> n & 1)
                        placed_tell(c, n);
        }
}

void open_tick(struct coordinator *c)
{
        if (!c->settled && !c->fault.status)
                open_settle(c);
}

void open_settle(struct coordinator *c)
{
        c->references++;     /* it may be closed here */
        c->fault.status = 0; /* what hindered may have come anew */
        if (!c->settled && holders_known(c))
                open_choose(c);
        if (!c->dead && c->settled && c->whole)
                open_nodes(c);
        if (!c->dead && c->settled) {
                placing_advance(c);
                joins_admit(c);
        }
        coordinator_unref(c);
}
