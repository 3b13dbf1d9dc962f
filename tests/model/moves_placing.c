/* Bringing states to where the placement in force has them; see moves.h. */
#include "moves.h"

static bool lacks(const struct world *w, uint32_t self, uint32_t holder)
{
        const struct recovery now = step_stands(step_load(w, self));

        return holder_lacks(standings_load(w, self)[holder], &now, w->nodes[self].c.whole);
}

bool node_lacks(const struct world *w, uint32_t self, uint32_t node)
{
        const struct placement *view = view_of(w, self);

        for (uint32_t h = 0; h < placement_holders(view); h++)
                if (holder_node(view, h) == node && lacks(w, self, h))
                        return true;
        return false;
}

static void settle_send(struct world *w, uint32_t self, uint32_t node)
{
        struct coordinator *c = &w->nodes[self].c;

        if (send(w, self, node,
                 (struct message){
                         .type = SETTLE, .epoch = (u8)(c->former - 1), .last = c->decided }))
                c->settling |= (u8)(1 << node);
}

/* True: former states stand where the job does. */
static bool former_settle(struct world *w, uint32_t self)
{
        const struct recovery now = step_stands(step_load(w, self));
        struct former *f = former_load(w, self);
        uint64_t nodes = f ? former_unsettled(f, &now) : 0;

        for (uint32_t n = 0; n < bounds.n_nodes; n++)
                if (nodes >> n & 1)
                        settle_send(w, self, n);
        f = former_load(w, self);
        return f && former_settled(f, &now);
}

void settle_answered(struct world *w, uint32_t self, uint32_t node, u8 status)
{
        struct coordinator *c = &w->nodes[self].c;

        if (!(c->settling >> node & 1))
                return;
        c->settling &= (u8) ~(1 << node);
        if (status == ZERO_OK)
                c->settled_nodes |= (u8)(1 << node);
        else
                open_hinder(c);
        placing_advance(w, self);
}

static void fill_send(struct world *w, uint32_t self, uint32_t holder, u8 from, u8 readable)
{
        struct coordinator *c = &w->nodes[self].c;
        const struct placement *view = view_of(w, self);
        struct step *s = step_load(w, self);
        u8 attempt;

        step_heard(s, s->attempt);
        attempt = (u8)(s->heard + 1);
        step_store(w, self, s);
        if (send(w, self, holder_node(view, holder),
                 (struct message){ .type = FILL,
                                   .copy = (u8)holder_copy(view, holder),
                                   .version = c->version,
                                   .attempt = attempt,
                                   .last = c->decided,
                                   .epoch = from,
                                   .readable = readable }))
                c->filling |= (u8)(1 << holder);
}

static void fill_from_former(struct world *w, uint32_t self, uint32_t holder)
{
        const struct recovery now = step_stands(step_load(w, self));
        const struct former *f = former_load(w, self);
        u8 readable = 0;

        for (uint32_t h = 0; h < placement_holders(&f->place); h++)
                readable |= (u8)(former_gives(f, h, &now) << h);
        fill_send(w, self, holder, (u8)f->place.epoch, readable);
}

static void fill_from_twin(struct world *w, uint32_t self, uint32_t holder)
{
        const struct coordinator *c = &w->nodes[self].c;
        const struct placement *view = view_of(w, self);
        const struct recovery now = step_stands(step_load(w, self));
        uint32_t twin;

        if (view->copies < 2)
                return;
        twin = holder_of(view, holder_owner(view, holder), 1 - holder_copy(view, holder));
        if (c->nodes[holder_node(view, twin)] >= NODE_KNOWN &&
            twin_gives(standings_load(w, self)[twin], &now, c->done >> twin & 1))
                fill_send(w, self, holder, w->nodes[self].epoch, (u8)(1 << twin));
}

static bool some_lack(const struct world *w, uint32_t self)
{
        for (uint32_t h = 0; h < placement_holders(view_of(w, self)); h++)
                if (lacks(w, self, h))
                        return true;
        return false;
}

static void fill_lacking(struct world *w, uint32_t self)
{
        struct coordinator *c = &w->nodes[self].c;
        const struct placement *view = view_of(w, self);

        for (uint32_t h = 0; h < placement_holders(view); h++) {
                if (!lacks(w, self, h) || c->filling >> h & 1 ||
                    c->nodes[holder_node(view, h)] != NODE_KNOWN)
                        continue;
                if (c->whole)
                        fill_from_twin(w, self, h);
                else
                        fill_from_former(w, self, h);
        }
}

void placing_advance(struct world *w, uint32_t self)
{
        struct coordinator *c = &w->nodes[self].c;

        if (!c->settled || c->fault)
                return;
        if (c->whole) {
                fill_lacking(w, self);
        } else if (!some_lack(w, self)) {
                c->whole = 1;
                w->truth.whole = w->nodes[self].epoch;
                open_settle(w, self);
        } else if (former_settle(w, self)) {
                fill_lacking(w, self);
        }
}

void fill_ended(struct world *w, uint32_t self, uint32_t node, const struct message *m)
{
        struct coordinator *c = &w->nodes[self].c;
        uint32_t holder = holder_on(view_of(w, self), node, m->copy);

        c->filling &= (u8) ~(1 << holder);
        if (c->nodes[node] != NODE_KNOWN)
                return;
        if (m->status == ZERO_OK) {
                u8 epoch = w->nodes[self].epoch;

                stand_heard(w, self, node, epoch, m->copy, &m->stands[epoch][m->copy]);
                c->lacks &= (u8) ~(1 << node);
                open_settle(w, self);
        } else if (m->status != ZERO_EPEER && m->status != ZERO_EBUSY &&
                   m->status != ZERO_EABORTED && m->status != ZERO_ENOJOB) {
                open_hinder(c);
        }
}
