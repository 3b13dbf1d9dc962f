/* The job's coordinator: daemon/job/rules/coordinator.h as it is.  Messages become events and actions
 * become messages, as in daemon/cluster/coordinator. */
#include "client/simulate/simulate.h"

#include <errno.h>
#include <stdlib.h>

#include "proto/cleanup.h"

struct coordination {
        struct coordinator state;
        struct coordinator_actions actions;
        uint32_t acted;
        bool begun;
        const char **names; /* [node] */
        node_set all;
        struct step_params params;
        struct votes vote; /* of every holder: its part of the norm is 1 */
};

int coordination_new(struct world *w)
{
        struct coordination *c = calloc(1, sizeof *c);
        uint32_t nodes = w->d->nodes;

        w->coordination = c;
        if (c)
                c->names = calloc(nodes, sizeof *c->names);
        if (!c || !c->names)
                return -ENOMEM;
        for (uint32_t n = 0; n < nodes; n++) {
                c->names[n] = "a node";
                node_set_add(&c->all, n);
        }
        c->params.n_sets = 1;
        c->params.loss_scale = 1;
        c->vote.finite = true;
        exact_sum_init(&c->vote.norm);
        exact_sum_add(&c->vote.norm, 1);
        return coordinator_init(&c->state,
                                &(struct coordinator_job){ .name = w->d->job,
                                                           .nodes = c->names,
                                                           .n_nodes = nodes,
                                                           .world_size = nodes * w->d->ranks,
                                                           .loss_scale = 1 },
                                &w->d->placement);
}

void coordination_free(struct coordination *c)
{
        if (!c)
                return;
        while (c->state.joins.next && !list_empty(&c->state.joins)) {
                struct join *j = CONTAINER_OF(c->state.joins.next, struct join, link);

                list_remove(&j->link);
                free(j);
        }
        coordinator_deinit(&c->state);
        free(c->actions.items);
        free(c->names);
        free(c);
}

/* ---- actions ----------------------------------------------------------------------------- */

static void tell(struct world *w, uint32_t node, struct message m)
{
        m.from = w->coordinator;
        m.to = node;
        world_send(w, m);
}

static void tell_all(struct world *w, struct message m)
{
        for (uint32_t n = 0; n < w->d->nodes; n++)
                tell(w, n, m);
}

static void start(struct world *w)
{
        const struct step *s = &w->coordination->state.step;

        w->first_attempt = s->attempt;
        tell_all(w, (struct message){
                            .kind = KIND_start, .version = s->version, .attempt = s->attempt });
}

static void prepare(struct world *w)
{
        const struct step *s = &w->coordination->state.step;
        node_set left = placement_nodes(&s->placement);

        for (; node_set_any(left); node_set_remove(&left, node_set_first(left)))
                tell(w, node_set_first(left),
                     (struct message){ .kind = KIND_prepare, .attempt = s->attempt });
}

static void decided(struct world *w)
{
        const struct step *s = &w->coordination->state.step;

        tell_all(w, (struct message){ .kind = KIND_decision,
                                      .version = s->version,
                                      .attempt = s->decided_attempt,
                                      .flag = s->decision.commit });
}

/* A Ready is answered, or a rank's Join. */
static void answer(struct world *w, uint32_t node, uint64_t call, const struct fault *fault)
{
        if (fault->status)
                w->fault = *fault;
        tell(w, node, (struct message){ .kind = KIND_answer, .phase = call != 0, .attempt = call });
}

