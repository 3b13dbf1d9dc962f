/* Carries out what a job's coordinator decides: messages and log lines (coordinator.h). */
#include "daemon/cluster/checkpoint/checkpoint.h"
#include "daemon/cluster/coordinator/coordinator.h"

#include <stdlib.h>

#include "daemon/floor/base/crash.h"
#include "daemon/floor/base/log.h"
#include "proto/cleanup.h"

/* ---- decisions -------------------------------------------------------------------------- */

static void decision_to(struct coordinated *c, uint32_t node, Zero__Decision *d)
{
        Zero__LinkMessage m = job_message(c->name);

        m.body_case = ZERO__LINK_MESSAGE__BODY_DECISION;
        m.decision = d;
        fabric_send(c->x->fabric, node, &m);
}

static void decision_send(struct coordinated *c, uint32_t node)
{
        Zero__Decision d;

        if (decision_last(c, &d))
                decision_to(c, node, &d);
}

static void norm_fill(const struct step *s, Zero__Decision *ret)
{
        ret->norm_only = true;
        ret->attempt = s->attempt;
        ret->grad_norm = s->norm;
        ret->finite = s->norm == s->norm; /* any NaN or infinite gradient makes the norm NaN */
        ret->version = s->version;
        ret->loss_scale = s->loss_scale;
}

static void decided_tell(struct coordinated *c, bool norm_only)
{
        Zero__Decision d = ZERO__DECISION__INIT;

        if (norm_only)
                norm_fill(&c->state.step, &d);
        else
                decision_fill(c, &d);
        crash_point(CRASH_COORDINATOR_DECIDED);
        for (uint32_t n = 0; n < c->x->cluster->n_nodes; n++) {
                decision_to(c, n, &d);
                crash_point(CRASH_COORDINATOR_TELLING);
        }
}

static void reduced_tell(struct coordinated *c)
{
        struct step *s = &c->state.step;
        Zero__LinkMessage m = job_message(c->name);
        Zero__Reduced reduced = ZERO__REDUCED__INIT;

        reduced.attempt = s->attempt;
        reduced.number = s->round.done - 1;
        reduced.n_values = s->round.n;
        reduced.values = s->round.result;
        m.body_case = ZERO__LINK_MESSAGE__BODY_REDUCED;
        m.reduced = &reduced;
        send_all(c->x, &m);
}

/* The ranks' calls fail; the attempt goes on, and another call may end it. */
static void refuse(struct coordinated *c)
{
        const struct step *s = &c->state.step;
        Zero__Decision d = ZERO__DECISION__INIT;

        if (s->odd != NO_HOLDER)
                log_error_for(c->uid, "job %s: %s", c->name, s->refusal.text);
        d.attempt = s->attempt;
        d.status = (uint32_t)s->refusal.status;
        d.text = (char *)s->refusal.text;
        for (uint32_t n = 0; n < c->x->cluster->n_nodes; n++)
                decision_to(c, n, &d);
}

/* ---- attempts ---------------------------------------------------------------------------- */

static void kept_add(struct coordinated *c, size_t *n, uint32_t rank, const void *data,
                     size_t bytes)
{
        Zero__RankBlob *k = &c->kept[*n];

        zero__rank_blob__init(k);
        k->rank = rank;
        k->blob = (ProtobufCBinaryData){ bytes, (uint8_t *)data };
        c->kept_pointers[(*n)++] = k;
}

/* The ranks' blobs of the last decision; this node is an owner, so its own state has them. */
static size_t start_kept(struct coordinated *c)
{
        const struct job *job = job_find(c->x, c->name);
        const struct replica *h = job ? replica_first(job) : NULL;
        size_t n = 0;

        for (uint32_t r = 0; h && r < c->state.step.world_size; r++) {
                size_t bytes = 0;
                const void *data = state_blob(h->state, r, &bytes);

                if (bytes)
                        kept_add(c, &n, r, data, bytes);
        }
        return n;
}

/* Tells every node where the job stands and what its ranks' blobs are. */
static void start(struct coordinated *c)
{
        const struct step *s = &c->state.step;
        Zero__LinkMessage m = job_message(c->name);
        Zero__Start start = ZERO__START__INIT;
        Zero__Decision last;

        crash_point(CRASH_COORDINATOR_STARTING);
        start.version = s->version;
        start.attempt = s->attempt;
        start.loss_scale = s->loss_scale;
        start.n_node_of_rank = s->world_size;
        start.node_of_rank = s->node_of_rank;
        start.n_kept = start_kept(c);
        start.kept = c->kept_pointers;
        start.last = decision_last(c, &last);
        m.body_case = ZERO__LINK_MESSAGE__BODY_START;
        m.start = &start;
        send_all(c->x, &m);
        crash_point(CRASH_COORDINATOR_STARTED);
        log_info_for(c->uid, "job %s: all %u ranks are there, version %llu", c->name, s->world_size,
                     (unsigned long long)s->version);
}

