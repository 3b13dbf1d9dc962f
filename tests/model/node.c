/* A daemon's part of the job: what daemon/exchange's job.c, vote.c, update.c, resume.c do. */
#include "world.h"

#include <string.h>

/* ---- the record ---- */

/* state_abort(): its assertions are ours. */
static void record_abort(struct node *n, uint32_t node, u8 attempt)
{
        REQUIRE(n->record.phase != PHASE_DECIDED && attempt > n->record.attempt,
                "owner %u: attempt %u (phase %u) is aborted for attempt %u", node,
                n->record.attempt, n->record.phase, attempt);
        n->record.attempt = attempt;
        n->record.phase = PHASE_OPEN;
        n->record.vote = n->record.scale = 0;
        memset(n->record.parts, 0, sizeof n->record.parts);
}

static void update_start(struct node *n)
{
        n->running = 1;
}

void job_resume(struct world *w, uint32_t node)
{
        struct node *n = &w->nodes[node];
        bool decided = n->record.phase == PHASE_DECIDED;

        n->has_job = 1;
        n->attempt = (u8)(n->record.attempt + decided);
        n->version = (u8)(n->record.version + (decided && commits(n->record.decision)));
        n->scale = n->record.decision ? scale_number(decision_scale(n->record.decision)) : 64;
        n->skipped = n->record.skipped;
        memset(n->node_of_rank, NOBODY, sizeof n->node_of_rank);
        if (n->record.decided_attempt) {
                n->last_attempt = n->record.decided_attempt;
                n->last_version = n->version;
                n->last_decision = n->record.decision;
        }
        if (decided)
                update_start(n);
}

struct message opened(const struct world *w, uint32_t node, bool known)
{
        const struct node *n = &w->nodes[node];
        const struct record *r = &n->record;
        struct message m = { .type = OPENED, .flag = known, .attempt = n->attempt };
        bool decided = r->phase == PHASE_DECIDED;

        if (!known || !is_owner(node))
                return m;
        m.stand = (struct stand){ .version = (u8)(r->version + (decided && commits(r->decision))),
                                  .attempt = (u8)(r->attempt + decided),
                                  .decided_attempt = r->decided_attempt,
                                  .decision = r->decision,
                                  .skipped = r->skipped,
                                  .done = !decided };
        if (r->phase == PHASE_PREPARED) {
                m.stand.prepared_attempt = r->attempt;
                m.stand.vote = r->vote;
                m.stand.scale = r->scale;
        }
        return m;
}

static void job_open(struct world *w, uint32_t node, uint32_t from, const struct message *m)
{
        struct node *n = &w->nodes[node];

        if (!n->has_job && m->flag) {
                n->has_job = 1;
                memset(n->node_of_rank, NOBODY, sizeof n->node_of_rank);
        }
        send(w, node, from, opened(w, node, n->has_job));
}

/* ---- the landing ---- */

static bool contributes(const struct node *n, uint32_t node)
{
        for (uint32_t r = 0; r < bounds.n_ranks; r++)
                if (n->node_of_rank[r] == node)
                        return true;
        return false;
}

static bool landing_complete(const struct node *n)
{
        if (!n->started)
                return false;
        for (uint32_t i = 0; i < bounds.n_nodes; i++)
                if (contributes(n, i) && !(n->finished >> i & 1))
                        return false;
        return true;
}

/* Exactly one contribution of each rank to each micro-batch, all of this attempt. */
static void landing_sum(struct world *w, uint32_t node, u8 parts[MICRO_BATCHES][RANKS])
{
        struct node *n = &w->nodes[node];

        memset(parts, 0, MICRO_BATCHES * RANKS);
        for (uint32_t i = 0; i < bounds.n_nodes; i++)
                for (uint32_t b = 0; b < n->offered[i]; b++) {
                        const struct parcel *p = &n->landed[i][b];

                        REQUIRE(p->attempt == n->attempt,
                                "owner %u sums a contribution of attempt %u in attempt %u", node,
                                p->attempt, n->attempt);
                        for (uint32_t r = 0; r < bounds.n_ranks; r++) {
                                REQUIRE(!p->parts[r] || !parts[b][r],
                                        "owner %u sums two contributions of rank %u", node, r);
                                parts[b][r] |= p->parts[r];
                        }
                }
        for (uint32_t b = 0; b < bounds.micro_batches; b++)
                for (uint32_t r = 0; r < bounds.n_ranks; r++)
                        REQUIRE(parts[b][r], "owner %u votes without micro-batch %u of rank %u",
                                node, b, r);
}

static void landing_vote(struct world *w, uint32_t node)
{
        struct node *n = &w->nodes[node];
        struct record *r = &n->record;

        if (!n->preparing || n->running || !landing_complete(n))
                return;
        n->preparing = 0;
        if (r->attempt < n->attempt)
                record_abort(n, node, n->attempt);
        REQUIRE(r->phase != PHASE_DECIDED && r->attempt == n->attempt,
                "owner %u votes for attempt %u, its record is at attempt %u, phase %u", node,
                n->attempt, r->attempt, r->phase);
        landing_sum(w, node, r->parts);
        r->phase = PHASE_PREPARED;
        r->vote = vote_of(node, r->version, r->skipped);
        r->scale = n->prepare_scale;
        send(w, node, COORDINATOR,
             (struct message){ .type = PREPARED, .attempt = n->attempt, .vote = r->vote });
}

