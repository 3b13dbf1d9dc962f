/* What the coordinator of a job wants done: messages, and lines for the log (coordinator.h). */
#include "daemon/coordinator/coordinator.h"

#include <stdlib.h>

#include "daemon/base/crash.h"
#include "daemon/base/log.h"
#include "daemon/store/blobs.h"
#include "proto/cleanup.h"

/* ---- decisions -------------------------------------------------------------------------- */

static void decision_fill(const struct coordinated *c, Zero__Decision *ret)
{
        const struct step *s = &c->state.step;

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

/* NULL: there was none. */
static Zero__Decision *last_decision(const struct coordinated *c, Zero__Decision *ret)
{
        zero__decision__init(ret);
        decision_fill(c, ret);
        return c->state.step.decided_attempt ? ret : NULL;
}

static void decision_to(struct coordinated *c, uint32_t node, Zero__Decision *d)
{
        Zero__LinkMessage m = coordinated_message(c);

        m.body_case = ZERO__LINK_MESSAGE__BODY_DECISION;
        m.decision = d;
        fabric_send(c->x->fabric, node, &m);
}

static void decision_send(struct coordinated *c, uint32_t node)
{
        Zero__Decision d;

        if (last_decision(c, &d))
                decision_to(c, node, &d);
}

static void norm_fill(const struct step *s, Zero__Decision *ret)
{
        ret->norm_only = true;
        ret->attempt = s->attempt;
        ret->grad_norm = s->norm;
        ret->finite = s->norm == s->norm; /* the norm is NaN if any gradient is */
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

/* The ranks' calls fail; the attempt goes on, and may be ended by another call. */
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
        Zero__Kept *k = &c->kept[*n];

        zero__kept__init(k);
        k->rank = rank;
        k->blob = (ProtobufCBinaryData){ bytes, (uint8_t *)data };
        c->kept_pointers[(*n)++] = k;
}

/* What all ranks kept with the last decision is in this node's own state: it is an owner. */
static size_t start_kept(struct coordinated *c)
{
        const struct job *job = job_find(c->x, c->name);
        const struct holding *h = job ? holding_first(job) : NULL;
        size_t n = 0;

        for (uint32_t r = 0; h && r < c->state.step.world_size; r++) {
                size_t bytes = 0;
                const void *data = state_blob(h->state, r, &bytes);

                if (bytes)
                        kept_add(c, &n, r, data, bytes);
        }
        return n;
}

/* Every node hears where the job stands, and what its ranks kept with the last step. */
static void start(struct coordinated *c)
{
        const struct step *s = &c->state.step;
        Zero__LinkMessage m = coordinated_message(c);
        Zero__Start start = ZERO__START__INIT;
        Zero__Decision last;

        crash_point(CRASH_COORDINATOR_STARTING);
        start.epoch = s->epoch;
        start.version = s->version;
        start.attempt = s->attempt;
        start.loss_scale = s->loss_scale;
        start.n_node_of_rank = s->world_size;
        start.node_of_rank = s->node_of_rank;
        start.n_kept = start_kept(c);
        start.kept = c->kept_pointers;
        start.last = last_decision(c, &last);
        m.body_case = ZERO__LINK_MESSAGE__BODY_START;
        m.start = &start;
        send_all(c->x, &m);
        crash_point(CRASH_COORDINATOR_STARTED);
        log_info_for(c->uid, "job %s: all %u ranks are there, version %llu", c->name, s->world_size,
                     (unsigned long long)s->version);
}

static void prepare(struct coordinated *c)
{
        const struct step *s = &c->state.step;
        Zero__LinkMessage m = coordinated_message(c);
        Zero__Prepare prepare = ZERO__PREPARE__INIT;
        struct step_params_message params;

        prepare.attempt = s->attempt;
        if (!s->norm_only) {
                prepare.params = step_params_to_message(&s->params, &params);
                for (uint32_t r = 0; r < s->world_size; r++)
                        if (c->handed[r].bytes)
                                kept_add(c, &prepare.n_kept, r, c->handed[r].data,
                                         c->handed[r].bytes);
                prepare.kept = c->kept_pointers;
        }
        m.body_case = ZERO__LINK_MESSAGE__BODY_PREPARE;
        m.prepare = &prepare;
        crash_point(CRASH_COORDINATOR_READY);
        for (uint64_t left = placement_nodes(&s->view); left; left &= left - 1) {
                fabric_send(c->x->fabric, (uint32_t)__builtin_ctzll(left), &m);
                crash_point(CRASH_COORDINATOR_ASKING);
        }
}

/* Another number of ranks: what the old ones handed in is void. */
static void resized(struct coordinated *c, uint32_t before)
{
        for (uint32_t r = 0; r < c->n_handed; r++)
                kept_clear(&c->handed[r]);
        log_info_for(c->uid, "job %s: the world size changes from %u to %u", c->name, before,
                     c->state.step.world_size);
}

/* ---- ranks -------------------------------------------------------------------------------- */

static void answer_to(struct coordinated *c, uint32_t node, uint64_t call,
                      const struct fault *fault)
{
        Zero__LinkMessage m = coordinated_message(c);

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
        Zero__LinkMessage m = coordinated_message(c);

        part->rank = a->rank;
        part->told = true;
        m.epoch = a->epoch;
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
                part.fails = !a->flag && c->state.step.fail_on_lost;
        }
        if (a->kind == COORDINATOR_FINISHED)
                part.finish = ZERO__FINISH__COMPLETE;
        part_send(c, a, &part);
        if (part.back)
                log_info_for(c->uid, "job %s: rank %u is back", c->name, a->rank);
        else if (a->kind == COORDINATOR_TELL_LEFT && !a->flag)
                log_warning_for(c->uid, "job %s: rank %u on %s was lost", c->name, a->rank,
                                node_name(c->x, a->node));
}