/* Asks holders to vote; ahead: tells them how the step will end. */
static void prepare(struct coordinated *c, bool ahead)
{
        const struct step *s = &c->state.step;
        Zero__LinkMessage m = job_message(c->name);
        Zero__Prepare prepare = ZERO__PREPARE__INIT;
        struct step_params_message params;

        prepare.attempt = s->attempt;
        prepare.ahead = ahead;
        if (ahead || !s->norm_only)
                prepare.params = step_params_to_message(ahead ? s->ahead : &s->params, &params);
        if (!ahead && !s->norm_only) {
                for (uint32_t r = 0; r < s->world_size; r++)
                        if (c->handed[r].bytes)
                                kept_add(c, &prepare.n_kept, r, c->handed[r].data,
                                         c->handed[r].bytes);
                prepare.kept = c->kept_pointers;
        }
        m.body_case = ZERO__LINK_MESSAGE__BODY_PREPARE;
        m.prepare = &prepare;
        crash_point(ahead ? CRASH_COORDINATOR_AHEAD : CRASH_COORDINATOR_READY);
        for (node_set left = placement_nodes(&s->placement); node_set_any(left);) {
                uint32_t node = node_set_first(left);

                node_set_remove(&left, node);
                fabric_send(c->x->fabric, node, &m);
                crash_point(ahead ? CRASH_COORDINATOR_AHEAD : CRASH_COORDINATOR_ASKING);
        }
}

/* The number of ranks has changed: the blobs of the old ranks are void. */
static void resized(struct coordinated *c, uint32_t before)
{
        for (uint32_t r = 0; r < c->n_handed; r++)
                blob_clear(&c->handed[r]);
        log_info_for(c->uid, "job %s: the world size changes from %u to %u", c->name, before,
                     c->state.step.world_size);
}

/* ---- ranks -------------------------------------------------------------------------------- */

static void answer_to(struct coordinated *c, uint32_t node, uint64_t call,
                      const struct fault *fault)
{
        Zero__LinkMessage m = job_message(c->name);

        m.call = call;
        answer(c->x, node, &m, fault->status, fault->text);
}

static void join_over(struct coordinated *c, struct join *j)
{
        answer_to(c, j->node, j->call, &j->fault);
        free(j);
}

static void part_send(struct coordinated *c, const struct coordinator_action *a, Zero__Part *part)
{
        Zero__LinkMessage m = job_message(c->name);

        part->rank = a->rank;
        part->told = true;
        m.body_case = ZERO__LINK_MESSAGE__BODY_PART;
        m.part = part;
        if (part->fenced)
                fabric_send(c->x->fabric, a->node, &m);
        else
                send_all(c->x, &m);
}

static void part(struct coordinated *c, const struct coordinator_action *a)
{
        Zero__Part part = ZERO__PART__INIT;

        part.back = a->kind == COORDINATOR_TELL_BACK;
        part.fenced = a->kind == COORDINATOR_TELL_FENCED;
        part.session = a->session;
        if (a->kind == COORDINATOR_TELL_LEFT) {
                part.orderly = a->flag;
                part.fails = a->fails;
        }
        if (a->kind == COORDINATOR_FINISHED)
                part.finish = ZERO__FINISH__COMPLETE;
        part_send(c, a, &part);
        if (part.back)
                log_info_for(c->uid, "job %s: rank %u is back", c->name, a->rank);
        else if (a->kind == COORDINATOR_TELL_LEFT && a->flag)
                log_info_for(c->uid, "job %s: rank %u has left", c->name, a->rank);
        else if (a->kind == COORDINATOR_TELL_LEFT)
                log_warning_for(c->uid, "job %s: rank %u on %s was lost", c->name, a->rank,
                                node_name(c->x, a->node));
}

static void finished(struct coordinated *c, const struct coordinator_action *a)
{
        struct coordinator_action complete = *a;
        bool unwanted = a->kind == COORDINATOR_UNWANTED;
        struct fault fault;

        if (unwanted && drop_admit(c->x, c->name, &fault)) {
                log_warning_for(c->uid,
                                "job %s: cannot be dropped, although its ranks asked for it: %s",
                                c->name, fault.text);
                unwanted = false;
        }
        complete.kind = COORDINATOR_FINISHED;
        log_info_for(c->uid, "job %s: finished after step %llu%s", c->name,
                     (unsigned long long)c->state.step.version,
                     unwanted ? "; it is dropped, as its ranks asked" : "");
        if (unwanted) {
                drop_order(c->x, c->name, c->x->cluster->self, 0, NULL);
                return;
        }
        /* forgets whom the last step waited for: a finished job that somebody waits for keeps its
         * place */
        for (uint32_t n = 0; n < c->x->cluster->n_nodes; n++)
                free(STEAL(c->reports[n]));
        coordinated_tell(c);
        part(c, &complete);
}

/* ---- opening ----------------------------------------------------------------------------- */

static void stands(struct coordinated *c)
{
        crash_point(CRASH_COORDINATOR_RECOVERING);
        log_info_for(c->uid, "job %s: stands at version %llu", c->name,
                     (unsigned long long)c->state.step.version);
}