static void offer_queue(struct world *w, uint32_t node, uint32_t from, const struct message *m)
{
        struct node *n = &w->nodes[node];

        if (m->micro_batch < n->offered[from]) {
                violate("node %u, which keeps the rules, is cut by owner %u", from, node);
                return;
        }
        if (m->micro_batch > n->offered[from] || !contributes(n, from))
                return;
        n->landed[from][m->micro_batch].attempt = m->attempt;
        memcpy(n->landed[from][m->micro_batch].parts, m->place, RANKS);
        n->offered[from]++;
        if (m->last)
                n->finished |= (u8)(1 << from);
}

static bool attempt_is_over(const struct node *n, u8 attempt)
{
        return attempt < n->attempt || (attempt == n->attempt && !n->started);
}

void landing_offer(struct world *w, uint32_t node, uint32_t from, const struct message *m)
{
        struct node *n = &w->nodes[node];

        if (attempt_is_over(n, m->attempt))
                return;
        if (m->attempt == n->attempt) {
                offer_queue(w, node, from, m);
                landing_vote(w, node);
        } else if (n->n_early == EARLY) {
                violate("owner %u has too many early offers", node);
        } else {
                n->early[n->n_early++] = (struct early){ (u8)from, *m };
        }
}

static void landing_reset(struct world *w, uint32_t node)
{
        struct node *n = &w->nodes[node];
        struct early early[EARLY];
        u8 n_early = n->n_early;

        memcpy(early, n->early, sizeof early);
        memset(n->early, 0, sizeof n->early);
        memset(n->offered, 0, sizeof n->offered);
        memset(n->landed, 0, sizeof n->landed);
        n->n_early = n->finished = n->preparing = n->prepare_scale = 0;
        for (u8 i = 0; i < n_early; i++) {
                if (early[i].offer.attempt > n->attempt)
                        n->early[n->n_early++] = early[i];
                else if (!attempt_is_over(n, early[i].offer.attempt))
                        offer_queue(w, node, early[i].node, &early[i].offer);
        }
}

/* ---- the coordinator's word ---- */

static void begin_attempt(struct world *w, uint32_t node)
{
        struct node *n = &w->nodes[node];

        n->stepped = n->closed = n->reduced = 0;
        memset(n->pushed, 0, sizeof n->pushed);
        memset(n->contributed, 0, sizeof n->contributed);
        if (is_owner(node))
                landing_reset(w, node);
}

static void remember(struct node *n, u8 attempt, u8 version, u8 decision, u8 skipped)
{
        n->last_attempt = attempt;
        n->last_version = version;
        n->last_decision = decision;
        n->scale = scale_number(decision_scale(decision));
        n->skipped = skipped;
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
        if (is_owner(node) && !n->running && n->record.attempt < n->attempt)
                record_abort(n, node, n->attempt);
        REQUIRE(!is_owner(node) || n->record.phase != PHASE_PREPARED,
                "owner %u begins attempt %u with a vote in attempt %u", node, n->attempt,
                n->record.attempt);
        begin_attempt(w, node);
        ranks_answer(w, node, false);
        ranks_admit(w, node);
}

static void job_decision(struct world *w, uint32_t node, const struct message *m)
{
        struct node *n = &w->nodes[node];
        struct record *r = &n->record;

        if (m->attempt != n->attempt)
                return;
        if (is_owner(node)) {
                REQUIRE(r->phase == PHASE_PREPARED && r->attempt == m->attempt,
                        "owner %u hears a decision of attempt %u, for which it has not voted", node,
                        m->attempt);
                r->phase = PHASE_DECIDED;
                r->decided_attempt = r->attempt;
                r->decision = m->decision;
                r->skipped = m->skipped;
                update_start(n);
        }
        n->version = m->version;
        n->attempt = (u8)(m->attempt + 1);
        remember(n, m->attempt, m->version, m->decision, m->skipped);
        begin_attempt(w, node);
        ranks_answer(w, node, true);
        ranks_admit(w, node);
}

void update_finish(struct world *w, uint32_t node)
{
        struct node *n = &w->nodes[node];
        struct record *r = &n->record;

        n->running = 0;
        r->version = (u8)(r->version + commits(r->decision));
        r->attempt++;
        r->phase = PHASE_OPEN;
        r->vote = r->scale = 0;
        memset(r->parts, 0, sizeof r->parts);
        send(w, node, COORDINATOR, (struct message){ .type = DONE, .attempt = r->decided_attempt });
        landing_vote(w, node);
}

void job_message(struct world *w, uint32_t node, uint32_t from, const struct message *m)
{
        struct node *n = &w->nodes[node];

        if (m->type == OPEN) {
                job_open(w, node, from, m);
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
                        rank_fence(w, node, m->rank);
                break;
        case PREPARE:
                if (m->attempt != n->attempt)
                        break;
                n->preparing = 1;
                n->prepare_scale = m->scale;
                landing_vote(w, node);
                break;
        case DECISION:
                job_decision(w, node, m);
                break;
        case OFFER:
                landing_offer(w, node, from, m);
                break;
        default:
                violate("node %u got message %u", node, m->type);
        }
}
