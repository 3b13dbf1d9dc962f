/*
 * The job's coordinator on a node: daemon/job/rules/coordinator.h as it is.  Messages become events and
 * actions become messages, as in daemon/cluster/coordinator; see moves.h.
 */
#include "moves.h"

#include <string.h>

static void event(struct world *w, uint32_t self, struct coordinator_event e);

/* ---- time: it passes where nobody who may come is waited for, or in haste ---- */

enum { EARLY_MS = 1, LATE_MS = 10 * OTHERS_MS };

static uint64_t now(const struct world *w, uint32_t self)
{
        const struct coordination *c = &w->nodes[self].c;

        for (uint32_t n = 0; n < bounds.n_nodes && !c->hasty; n++)
                if (!w->nodes[n].dead && c->nodes[n] != NODE_KNOWN)
                        return EARLY_MS;
        return LATE_MS;
}

/* ---- actions ------------------------------------------------------------------------------- */

static void decision_send(struct world *w, uint32_t self, uint32_t node)
{
        const struct coordination *c = &w->nodes[self].c;

        send(w, self, node,
             (struct message){ .type = DECISION, .attempt = c->decided, .version = c->version });
}

static void start(struct world *w, uint32_t self)
{
        const struct coordination *c = &w->nodes[self].c;

        truth_stands(w, c->decided, c->version);
        if (c->decided > w->truth.attempt) /* it was decided again, or at last */
                truth_decide(w, c->decided, c->version);
        for (uint32_t n = 0; n < bounds.n_nodes; n++)
                send(w, self, n,
                     (struct message){
                             .type = START, .version = c->version, .attempt = c->attempt });
}

static void prepare(struct world *w, uint32_t self)
{
        const struct placement *placement = placement_of(w, self);

        for (uint32_t o = 0; o < placement->n_owners; o++)
                send(w, self, placement->node[o],
                     (struct message){ .type = PREPARE, .attempt = w->nodes[self].c.attempt });
}

static void decided(struct world *w, uint32_t self)
{
        const struct coordination *c = &w->nodes[self].c;

        truth_voted(w, w->nodes[self].epoch, c->decided);
        truth_decide(w, c->decided, c->version);
        for (uint32_t n = 0; n < bounds.n_nodes; n++)
                decision_send(w, self, n);
}

/* False: there is no link. */
static bool fill(struct world *w, uint32_t self, const struct machine_action *a)
{
        const struct coordination *c = &w->nodes[self].c;
        const struct placement *placement = placement_of(w, self);

        return send(w, self, holder_node(placement, a->action.holder),
                    (struct message){ .type = FILL,
                                      .copy = (u8)holder_copy(placement, a->action.holder),
                                      .version = c->version,
                                      .attempt = (u8)a->action.attempt,
                                      .last = c->decided,
                                      .epoch = a->from,
                                      .readable = a->readable });
}

/* Calls to a node whose link is lost end; the event that the node is down comes later. */
static void unsent(struct world *w, uint32_t self, const struct coordinator_action *a)
{
        if (a->kind == COORDINATOR_ASK)
                event(w, self,
                      (struct coordinator_event){ .kind = COORDINATOR_OPEN_FAILED,
                                                  .node = a->node,
                                                  .status = ZERO_EPEER });
        else
                event(w, self,
                      (struct coordinator_event){ .kind = COORDINATOR_FILLED,
                                                  .holder = a->holder,
                                                  .status = ZERO_EPEER,
                                                  .text = "" });
}