static void unknown(struct coordinated *c, uint32_t node, bool waited)
{
        const char *name = node_name(c->x, node);

        if (waited || !node_set_has(c->state.untold, node))
                log_info_for(c->uid, "job %s: node %s has not said what it has of the job: %s",
                             c->name, name,
                             waited ? "waiting for the node" : "going on without the node");
        else if (c->state.may_be_there)
                log_warning_for(c->uid,
                                "job %s: the job may be on node %s: start the node's daemon, or "
                                "give the job "
                                "another name, or, if the node is dead, see takeover in zeroctl(1)",
                                c->name, name);
        else
                log_warning_for(
                        c->uid,
                        "job %s: node %s may have steps of the job that no other node has: start "
                        "the node's daemon, or drop the job and restore it from a checkpoint",
                        c->name, name);
}

/* Deletes what the node has made of the job; but not what a restore puts in its place. */
static void discard(struct coordinated *c, uint32_t node)
{
        Zero__LinkMessage m = job_message(c->name);
        Zero__Drop drop = ZERO__DROP__INIT;

        if (restore_runs(c->x, c->name))
                return;
        m.body_case = ZERO__LINK_MESSAGE__BODY_DROP;
        drop.made = true;
        m.drop = &drop;
        fabric_send(c->x->fabric, node, &m); /* to this node, too: behind what it was asked */
}

static void closed(struct coordinated *c)
{
        for (uint32_t h = 0; h < placement_holders(&c->state.step.placement); h++)
                if (c->fills[h])
                        fill_cancel(c->fills[h]);
        list_remove(&c->link);
        coordinated_unref(c);
}

/* ---- all actions ------------------------------------------------------------------------- */

static void states_run(struct coordinated *c, const struct coordinator_action *a)
{
        switch (a->kind) {
        case COORDINATOR_SETTLE:
                placing_settle(c, a->node);
                break;
        case COORDINATOR_FILL:
                placing_fill(c, a);
                break;
        case COORDINATOR_FILL_OVER:
                log_info_for(c->uid, "job %s: the shards of owner %u are on node %s again", c->name,
                             holder_owner(&c->state.step.placement, a->holder),
                             node_name(c->x, holder_node(&c->state.step.placement, a->holder)));
                break;
        case COORDINATOR_FILL_AGAIN:
                log_warning("job %s: node %s did not get its shards: %s; trying again", c->name,
                            node_name(c->x, holder_node(&c->state.step.placement, a->holder)),
                            c->state.note.text);
                break;
        case COORDINATOR_WHOLE:
                placing_whole(c);
                break;
        case COORDINATOR_PLACED:
                placing_placed(c, a->node);
                break;
        case COORDINATOR_TAKE_BACK:
                placing_take_back(c, a->flag);
                break;
        case COORDINATOR_HINDERED:
                log_error_for(c->uid, "job %s: %s", c->name, c->state.fault.text);
                break;
        case COORDINATOR_DISCARD:
                discard(c, a->node);
                break;
        default:
                closed(c);
        }
}

static void steps_run(struct coordinated *c, const struct coordinator_action *a)
{
        switch (a->kind) {
        case COORDINATOR_START:
                start(c);
                break;
        case COORDINATOR_RESIZED:
                resized(c, a->rank);
                break;
        case COORDINATOR_ANSWER:
                answer_to(c, a->node, a->call, &c->state.note);
                break;
        case COORDINATOR_PREPARE:
                prepare(c, a->flag);
                break;
        case COORDINATOR_REDUCED:
                reduced_tell(c);
                break;
        case COORDINATOR_DECIDE:
        case COORDINATOR_NORM:
                decided_tell(c, a->kind == COORDINATOR_NORM);
                break;
        case COORDINATOR_REFUSE:
                refuse(c);
                break;
        case COORDINATOR_TELL_DECISION:
                decision_send(c, a->node);
                break;
        default:
                states_run(c, a);
        }
}

static void action_run(struct coordinated *c, const struct coordinator_action *a)
{
        switch (a->kind) {
        case COORDINATOR_ASK:
                opening_ask(c, a->node, a->flag);
                break;
        case COORDINATOR_UNKNOWN:
                unknown(c, a->node, a->flag);
                break;
        case COORDINATOR_STANDS:
                stands(c);
                break;
        case COORDINATOR_JOIN_END:
                join_over(c, a->join);
                break;
        case COORDINATOR_TELL_BACK:
        case COORDINATOR_TELL_LEFT:
        case COORDINATOR_TELL_FENCED:
                part(c, a);
                break;
        case COORDINATOR_FINISHED:
        case COORDINATOR_UNWANTED:
                finished(c, a);
                break;
        default:
                steps_run(c, a);
        }
}

/* An action may cause another event, whose actions come after those that are left. */
void coordinated_event(struct coordinated *c, struct coordinator_event e)
{
        e.now_ms = engine_now(c->x);
        e.linked = c->x->linked;
        e.up = c->x->up;
        coordinated_ref(c);
        coordinator_step(&c->state, &e, &c->actions);
        c->world_size = c->state.step.world_size;
        while (c->acted < c->actions.n) {
                const struct coordinator_action a = c->actions.items[c->acted++];

                action_run(c, &a);
        }
        c->acted = c->actions.n = 0;
        coordinated_unref(c);
}
