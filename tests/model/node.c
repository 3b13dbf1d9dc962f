/* A daemon's part of the job: what daemon/engine's job.c and resume.c and daemon/update do. */
#include "world.h"

#include <string.h>

/* ---- the record ---- */

void record_abort(struct replica *h, uint32_t node, u8 attempt)
{
        REQUIRE(h->record.phase != PHASE_DECIDED && attempt > h->record.attempt,
                "node %u: attempt %u (phase %u) is aborted for attempt %u", node, h->record.attempt,
                h->record.phase, attempt);
        h->record.attempt = attempt;
        h->record.phase = PHASE_OPEN;
        h->record.vote = h->record.scale = 0;
        memset(h->record.parts, 0, sizeof h->record.parts);
}

static void update_start(struct replica *h)
{
        h->running = 1;
}

/* What the job is told to be at: the coordinator tells those behind, and those ahead know. */
static const struct record *record_behind(const struct node *n)
{
        const struct record *behind = NULL;
        u8 least = 0;

        for (uint32_t c = 0; c < view.copies; c++) {
                const struct record *r = &n->replicas[c].record;
                u8 attempt = stand_of(r).attempt;

                if (attempt && (!behind || attempt < least)) {
                        behind = r;
                        least = attempt;
                }
        }
        return behind;
}

void job_resume(struct world *w, uint32_t node)
{
        struct node *n = &w->nodes[node];
        const struct record *r = record_behind(n);

        if (!r)
                return;
        n->has_job = 1;
        n->attempt = stand_of(r).attempt;
        n->version = stand_of(r).version;
        n->scale = r->decision ? scale_number(decision_scale(r->decision)) : 64;
        n->skipped = r->skipped;
        memset(n->node_of_rank, NOBODY, sizeof n->node_of_rank);
        if (r->decided_attempt) {
                n->last_attempt = r->decided_attempt;
                n->last_version = n->version;
                n->last_decision = r->decision;
        }
        for (uint32_t c = 0; c < view.copies; c++)
                if (n->replicas[c].record.phase == PHASE_DECIDED)
                        update_start(&n->replicas[c]);
}

static struct message opened(const struct world *w, uint32_t node)
{
        const struct node *n = &w->nodes[node];
        struct message m = { .type = OPENED, .flag = n->has_job, .attempt = n->attempt };

        for (uint32_t c = 0; c < view.copies; c++)
                m.stands[c] = stand_of(&n->replicas[c].record);
        return m;
}

static void job_open(struct world *w, uint32_t node, uint32_t from, const struct message *m)
{
        struct node *n = &w->nodes[node];

        if (!n->has_job && m->flag) {
                n->has_job = 1;
                memset(n->node_of_rank, NOBODY, sizeof n->node_of_rank);
        }
        send(w, node, from, opened(w, node));
}

/* ---- the coordinator's word ---- */

static void begin_attempt(struct world *w, uint32_t node)
{
        struct node *n = &w->nodes[node];

        n->stepped = n->closed = n->reduced = 0;
        memset(n->pushed, 0, sizeof n->pushed);
        memset(n->contributed, 0, sizeof n->contributed);
        if (is_owner(node))
                accumulator_reset(w, node);
}

static void remember(struct node *n, u8 attempt, u8 version, u8 decision, u8 skipped)
{
        n->last_attempt = attempt;
        n->last_version = version;
        n->last_decision = decision;
        n->scale = scale_number(decision_scale(decision));
        n->skipped = skipped;
}

static void replica_start(struct world *w, uint32_t node, uint32_t copy)
{
        struct node *n = &w->nodes[node];
        struct replica *h = &n->replicas[copy];

        REQUIRE(h->record.attempt, "node %u begins attempt %u without a state", node, n->attempt);
        if (!h->running && h->record.attempt < n->attempt)
                record_abort(h, node, n->attempt);
        REQUIRE(h->record.phase != PHASE_PREPARED,
                "node %u begins attempt %u with a vote in attempt %u", node, n->attempt,
                h->record.attempt);
}