static void finished(struct coordinated *c, const struct coordinator_action *a)
{
        bool unwanted = a->kind == COORDINATOR_UNWANTED;

        log_info_for(c->uid, "job %s: finished after step %llu%s", c->name,
                     (unsigned long long)c->state.step.version,
                     unwanted ? "; it is dropped, as its ranks asked" : "");
        if (unwanted)
                drop_order(c->x, c->name, c->x->cluster->self, 0, NULL);
        else
                part(c, a);
}

/* ---- states ------------------------------------------------------------------------------ */

/* A question or a fill whose answer is to come. */
struct asked {
        struct coordinated *c;
        uint32_t of;    /* node, or holder */
        uint64_t epoch; /* of the answer's states */
};

static struct asked *asked_new(struct coordinated *c, uint32_t of, uint64_t epoch)
{
        struct asked *a = malloc(sizeof *a);

        if (!a)
                abort(); /* some bytes: nothing sensible is left to do */
        *a = (struct asked){ c, of, epoch };
        coordinated_ref(c);
        return a;
}

static void settle_answered(void *arg, int status, const char *text, const Zero__LinkMessage *m)
{
        struct asked *a = arg;

        coordinated_event(a->c, (struct coordinator_event){ .kind = COORDINATOR_SETTLED,
                                                            .node = a->of,
                                                            .epoch = a->epoch,
                                                            .status = status,
                                                            .text = text });
        coordinated_unref(a->c);
        free(a);
}

static void settle(struct coordinated *c, uint32_t node)
{
        const uint64_t epoch = c->state.former->place.epoch;
        Zero__LinkMessage m = coordinated_message(c);
        Zero__Settle settle = ZERO__SETTLE__INIT;
        Zero__Decision last;

        settle.placement = epoch;
        settle.last = last_decision(c, &last);
        m.body_case = ZERO__LINK_MESSAGE__BODY_SETTLE;
        m.settle = &settle;
        call_send(c->x, node, &m, CALL_MS, settle_answered, asked_new(c, node, epoch));
}

static void filled(struct coordinated *c, uint32_t holder, int status, const char *text,
                   const Zero__Standing *standing)
{
        struct standing *s = calloc(1, sizeof *s);
        struct told_state told;
        struct coordinator_event e = {
                .kind = COORDINATOR_FILLED, .holder = holder, .n_states = 1, .states = &told
        };
        struct fault fault;

        if (!s)
                abort(); /* some kilobytes: nothing sensible is left to do */
        c->fills[holder] = NULL;
        e.status = status ? status : standing_read(standing, &told, s, &fault);
        e.text = status ? text : fault.text;
        coordinated_event(c, e);
        free(s);
}

static void fill_ended(void *arg, int status, const char *text, const Zero__Standing *standing)
{
        struct asked *a = arg;

        filled(a->c, a->of, status, text, standing);
        coordinated_unref(a->c);
        free(a);
}

