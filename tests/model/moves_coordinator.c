/* The job's coordinator on a node; see moves.h. */
#include "moves.h"

#include <string.h>

/* ---- opening ------------------------------------------------------------------------------- */

void open_hinder(struct coordinator *c)
{
        c->fault = 1;
}

static void open_send(struct world *w, uint32_t self, uint32_t node, bool create)
{
        if (send(w, self, node, (struct message){ .type = OPEN, .status = create }))
                w->nodes[self].c.nodes[node] = NODE_ASKED;
}

static void decision_send(struct world *w, uint32_t self, uint32_t node)
{
        const struct coordinator *c = &w->nodes[self].c;

        if (c->decided)
                send(w, self, node,
                     (struct message){
                             .type = DECISION, .attempt = c->decided, .version = c->version });
}

static void advance(struct world *w, uint32_t self)
{
        struct coordinator *c = &w->nodes[self].c;
        struct step *s = step_load(w, self);

        if (!c->settled || c->fault || !step_startable(s))
                return;
        step_start(s);
        step_store(w, self, s);
        truth_stands(w, c->decided, c->version);
        if (c->decided > w->truth.attempt) /* it was decided again, or at last */
                truth_decide(w, c->decided, c->version);
        for (uint32_t n = 0; n < bounds.n_nodes; n++)
                send(w, self, n,
                     (struct message){
                             .type = START, .version = c->version, .attempt = c->attempt });
}

static bool holder_open(struct world *w, uint32_t self, uint32_t holder,
                        const struct standing *standing)
{
        struct step *s = step_load(w, self);
        const struct recovery now = step_stands(s);
        struct fault fault;
        bool gone_behind;

        if (recover_one(standing, &now, &gone_behind, &fault))
                return false;
        s->done[holder] = !gone_behind && standing->done;
        step_store(w, self, s);
        return true;
}

static bool holders_fit(struct world *w, uint32_t self, uint32_t node)
{
        const struct placement *view = view_of(w, self);
        bool fit = true;

        for (uint32_t h = 0; h < placement_holders(view) && fit; h++) {
                const struct standing *s = standings_load(w, self)[h];

                if (holder_node(view, h) == node && s)
                        fit = holder_open(w, self, h, s);
        }
        if (fit)
                decision_send(w, self, node);
        else
                open_hinder(&w->nodes[self].c);
        return fit;
}

static void node_open(struct world *w, uint32_t self, uint32_t node)
{
        struct coordinator *c = &w->nodes[self].c;
        struct step *s;

        c->nodes[node] = NODE_OPENED;
        s = step_load(w, self);
        step_node_open(s, node);
        step_store(w, self, s);
        if (c->stale >> node & 1)
                send(w, self, node,
                     (struct message){ .type = PLACED, .epoch = w->nodes[self].epoch });
        c->stale &= (u8) ~(1 << node);
}

static void open_nodes(struct world *w, uint32_t self)
{
        struct coordinator *c = &w->nodes[self].c;

        for (uint32_t n = 0; n < bounds.n_nodes && !c->fault; n++) {
                if (c->nodes[n] != NODE_KNOWN)
                        continue;
                if (!(placement_nodes(view_of(w, self)) >> n & 1) && c->lacks >> n & 1)
                        open_send(w, self, n, true);
                else if (holders_fit(w, self, n) && !node_lacks(w, self, n))
                        node_open(w, self, n);
        }
}

static void open_recover(struct world *w, uint32_t self, const struct former *former)
{
        struct recovery r;
        struct fault fault;
        struct step *s;
        uint32_t odd;

        if (former ? former_recover(former, &r, &odd, &fault)
                   : recover(standings_load(w, self), view_of(w, self), &r, &odd, &fault)) {
                open_hinder(&w->nodes[self].c);
                return;
        }
        s = step_load(w, self);
        step_adopt(s, &r);
        step_store(w, self, s);
        w->nodes[self].c.settled = 1;
}

/* Nodes that have told what they have. */
static u8 told(const struct world *w, uint32_t self)
{
        u8 nodes = 0;

        for (uint32_t n = 0; n < bounds.n_nodes; n++)
                nodes |= (u8)((w->nodes[self].c.nodes[n] == NODE_KNOWN) << n);
        return nodes;
}

