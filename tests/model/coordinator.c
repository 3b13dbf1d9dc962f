/*
 * The coordinator of a world: daemon/job/rules/coordinator.h as it is.  Messages become events and
 * actions become messages, as in daemon/cluster/coordinator.
 */
#include <string.h>

#include "machine.h"

/* ---- actions ------------------------------------------------------------------------------ */

static void decision_send(struct world *w, uint32_t node)
{
        const struct coordination *c = &w->c;

        send(w, COORDINATOR, node,
             (struct message){ .type = DECISION,
                               .attempt = c->decided_attempt,
                               .version = c->version,
                               .decision = c->decision,
                               .skipped = c->skipped });
}

static void start(struct world *w)
{
        const struct coordination *c = &w->c;
        struct message m = {
                .type = START, .version = c->version, .attempt = c->attempt, .scale = c->scale
        };

        memcpy(m.place, c->node_of_rank, RANKS);
        if (c->decided_attempt) {
                m.last = c->decided_attempt;
                m.decision = c->decision;
                m.skipped = c->skipped;
        }
        send_all(w, COORDINATOR, m);
}

static void stands(struct world *w)
{
        const struct coordination *c = &w->c;

        if (c->decided_attempt)
                truth_decide(w, c->decided_attempt, c->version, c->decision);
        REQUIRE(c->version == w->truth[0].version && c->decided_attempt == w->truth[0].attempt,
                "the job is taken up at version %u", c->version);
}

static void decided(struct world *w)
{
        truth_decide(w, w->c.decided_attempt, w->c.version, w->c.decision);
        truth_rank_slots(w);
        for (uint32_t n = 0; n < bounds.n_nodes; n++)
                decision_send(w, n);
}

static void fill(struct world *w, uint32_t holder, u8 attempt, u8 source)
{
        const struct coordination *c = &w->c;

        send(w, COORDINATOR, holder_node(&placement, holder),
             (struct message){ .type = FILL,
                               .copy = (u8)holder_copy(&placement, holder),
                               .flag = source,
                               .version = c->version,
                               .attempt = attempt,
                               .last = c->decided_attempt,
                               .decision = c->decision,
                               .skipped = c->skipped });
}

static void join_end(struct world *w, const struct join *j)
{
        send(w, COORDINATOR, j->node,
             (struct message){ .type = JOIN_ANSWER,
                               .session = (u8)j->session,
                               .status = (u8)j->fault.status });
}

static void run(struct world *w, const struct coordinator_action *a)
{
        switch (a->kind) {
        case COORDINATOR_JOIN_END:
                join_end(w, a->join);
                break;
        case COORDINATOR_TELL_FENCED:
                send(w, COORDINATOR, a->node,
                     (struct message){ .type = PART_TOLD,
                                       .rank = (u8)a->rank,
                                       .session = (u8)a->session,
                                       .flag = 1 });
                break;
        case COORDINATOR_START:
                start(w);
                break;
        case COORDINATOR_PREPARE:
                for (uint32_t n = 0; n < bounds.n_nodes; n++)
                        if (is_owner(n))
                                send(w, COORDINATOR, n,
                                     (struct message){ .type = PREPARE,
                                                       .attempt = w->c.attempt,
                                                       .scale = w->c.params_scale,
                                                       .flag = w->c.norm >> 1 & 1 });
                break;
        case COORDINATOR_DECIDE:
                decided(w);
                break;
        case COORDINATOR_NORM:
                send_all(w, COORDINATOR,
                         (struct message){
                                 .type = DECISION, .attempt = w->c.attempt, .flag = 1 });
                break;
        case COORDINATOR_TELL_DECISION:
                decision_send(w, a->node);
                break;
        case COORDINATOR_STANDS:
                stands(w);
                break;
        case COORDINATOR_FILL: /* where its source is, as it was when the action came up */
                fill(w, a->holder, (u8)a->attempt, (u8)a->call);
                break;
        case COORDINATOR_ANSWER:
                if (a->call)
                        send(w, COORDINATOR, a->node,
                             (struct message){ .type = READY_REFUSED,
                                               .status = (u8)a->call,
                                               .attempt = w->c.attempt });
                break;
        case COORDINATOR_TELL_BACK: /* who is late is told by these */
        case COORDINATOR_TELL_LEFT:
        case COORDINATOR_FILL_OVER:
        case COORDINATOR_FILL_AGAIN:
                break;
        default:
                violate("the coordinator does %u: %s", a->kind, machine_fault());
        }
}

/* A call to a node whose link is not up ends. */
static void event(struct world *w, struct coordinator_event e)
{
        struct coordinator_action actions[MACHINE_ACTIONS];
        uint32_t n, unsent = 0;

        e.linked = e.up = node_set_from_word(w->nodes[COORDINATOR].up);
        n = machine_step(w, &e, actions);
        for (uint32_t i = 0; i < n; i++)
                if (actions[i].kind != COORDINATOR_ASK)
                        run(w, &actions[i]);
                else if (!send(w, COORDINATOR, actions[i].node,
                               (struct message){ .type = OPEN, .flag = actions[i].flag }))
                        unsent |= 1u << actions[i].node;
        for (; unsent; unsent &= unsent - 1)
                event(w, (struct coordinator_event){ .kind = COORDINATOR_OPEN_FAILED,
                                                     .node = (uint32_t)__builtin_ctz(unsent),
                                                     .status = ZERO_EPEER });
}