static void fill(struct coordinated *c, const struct coordinator_action *action)
{
        struct coordinator_sources sources;
        Zero__Decision last;
        struct fill_order order = { .job = c->name,
                                    .uid = c->uid,
                                    .world_size = c->state.step.world_size,
                                    .reduce_dtype = c->reduce_dtype,
                                    .layout = c->message,
                                    .to = &c->state.step.view,
                                    .holder = action->holder,
                                    .version = c->state.step.version,
                                    .attempt = action->attempt,
                                    .last = last_decision(c, &last) };
        struct asked *a;

        coordinator_sources(&c->state, action->holder, &sources);
        order.from = sources.from;
        order.readable = sources.readable;
        order.source_puts = sources.puts;
        order.puts = sources.puts_then;
        a = asked_new(c, action->holder, sources.from->epoch);
        c->fills[action->holder] = fill_start(c->x, &order, fill_ended, a);
        if (c->fills[action->holder])
                return;
        fill_ended(a, ZERO_EBUSY, "out of memory", NULL);
}

static void placed(struct coordinated *c, uint32_t node)
{
        Zero__LinkMessage m = coordinated_message(c);
        Zero__Placed placed = ZERO__PLACED__INIT;

        placed.placement = c->state.step.view.epoch;
        m.body_case = ZERO__LINK_MESSAGE__BODY_PLACED;
        m.placed = &placed;
        fabric_send(c->x->fabric, node, &m);
}

static void whole(struct coordinated *c)
{
        crash_point(CRASH_MOVE_WHOLE);
        log_info_for(c->uid, "job %s: all its shards are where owner list %llu has them", c->name,
                     (unsigned long long)c->state.step.view.epoch);
        coordinated_tell(c); /* that it moves no more */
}

static void take_back(struct coordinated *c, bool first)
{
        const struct coordinator *s = &c->state;

        if (first)
                log_error("%s; the owners before, of epoch %llu, come back", s->refused.text,
                          (unsigned long long)s->former->place.epoch);
        view_take_back(c->x, &s->former->place, s->refused.text);
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

        if (waited || !(c->state.untold >> node & 1))
                log_info_for(c->uid, "job %s: node %s has not said what it has of the job: %s",
                             c->name, name, waited ? "it is waited for" : "going on without it");
        else if (c->state.may_be_there)
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

/* Here at once: ranks may come anew. */
static void discard(struct coordinated *c, uint32_t node)
{
        Zero__LinkMessage m = coordinated_message(c);
        Zero__Drop drop = ZERO__DROP__INIT;

        m.body_case = ZERO__LINK_MESSAGE__BODY_DROP;
        m.drop = &drop;
        if (node == c->x->cluster->self)
                job_discard(c->x, c->name);
        else
                fabric_send(c->x->fabric, node, &m);
}

static void closed(struct coordinated *c)
{
        for (uint32_t h = 0; h < placement_holders(&c->state.step.view); h++)
                if (c->fills[h])
                        fill_cancel(c->fills[h]);
        list_remove(&c->link);
        coordinated_unref(c);
}

/* ---- each its own ---------------------------------------------------------------------------- */

static void states_run(struct coordinated *c, const struct coordinator_action *a)
{
        switch (a->kind) {
        case COORDINATOR_SETTLE:
                settle(c, a->node);
                break;
        case COORDINATOR_FILL:
                fill(c, a);
                break;
        case COORDINATOR_FILL_OVER:
                log_info_for(c->uid, "job %s: the shards of owner %u are on node %s again", c->name,
                             holder_owner(&c->state.step.view, a->holder),
                             node_name(c->x, holder_node(&c->state.step.view, a->holder)));
                break;
        case COORDINATOR_FILL_AGAIN:
                log_warning("job %s: node %s did not get its shards: %s; trying again", c->name,
                            node_name(c->x, holder_node(&c->state.step.view, a->holder)),
                            c->state.note.text);
                break;
        case COORDINATOR_WHOLE:
                whole(c);
                break;
        case COORDINATOR_PLACED:
                placed(c, a->node);
                break;
        case COORDINATOR_TAKE_BACK:
                take_back(c, a->flag);
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
                prepare(c);
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

void action_run(struct coordinated *c, const struct coordinator_action *a)
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