/* Some that have not, and may come: they are waited for, though not for ever. */
static bool others_wait(const struct world *w, uint32_t self)
{
        for (uint32_t n = 0; n < bounds.n_nodes; n++)
                if (!w->nodes[n].dead && !(told(w, self) >> n & 1))
                        return !w->nodes[self].c.hasty;
        return false;
}

static void open_choose(struct world *w, uint32_t self)
{
        struct coordinator *c = &w->nodes[self].c;
        struct former *former;
        enum opening_choice choice = opening_choose(standings_load(w, self), view_of(w, self),
                                                    formers_load(w, self), &former);

        if (choice != OPENING_STANDS && others_wait(w, self))
                return;
        if (choice == OPENING_MOVES &&
            lists_untold(view_of(w, self), former->place.epoch + 1, told(w, self)))
                return;
        switch (choice) {
        case OPENING_STANDS:
                c->whole = 1;
                w->truth.whole = w->nodes[self].epoch;
                open_recover(w, self, NULL);
                break;
        case OPENING_MOVES:
                c->whole = 0;
                c->former = (u8)(former->place.epoch + 1);
                open_recover(w, self, former);
                break;
        case OPENING_MAKES: /* nobody asks for it: whoever has states of it may come yet */
        case OPENING_WAITS:
                break;
        }
}

static bool holders_known(const struct world *w, uint32_t self)
{
        const struct placement *view = view_of(w, self);

        for (uint32_t o = 0; o < view->n_owners; o++)
                if (w->nodes[self].c.nodes[view->node[o]] != NODE_KNOWN)
                        return false;
        return true;
}

void open_settle(struct world *w, uint32_t self)
{
        struct coordinator *c = &w->nodes[self].c;

        c->fault = 0;
        if (!c->settled && holders_known(w, self))
                open_choose(w, self);
        if (c->settled && c->whole)
                open_nodes(w, self);
        if (c->settled) {
                placing_advance(w, self);
                advance(w, self);
        }
}

void stand_heard(struct world *w, uint32_t self, uint32_t node, uint32_t epoch, uint32_t copy,
                 const struct stand *stand)
{
        struct coordinator *c = &w->nodes[self].c;
        struct step *s = step_load(w, self);

        step_heard(s, stand->attempt);
        step_store(w, self, s);
        c->stands[node][epoch][copy] = *stand;
        if (stand->attempt)
                c->told[node] |= (u8)(1 << (epoch * COPIES + copy));
        if (stand->attempt && epoch < w->nodes[self].epoch)
                c->stale |= (u8)(1 << node);
}

static void open_answered(struct world *w, uint32_t self, uint32_t node, const struct message *m)
{
        struct coordinator *c = &w->nodes[self].c;
        struct step *s = step_load(w, self);

        REQUIRE(m->status != 2, "node %u is asked while its job is made", node);
        step_heard(s, m->attempt);
        step_store(w, self, s);
        c->nodes[node] = NODE_KNOWN;
        c->lacks = (u8)((c->lacks & ~(1 << node)) | !m->status << node);
        c->told[node] = 0;
        for (uint32_t e = 0; e <= w->nodes[self].epoch; e++)
                for (uint32_t copy = 0; copy < COPIES; copy++)
                        stand_heard(w, self, node, e, copy, &m->stands[e][copy]);
        open_settle(w, self);
}

static void open_done(struct world *w, uint32_t self, uint32_t node, const struct message *m)
{
        struct coordinator *c = &w->nodes[self].c;
        struct stand *s = &c->stands[node][w->nodes[self].epoch][m->copy];
        struct step *step;

        if (s->attempt && c->settled && m->attempt == c->decided) {
                s->version = c->version;
                s->decided = m->attempt;
                s->prepared = 0;
        }
        if (s->attempt && s->decided == m->attempt)
                s->done = 1;
        if (!c->settled)
                return;
        step = step_load(w, self);
        step_done(step, holder_on(view_of(w, self), node, m->copy), m->attempt);
        step_store(w, self, step);
}

/* ---- events -----------------------------------------------------------------------------------
 */

void coordinator_new(struct world *w, uint32_t self)
{
        struct coordinator *c = &w->nodes[self].c;

        *c = (struct coordinator){ .there = 1, .done = (u8)((1 << HOLDERS) - 1) };
        open_send(w, self, self, false);
}