static void action_run(struct world *w, const struct coordinator_action *a)
{
        switch (a->kind) {
        case COORDINATOR_ASK:
                tell(w, a->node, (struct message){ .kind = KIND_open, .flag = a->flag });
                break;
        case COORDINATOR_JOIN_END:
                answer(w, a->join->node, 0, &a->join->fault);
                free(a->join);
                break;
        case COORDINATOR_START:
                start(w);
                break;
        case COORDINATOR_ANSWER:
                answer(w, a->node, a->call, &w->coordination->state.note);
                break;
        case COORDINATOR_PREPARE:
                prepare(w);
                break;
        case COORDINATOR_DECIDE:
                decided(w);
                break;
        case COORDINATOR_STANDS: /* a log line */
                break;
        default:
                fault_set(&w->fault, ZERO_EINTERNAL, "the coordinator does %d", (int)a->kind);
        }
}

/* ---- events ------------------------------------------------------------------------------ */

static void event(struct world *w, struct coordinator_event e)
{
        struct coordination *c = w->coordination;

        e.now_ms = w->now / 1000000;
        e.linked = e.up = c->all;
        coordinator_step(&c->state, &e, &c->actions);
        while (c->acted < c->actions.n) {
                const struct coordinator_action a = c->actions.items[c->acted++];

                action_run(w, &a);
        }
        c->acted = c->actions.n = 0;
}

/* The first rank to join makes the node begin to coordinate. */
static void begin(struct world *w)
{
        w->coordination->begun = true;
        for (uint32_t n = 0; n < w->d->nodes; n++)
                event(w, (struct coordinator_event){ .kind = COORDINATOR_LINKS, .node = n });
        for (uint32_t n = 0; n < w->d->nodes; n++)
                event(w, (struct coordinator_event){ .kind = COORDINATOR_NODE_UP, .node = n });
}

static void on_join(struct world *w, const struct message *m)
{
        struct join *j = calloc(1, sizeof *j);

        if (!j)
                abort(); /* nothing sensible is left to do */
        *j = (struct join){ .node = m->from,
                            .rank = m->rank,
                            .world_size = w->d->nodes * w->d->ranks,
                            .session = m->rank + 1 };
        if (!w->coordination->begun)
                begin(w);
        event(w, (struct coordinator_event){ .kind = COORDINATOR_JOIN, .join = j });
}

static void on_opened(struct world *w, const struct message *m)
{
        const struct node *n = &w->nodes[m->from];
        struct told_state states[OWNER_REPLICAS];
        struct standing *standings = calloc(OWNER_REPLICAS, sizeof *standings);

        if (!standings)
                abort(); /* nothing sensible is left to do */
        for (uint32_t i = 0; i < n->n_replicas; i++) {
                standings[i].done = standings[i].fresh = true;
                standings[i].vote.finite = true;
                exact_sum_init(&standings[i].vote.norm);
                states[i] = (struct told_state){ .place = { .n_owners = w->d->placement.n_owners,
                                                            .owner = n->replicas[i].owner,
                                                            .copy = n->replicas[i].copy },
                                                 .attempt = n->replicas[i].record.attempt,
                                                 .standing = &standings[i] };
        }
        event(w, (struct coordinator_event){ .kind = COORDINATOR_OPENED,
                                             .node = m->from,
                                             .known = n->has_job,
                                             .created = m->flag,
                                             .attempt = n->attempt,
                                             .n_states = n->n_replicas,
                                             .states = states,
                                             .text = "" });
        free(standings);
}

void coordination_handle(struct world *w, const struct message *m)
{
        struct coordination *c = w->coordination;
        struct coordinator_event e = { .node = m->from,
                                       .owner = m->owner,
                                       .copy = m->copy,
                                       .rank = m->rank,
                                       .attempt = m->attempt,
                                       .call = m->attempt,
                                       .params = &c->params,
                                       .vote = &c->vote };

        switch (m->kind) {
        case KIND_join:
                on_join(w, m);
                return;
        case KIND_opened:
                on_opened(w, m);
                return;
        case KIND_ready:
                e.kind = COORDINATOR_READY;
                break;
        case KIND_prepared:
                e.kind = COORDINATOR_VOTE;
                break;
        default: /* done */
                e.kind = COORDINATOR_DONE;
        }
        event(w, e);
}