/* ---- events ------------------------------------------------------------------------------- */

static void node_event(struct world *w, enum coordinator_event_kind kind, uint32_t node, u8 cut)
{
        event(w, (struct coordinator_event){
                         .kind = kind, .node = node, .cut = node_set_from_word(cut) });
}

void coordinator_new(struct world *w)
{
        struct coordination *c = &w->c;

        memset(c, 0, sizeof *c);
        memset(c->node_of_rank, NOBODY, sizeof c->node_of_rank);
        memset(c->cut, (1 << bounds.n_nodes) - 1, bounds.n_nodes);
        c->scale = c->params_scale = 64;
        c->done = (u8)((1 << HOLDERS) - 1);
        node_event(w, COORDINATOR_NODE_UP, COORDINATOR, 0);
}

void coordinator_up(struct world *w, uint32_t node)
{
        node_event(w, COORDINATOR_NODE_UP, node, 0);
}

void coordinator_tick(struct world *w)
{
        event(w, (struct coordinator_event){ .kind = COORDINATOR_TICK, .known = true });
}

/* First the calls to the node end. */
void coordinator_down(struct world *w, uint32_t node)
{
        if (w->c.nodes[node] == NODE_ASKED)
                event(w, (struct coordinator_event){ .kind = COORDINATOR_OPEN_FAILED,
                                                     .node = node,
                                                     .status = ZERO_EPEER });
        for (uint32_t h = 0; h < placement_holders(&placement); h++)
                if (holder_node(&placement, h) == node && w->c.filling >> h & 1)
                        event(w, (struct coordinator_event){ .kind = COORDINATOR_FILLED,
                                                             .holder = h,
                                                             .status = ZERO_EPEER,
                                                             .text = "" });
        node_event(w, COORDINATOR_NODE_DOWN, node, 0);
}

static void opened(struct world *w, uint32_t node, const struct message *m)
{
        struct told_state states[COPIES];
        uint32_t n = 0;

        for (uint32_t i = 0; i < placement.copies && is_owner(node); i++)
                if (m->stands[i].attempt)
                        states[n++] = machine_told(holder_on(node, i), &m->stands[i]);
        event(w, (struct coordinator_event){ .kind = COORDINATOR_OPENED,
                                             .node = node,
                                             .known = m->flag,
                                             .attempt = m->attempt,
                                             .n_states = n,
                                             .states = states });
}

static void filled(struct world *w, uint32_t node, const struct message *m)
{
        uint32_t holder = holder_on(node, m->copy);
        struct told_state told;

        if (!m->status)
                told = machine_told(holder, &m->stands[m->copy]);
        event(w, (struct coordinator_event){ .kind = COORDINATOR_FILLED,
                                             .holder = holder,
                                             .status = m->status,
                                             .text = "",
                                             .n_states = 1,
                                             .states = &told });
}

static void joined(struct world *w, uint32_t node, const struct message *m)
{
        event(w, (struct coordinator_event){ .kind = COORDINATOR_JOIN,
                                             .join = machine_join(w, node, m->rank, m->session) });
}

static void holder_event(struct world *w, enum coordinator_event_kind kind, uint32_t node,
                         const struct message *m)
{
        uint32_t holder = holder_on(node, m->copy);

        event(w, (struct coordinator_event){ .kind = kind,
                                             .node = node,
                                             .owner = holder_owner(&placement, holder),
                                             .copy = m->copy,
                                             .attempt = m->attempt,
                                             .call = m->vote,
                                             .vote = m->vote ? vote_at(m->vote) : NULL,
                                             .norm_only = m->flag });
}

void coordinator_message(struct world *w, uint32_t from, const struct message *m)
{
        switch (m->type) {
        case JOIN:
                joined(w, from, m);
                break;
        case PART:
                event(w, (struct coordinator_event){ .kind = COORDINATOR_LEAVE,
                                                     .node = from,
                                                     .rank = m->rank,
                                                     .session = m->session });
                break;
        case OPENED:
                opened(w, from, m);
                break;
        case READY:
                event(w, (struct coordinator_event){ .kind = COORDINATOR_READY,
                                                     .node = from,
                                                     .rank = m->rank,
                                                     .attempt = m->attempt,
                                                     .params = m->flag ? NULL
                                                                       : machine_params(m->scale) });
                break;
        case PREPARED:
                holder_event(w, COORDINATOR_VOTE, from, m);
                break;
        case DONE:
                holder_event(w, COORDINATOR_DONE, from, m);
                break;
        case FILLED:
                filled(w, from, m);
                break;
        case LINKS:
                node_event(w, COORDINATOR_LINKS, from, m->flag);
                break;
        default:
                violate("the coordinator got message %u", m->type);
        }
}