static void job_start(struct world *w, uint32_t node, const struct message *m)
{
        struct node *n = &w->nodes[node];

        if (is_owner(node) && (n->version != m->version || n->attempt > m->attempt)) {
                violate("node %u is started at version %u, attempt %u: it is at %u, %u", node,
                        m->version, m->attempt, n->version, n->attempt);
                return;
        }
        n->started = 1;
        n->version = m->version;
        n->attempt = m->attempt;
        n->scale = m->scale;
        if (m->last)
                remember(n, m->last, m->version, m->decision, m->skipped);
        memcpy(n->node_of_rank, m->place, RANKS);
        for (uint32_t c = 0; c < view.copies && is_owner(node); c++)
                replica_start(w, node, c);
        begin_attempt(w, node);
        ranks_answer(w, node, false);
        ranks_admit(w, node);
}

/* It has voted, or it has recorded the decision and another replica has not. */
static void replica_decide(struct replica *h, uint32_t node, const struct message *m)
{
        struct record *r = &h->record;

        if (r->attempt == 0 || r->decided_attempt == m->attempt)
                return;
        REQUIRE(r->phase == PHASE_PREPARED && r->attempt == m->attempt,
                "node %u hears a decision of attempt %u, for which it has not voted", node,
                m->attempt);
        r->phase = PHASE_DECIDED;
        r->decided_attempt = r->attempt;
        r->decision = m->decision;
        r->skipped = m->skipped;
        update_start(h);
}

static void job_decision(struct world *w, uint32_t node, const struct message *m)
{
        struct node *n = &w->nodes[node];

        if (m->attempt != n->attempt)
                return;
        for (uint32_t c = 0; c < view.copies && is_owner(node); c++)
                replica_decide(&n->replicas[c], node, m);
        n->version = m->version;
        n->attempt = (u8)(m->attempt + 1);
        remember(n, m->attempt, m->version, m->decision, m->skipped);
        begin_attempt(w, node);
        ranks_answer(w, node, true);
        ranks_admit(w, node);
}

void job_tear(struct world *w, uint32_t node, uint32_t copy)
{
        const struct message m = take(w, COORDINATOR, node);

        replica_decide(&w->nodes[node].replicas[copy], node, &m);
        daemon_crash(w, node);
}

void update_finish(struct world *w, uint32_t node, uint32_t copy)
{
        struct replica *h = &w->nodes[node].replicas[copy];
        struct record *r = &h->record;

        h->running = 0;
        r->version = (u8)(r->version + commits(r->decision));
        r->planes = r->version;
        r->attempt++;
        r->phase = PHASE_OPEN;
        r->vote = r->scale = 0;
        memset(r->parts, 0, sizeof r->parts);
        send(w, node, COORDINATOR,
             (struct message){ .type = DONE, .copy = (u8)copy, .attempt = r->decided_attempt });
        accumulator_vote(w, node, copy);
}

static void job_prepare(struct world *w, uint32_t node, const struct message *m)
{
        struct node *n = &w->nodes[node];

        if (m->attempt != n->attempt)
                return;
        for (uint32_t c = 0; c < view.copies; c++) {
                n->replicas[c].preparing = 1;
                n->replicas[c].prepare_scale = m->scale;
                accumulator_vote(w, node, c);
        }
}

void job_message(struct world *w, uint32_t node, uint32_t from, const struct message *m)
{
        struct node *n = &w->nodes[node];

        if (m->type == OPEN) {
                job_open(w, node, from, m);
                return;
        }
        if (m->type == FILL) {
                fill_begin(w, node, m);
                return;
        }
        if (!n->has_job)
                return;
        switch (m->type) {
        case START:
                job_start(w, node, m);
                break;
        case PART_TOLD:
                if (m->flag)
                        rank_fence(w, node, m);
                break;
        case PREPARE:
                job_prepare(w, node, m);
                break;
        case DECISION:
                job_decision(w, node, m);
                break;
        case OFFER:
                accumulator_offer(w, node, from, m);
                break;
        default:
                violate("node %u got message %u", node, m->type);
        }
}
