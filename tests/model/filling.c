/*
 * A holder that has lost its state takes that of the other copy: first the planes, then the
 * record, which makes it a state.  The coordinator asks for it while no step runs, and says where
 * the job stands.
 */
#include "world.h"

#include <string.h>

#include "proto/zero_types.h"

struct stand stand_of(const struct record *r)
{
        const struct owner_stand told = record_stand(r);
        struct stand s = { .version = (u8)told.version,
                           .attempt = (u8)told.attempt,
                           .decided_attempt = r->decided_attempt,
                           .decision = r->decision,
                           .skipped = r->skipped,
                           .done = told.done,
                           .prepared_attempt = (u8)told.prepared_attempt };

        if (r->attempt == 0)
                return (struct stand){ 0 };
        if (s.prepared_attempt) {
                s.vote = r->vote;
                s.scale = r->scale;
        }
        return s;
}

static void fill_answer(struct world *w, uint32_t node, u8 copy, u8 status)
{
        struct message m = { .type = FILLED, .copy = copy, .status = status };

        if (!status)
                m.stands[copy] = stand_of(&w->nodes[node].replicas[copy].record);
        send(w, node, COORDINATOR, m);
}

void fill_begin(struct world *w, uint32_t node, const struct message *m)
{
        struct node *n = &w->nodes[node];
        struct replica *h = &n->replicas[m->copy];

        if (h->record.attempt) {
                fill_answer(w, node, m->copy, ZERO_OK);
                return;
        }
        if (!is_up(w, node, m->flag)) {
                fill_answer(w, node, m->copy, ZERO_EPEER);
                return;
        }
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
                struct replica *h = &w->nodes[node].replicas[c];

                if (!h->from || (h->from != from + 1 && from != COORDINATOR))
                        continue;
                h->from = h->pulled = 0;
                h->draft = (struct record){ 0 };
                fill_answer(w, node, (u8)c, ZERO_EPEER);
        }
}

bool fill_can(const struct world *w, uint32_t node, uint32_t copy)
{
        const struct replica *h = &w->nodes[node].replicas[copy];
        uint32_t from = h->from - 1u;

        return h->from && (h->pulled || (is_up(w, node, from) && is_up(w, from, node) &&
                                         w->connected[node] >> from & 1));
}

static void fill_end(struct world *w, uint32_t node, uint32_t copy)
{
        struct node *n = &w->nodes[node];
        struct replica *h = &n->replicas[copy];
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
        fill_answer(w, node, (u8)copy, ZERO_OK);
}

void fill_go_on(struct world *w, uint32_t node, uint32_t copy)
{
        struct replica *h = &w->nodes[node].replicas[copy], *twin = twin_of(w, node, copy);

        if (h->pulled) {
                fill_end(w, node, copy);
                return;
        }
        if (twin->ahead) {
                update_undo(twin);
                h->from = 0;
                h->draft = (struct record){ 0 };
                fill_answer(w, node, (u8)copy, ZERO_EABORTED);
                return;
        }
        REQUIRE(twin->record.attempt && !twin->running && twin->record.version == h->draft.version,
                "node %u is filled at version %u from a state at version %u%s", node,
                h->draft.version, twin->record.version, twin->running ? ", which changes" : "");
        h->draft.planes = twin->record.planes;
        h->pulled = 1;
}