/* False: it was a call, and there is no link. */
static bool run(struct world *w, uint32_t self, const struct machine_action *a)
{
        struct coordination *c = &w->nodes[self].c;
        uint32_t node = a->action.node;

        switch (a->action.kind) {
        case COORDINATOR_ASK:
                return send(w, self, node,
                            (struct message){ .type = OPEN, .status = a->action.flag });
        case COORDINATOR_START:
                start(w, self);
                break;
        case COORDINATOR_PREPARE:
                prepare(w, self);
                break;
        case COORDINATOR_DECIDE:
                decided(w, self);
                break;
        case COORDINATOR_TELL_DECISION:
                decision_send(w, self, node);
                break;
        case COORDINATOR_SETTLE:
                send(w, self, node,
                     (struct message){ .type = SETTLE, .epoch = a->from, .last = c->decided });
                break;
        case COORDINATOR_FILL:
                return fill(w, self, a);
        case COORDINATOR_PLACED:
                send(w, self, node,
                     (struct message){ .type = PLACED, .epoch = w->nodes[self].epoch });
                break;
        case COORDINATOR_STANDS:
        case COORDINATOR_WHOLE:
                if (c->whole)
                        w->truth.whole = w->nodes[self].epoch;
                break;
        case COORDINATOR_CLOSED: /* no node that is up knows of the job: others may come up */
                *c = (struct coordination){ 0 };
                break;
        case COORDINATOR_ANSWER:
        case COORDINATOR_FILL_OVER:
        case COORDINATOR_FILL_AGAIN:
        case COORDINATOR_UNKNOWN:
        case COORDINATOR_HINDERED:
                break;
        default:
                violate("the coordinator does %u", a->action.kind);
        }
        return true;
}

static void event(struct world *w, uint32_t self, struct coordinator_event e)
{
        struct machine_action actions[MACHINE_ACTIONS];
        bool sent[MACHINE_ACTIONS];
        uint32_t n;

        if (!w->nodes[self].c.there)
                return;
        e.now_ms = now(w, self);
        e.linked = e.up = node_set_from_word(w->nodes[self].links | 1u << self);
        n = machine_step(w, self, &e, actions);
        for (uint32_t i = 0; i < n; i++)
                sent[i] = run(w, self, &actions[i]);
        for (uint32_t i = 0; i < n; i++)
                if (!sent[i])
                        unsent(w, self, &actions[i].action);
}

/* ---- events -------------------------------------------------------------------------- */

void coordinator_up(struct world *w, uint32_t self, uint32_t node)
{
        event(w, self, (struct coordinator_event){ .kind = COORDINATOR_NODE_UP, .node = node });
}

void coordinator_new(struct world *w, uint32_t self)
{
        w->nodes[self].c = (struct coordination){ .there = 1, .done = (u8)((1 << HOLDERS) - 1) };
        for (uint32_t n = 0; n < bounds.n_nodes; n++)
                if (linked(w, self, n))
                        coordinator_up(w, self, n);
}

/* First the calls to the node end. */
void coordinator_down(struct world *w, uint32_t self, uint32_t node)
{
        const struct coordination *c = &w->nodes[self].c;
        const struct placement *placement = placement_of(w, self);

        if (c->nodes[node] == NODE_ASKED)
                event(w, self,
                      (struct coordinator_event){ .kind = COORDINATOR_OPEN_FAILED,
                                                  .node = node,
                                                  .status = ZERO_EPEER });
        for (uint32_t h = 0; h < placement_holders(placement); h++)
                if (holder_node(placement, h) == node && c->filling >> h & 1)
                        event(w, self,
                              (struct coordinator_event){ .kind = COORDINATOR_FILLED,
                                                          .holder = h,
                                                          .status = ZERO_EPEER,
                                                          .text = "" });
        if (c->settling >> node & 1)
                event(w, self,
                      (struct coordinator_event){ .kind = COORDINATOR_SETTLED,
                                                  .node = node,
                                                  .epoch = c->old_placement - 1u,
                                                  .status = ZERO_EPEER,
                                                  .text = "" });
        event(w, self, (struct coordinator_event){ .kind = COORDINATOR_NODE_DOWN, .node = node });
}

static bool holders_known(const struct world *w, uint32_t self)
{
        const struct placement *placement = placement_of(w, self);

        for (uint32_t o = 0; o < placement->n_owners; o++)
                if (w->nodes[self].c.nodes[placement->node[o]] != NODE_KNOWN)
                        return false;
        return true;
}

bool coordinator_waits(const struct world *w, uint32_t self)
{
        const struct coordination *c = &w->nodes[self].c;

        return c->there && !c->settled && !c->hasty && holders_known(w, self);
}