void coordinator_up(struct world *w, uint32_t self, uint32_t node)
{
        struct coordinator *c = &w->nodes[self].c;

        if (c->there && c->nodes[node] == NODE_UNASKED)
                open_send(w, self, node, false);
}

static bool former_is_there(const struct world *w, uint32_t self)
{
        const struct recovery now = step_stands(step_load(w, self));
        const struct former *f = former_load(w, self);

        return f && former_covers(f, &now);
}

void coordinator_down(struct world *w, uint32_t self, uint32_t node)
{
        struct coordinator *c = &w->nodes[self].c;
        const struct placement *view = view_of(w, self);
        struct step *s;

        if (!c->there)
                return;
        s = step_load(w, self);
        step_node_lost(s, node);
        step_store(w, self, s);
        c->nodes[node] = NODE_UNASKED;
        memset(c->stands[node], 0, sizeof c->stands[node]);
        c->settling &= (u8) ~(1 << node);
        c->settled_nodes &= (u8) ~(1 << node);
        c->stale &= (u8) ~(1 << node);
        if (c->settled && !c->whole && !former_is_there(w, self))
                c->settled = 0;
        for (uint32_t h = 0; h < placement_holders(view); h++)
                if (holder_node(view, h) == node)
                        c->filling &= (u8) ~(1 << h);
}

bool coordinator_waits(const struct world *w, uint32_t self)
{
        const struct coordinator *c = &w->nodes[self].c;

        return c->there && !c->settled && !c->hasty && holders_known(w, self);
}

void coordinator_hasten(struct world *w, uint32_t self)
{
        w->nodes[self].c.hasty = 1;
        open_settle(w, self);
}

void coordinator_tick(struct world *w, uint32_t self)
{
        if (!w->nodes[self].c.settled) {
                if (!w->nodes[self].c.fault)
                        open_settle(w, self);
                return;
        }
        advance(w, self);
        placing_advance(w, self);
}

bool coordinator_can_step(const struct world *w, uint32_t self)
{
        const struct coordinator *c = &w->nodes[self].c;

        return c->there && c->settled && !c->fault && c->phase == STEP_COLLECTING &&
               c->version < bounds.steps;
}

void coordinator_step(struct world *w, uint32_t self)
{
        const struct placement *view = view_of(w, self);
        struct step *s = step_load(w, self);
        enum step_action action = STEP_NOTHING;

        REQUIRE(!step_ready(s, self, s->attempt, &step_params, 0, &action, NULL) &&
                        action == STEP_PREPARE,
                "a step does not begin");
        step_store(w, self, s);
        for (uint32_t o = 0; o < view->n_owners; o++)
                send(w, self, view->node[o],
                     (struct message){ .type = PREPARE, .attempt = w->nodes[self].c.attempt });
}

static void vote_heard(struct world *w, uint32_t self, uint32_t node, const struct message *m)
{
        const struct placement *view = view_of(w, self);
        uint32_t holder = holder_on(view, node, m->copy);
        struct step *s = step_load(w, self);
        enum step_action action;

        step_vote(s, holder, m->attempt, vote_of(holder_owner(view, holder)), &action);
        step_store(w, self, s);
        REQUIRE(action != STEP_REFUSE, "a mirror has voted otherwise than its owner");
        if (action == STEP_NOTHING)
                return;
        truth_voted(w, w->nodes[self].epoch, w->nodes[self].c.decided);
        truth_decide(w, w->nodes[self].c.decided, w->nodes[self].c.version);
        for (uint32_t n = 0; n < bounds.n_nodes; n++)
                decision_send(w, self, n);
}

void coordinator_message(struct world *w, uint32_t self, uint32_t from, const struct message *m)
{
        switch (m->type) {
        case OPENED:
                open_answered(w, self, from, m);
                break;
        case SETTLED:
                settle_answered(w, self, from, m->status);
                break;
        case FILLED:
                fill_ended(w, self, from, m);
                break;
        case PREPARED:
                vote_heard(w, self, from, m);
                break;
        case DONE:
                open_done(w, self, from, m);
                advance(w, self);
                break;
        default:
                violate("a coordinator got message %u", m->type);
        }
}
