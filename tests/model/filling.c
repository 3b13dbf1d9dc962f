/*
 * A holder that has lost its state takes that of the other copy: first the planes, then the
 * record, which makes it a state.  The coordinator asks for it while no step runs, and says where
 * the job stands.
 */
#include "world.h"

#include <string.h>

/* ---- the node's side ---- */

struct stand stand_of(const struct record *r)
{
        bool decided = r->phase == PHASE_DECIDED;
        struct stand s = { .version = (u8)(r->version + (decided && commits(r->decision))),
                           .attempt = (u8)(r->attempt + decided),
                           .decided_attempt = r->decided_attempt,
                           .decision = r->decision,
                           .skipped = r->skipped,
                           .done = !decided };

        if (r->attempt == 0)
                return (struct stand){ 0 };
        if (r->phase == PHASE_PREPARED) {
                s.prepared_attempt = r->attempt;
                s.vote = r->vote;
                s.scale = r->scale;
        }
        return s;
}

static void fill_answer(struct world *w, uint32_t node, u8 copy)
{
        struct message m = { .type = FILLED, .copy = copy };

        m.stands[copy] = stand_of(&w->nodes[node].holdings[copy].record);
        send(w, node, COORDINATOR, m);
}

void fill_begin(struct world *w, uint32_t node, const struct message *m)
{
        struct node *n = &w->nodes[node];
        struct holding *h = &n->holdings[m->copy];

        if (h->record.attempt) {
                fill_answer(w, node, m->copy);
                return;
        }
        if (!is_up(w, node, m->flag))
                return; /* the coordinator hears of it */
        if (!n->has_job)
                memset(n->node_of_rank, NOBODY, sizeof n->node_of_rank);
        n->has_job = 1;
        h->from = (u8)(m->flag + 1);
        h->pulled = 0;
        h->draft = (struct record){ .version = m->version,
                                    .attempt = m->attempt,
                                    .decided_attempt = m->last,
                                    .decision = m->decision,
                                    .skipped = m->skipped };
}

void fill_lose(struct world *w, uint32_t node, uint32_t from)
{
        for (uint32_t c = 0; c < COPIES; c++) {
                struct holding *h = &w->nodes[node].holdings[c];

                if (h->from != from + 1)
                        continue;
                h->from = h->pulled = 0;
                h->draft = (struct record){ 0 };
        }
}

bool fill_can(const struct world *w, uint32_t node, uint32_t copy)
{
        const struct holding *h = &w->nodes[node].holdings[copy];
        uint32_t from = h->from - 1u;

        return h->from && (h->pulled || (is_up(w, node, from) && is_up(w, from, node) &&
                                         w->connected[node] >> from & 1));
}

static void fill_end(struct world *w, uint32_t node, uint32_t copy)
{
        struct node *n = &w->nodes[node];
        struct holding *h = &n->holdings[copy];
        const struct record *r = &h->record;

        h->record = h->draft;
        h->draft = (struct record){ 0 };
        h->from = h->pulled = 0;
        if (n->attempt < r->attempt) {
                n->attempt = r->attempt;
                n->version = r->version;
                n->skipped = r->skipped;
                n->scale = r->decision ? scale_number(decision_scale(r->decision)) : 64;
                n->last_attempt = r->decided_attempt;
                n->last_version = r->decided_attempt ? r->version : 0;
                n->last_decision = r->decision;
        }
        fill_answer(w, node, (u8)copy);
}

void fill_go_on(struct world *w, uint32_t node, uint32_t copy)
{
        struct holding *h = &w->nodes[node].holdings[copy];
        const struct holding *twin = twin_of(w, node, copy);

        if (h->pulled) {
                fill_end(w, node, copy);
                return;
        }
        REQUIRE(twin->record.attempt && !twin->running && twin->record.version == h->draft.version,
                "node %u is filled at version %u from a state at version %u%s", node,
                h->draft.version, twin->record.version, twin->running ? ", which changes" : "");
        h->draft.planes = twin->record.planes;
        h->pulled = 1;
}

/* ---- the coordinator's side ---- */

static uint32_t twin_holder(uint32_t holder)
{
        return holder_of(&view, holder_owner(&view, holder), !holder_copy(&view, holder));
}

/* The other copy is at the last decision, and can be reached. */
static bool fill_ready(const struct world *w, uint32_t holder)
{
        const struct coordinator *c = &w->c;
        uint32_t twin = twin_holder(holder), a = holder_node(&view, holder),
                 b = holder_node(&view, twin);

        return !c->standings[holder].attempt && !(c->filling >> holder & 1) &&
               c->standings[twin].attempt && c->done >> twin & 1 && c->open >> a & 1 &&
               c->open >> b & 1 && !(c->cut[a] >> b & 1) && !(c->cut[b] >> a & 1);
}

void fill_advance(struct world *w)
{
        struct coordinator *c = &w->c;

        for (uint32_t h = 0; c->settled && view.copies > 1 && h < placement_holders(&view); h++) {
                if (!fill_ready(w, h))
                        continue;
                c->filling |= (u8)(1u << h);
                send(w, COORDINATOR, holder_node(&view, h),
                     (struct message){
                             .type = FILL,
                             .copy = (u8)holder_copy(&view, h),
                             .flag = (u8)holder_node(&view, twin_holder(h)),
                             .version = c->version,
                             .attempt = (u8)((c->heard > c->attempt ? c->heard : c->attempt) + 1),
                             .last = c->decided_attempt,
                             .decision = c->decision,
                             .skipped = c->skipped });
        }
}

void fill_forget(struct world *w, uint32_t node, uint64_t with)
{
        for (uint32_t h = 0; view.copies > 1 && h < placement_holders(&view); h++) {
                uint32_t a = holder_node(&view, h), b = holder_node(&view, twin_holder(h));

                if ((a == node && with >> b & 1) || (b == node && with >> a & 1))
                        w->c.filling &= (u8) ~(1u << h);
        }
}