/* Nodes with states of the job tell its coordinator, which may have given the job up. */
static bool is_claimed(const struct world *w, uint32_t self)
{
        for (uint32_t n = 0; n < bounds.n_nodes; n++)
                if (linked(w, self, n) && w->nodes[n].has_job == 1)
                        return true;
        return false;
}

void coordinator_tick(struct world *w, uint32_t self)
{
        if (w->nodes[self].c.there)
                event(w, self,
                      (struct coordinator_event){ .kind = COORDINATOR_TICK, .known = true });
        else if (is_claimed(w, self))
                coordinator_new(w, self);
}

void coordinator_hasten(struct world *w, uint32_t self)
{
        w->nodes[self].c.hasty = 1;
        coordinator_tick(w, self);
}

bool coordinator_can_step(const struct world *w, uint32_t self)
{
        const struct coordination *c = &w->nodes[self].c;

        return c->there && c->settled && !c->fault && c->phase == STEP_COLLECTING &&
               c->version < bounds.steps;
}

void coordinator_begin(struct world *w, uint32_t self)
{
        event(w, self,
              (struct coordinator_event){ .kind = COORDINATOR_READY,
                                          .node = self,
                                          .attempt = w->nodes[self].c.attempt,
                                          .params = &step_params });
        REQUIRE(w->nodes[self].c.phase == STEP_VOTING, "a step does not begin");
}

/* ---- messages ------------------------------------------------------------------------ */

static void opened(struct world *w, uint32_t self, uint32_t node, const struct message *m)
{
        struct told_state states[PLACEMENTS * COPIES];
        uint32_t n = 0;

        REQUIRE(m->status != 2, "node %u is asked while its job is made", node);
        for (uint32_t e = 0; e <= w->nodes[self].epoch; e++)
                for (uint32_t copy = 0; copy < COPIES; copy++)
                        if (m->stands[e][copy].attempt)
                                states[n++] = machine_told(node, e, copy, &m->stands[e][copy]);
        event(w, self,
              (struct coordinator_event){ .kind = COORDINATOR_OPENED,
                                          .node = node,
                                          .known = m->status,
                                          .attempt = m->attempt,
                                          .n_states = n,
                                          .states = states });
}

static void filled(struct world *w, uint32_t self, uint32_t node, const struct message *m)
{
        u8 epoch = w->nodes[self].epoch;
        struct told_state told;

        if (!m->status)
                told = machine_told(node, epoch, m->copy, &m->stands[epoch][m->copy]);
        event(w, self,
              (struct coordinator_event){ .kind = COORDINATOR_FILLED,
                                          .holder = holder_on(placement_of(w, self), node, m->copy),
                                          .status = m->status,
                                          .text = "",
                                          .n_states = 1,
                                          .states = &told });
}

static void holder_event(struct world *w, uint32_t self, enum coordinator_event_kind kind,
                         uint32_t node, const struct message *m)
{
        const struct placement *placement = placement_of(w, self);
        uint32_t owner = holder_owner(placement, holder_on(placement, node, m->copy));

        event(w, self,
              (struct coordinator_event){ .kind = kind,
                                          .node = node,
                                          .owner = owner,
                                          .copy = m->copy,
                                          .attempt = m->attempt,
                                          .vote = vote_of(owner) });
}

void coordinator_message(struct world *w, uint32_t self, uint32_t from, const struct message *m)
{
        switch (m->type) {
        case OPENED:
                opened(w, self, from, m);
                break;
        case SETTLED:
                event(w, self,
                      (struct coordinator_event){ .kind = COORDINATOR_SETTLED,
                                                  .node = from,
                                                  .epoch = w->nodes[self].c.old_placement - 1u,
                                                  .status = m->status,
                                                  .text = "" });
                break;
        case FILLED:
                filled(w, self, from, m);
                break;
        case PREPARED:
                holder_event(w, self, COORDINATOR_VOTE, from, m);
                break;
        case DONE:
                holder_event(w, self, COORDINATOR_DONE, from, m);
                break;
        default:
                violate("a coordinator got message %u", m->type);
        }
}
