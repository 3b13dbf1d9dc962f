/*
 * A daemon's part of the job.  The rules are those of daemon/job/rules/owner.h; here messages become
 * events, and actions change a node's records and the messages on their way.
 */
#include "world.h"

#include <string.h>

#include "record.h"

/* ---- the record ---- */

static struct owner_record record_facts(const struct record *r)
{
        return (struct owner_record){ .version = r->version,
                                      .attempt = r->attempt,
                                      .phase = r->phase,
                                      .decided_attempt = r->decided_attempt,
                                      .commit = commits(r->decision) };
}

struct owner_stand record_stand(const struct record *r)
{
        const struct owner_record facts = record_facts(r);

        return owner_stand(&facts);
}

static void record_change(struct record *r, const struct owner_action *a)
{
        const struct owner_record from = record_facts(r), *to = &a->record;

        record_check(&from, a);
        r->version = (u8)to->version;
        r->attempt = (u8)to->attempt;
        r->phase = (u8)to->phase;
        r->decided_attempt = (u8)to->decided_attempt;
        if (r->phase != OWNER_OPEN)
                return;
        r->vote = r->scale = 0;
        memset(r->parts, 0, sizeof r->parts);
}

/* ---- what the node knows ---- */

static struct owner_replica replica_facts(const struct replica *h, uint32_t copy)
{
        return (struct owner_replica){ .id = copy,
                                       .record = record_facts(&h->record),
                                       .in_force = true,
                                       .updating = h->running != RUNS_NOTHING,
                                       .ahead = h->ahead != 0,
                                       .asked = h->preparing,
                                       .closing = h->preparing == 1 };
}

static struct owner owner_of(const struct node *n)
{
        struct owner o = { .version = n->version, .attempt = n->attempt, .started = n->started };

        for (uint32_t c = 0; c < COPIES; c++)
                if (n->replicas[c].record.attempt)
                        o.replicas[o.n++] = replica_facts(&n->replicas[c], c);
        return o;
}

static struct owner owner_of_replica(const struct node *n, uint32_t copy)
{
        return (struct owner){ .version = n->version,
                               .attempt = n->attempt,
                               .started = n->started,
                               .n = 1,
                               .replicas = { replica_facts(&n->replicas[copy], copy) } };
}

/* ---- a start ---- */

static void replica_given(struct node *n, uint32_t copy)
{
        const struct owner_event e = { .kind = OWNER_GIVEN };
        const struct owner o = owner_of_replica(n, copy);
        struct owner_actions actions;

        owner_step(&o, &e, &actions);
        if (actions.n)
                n->replicas[copy].running = RUNS_UPDATE; /* OWNER_UPDATE */
}

void job_resume(struct world *w, uint32_t node)
{
        struct node *n = &w->nodes[node];
        const struct owner o = owner_of(n);
        const struct owner_replica *behind = &o.replicas[0];
        const struct record *r;

        if (!o.n)
                return;
        for (uint32_t i = 1; i < o.n; i++)
                if (owner_behind(&o.replicas[i], behind))
                        behind = &o.replicas[i];
        r = &n->replicas[behind->id].record;
        n->has_job = 1;
        n->attempt = (u8)record_stand(r).attempt;
        n->version = (u8)record_stand(r).version;
        n->scale = r->decision ? scale_number(decision_scale(r->decision)) : 64;
        n->skipped = r->skipped;
        memset(n->node_of_rank, NOBODY, sizeof n->node_of_rank);
        if (r->decided_attempt) {
                n->last_attempt = r->decided_attempt;
                n->last_version = n->version;
                n->last_decision = r->decision;
        }
        for (uint32_t i = 0; i < o.n; i++)
                replica_given(n, o.replicas[i].id);
}

static struct message opened(const struct world *w, uint32_t node)
{
        const struct node *n = &w->nodes[node];
        struct message m = { .type = OPENED, .flag = n->has_job, .attempt = n->attempt };

        for (uint32_t c = 0; c < placement.copies; c++)
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

static void stands(struct world *w, uint32_t node, const struct message *m,
                   const struct owner_action *a)
{
        struct node *n = &w->nodes[node];
        u8 last = m->type == START ? m->last : m->attempt;

        n->version = (u8)a->version;
        n->attempt = (u8)a->attempt;
        if (m->type == START) {
                n->started = 1;
                n->scale = m->scale;
                memcpy(n->node_of_rank, m->place, RANKS);
                ranks_displace(w, node);
        }
        if (last)
                remember(n, last, m->version, m->decision, m->skipped);
}

/* An update takes what is ahead for its own. */
static void check_ahead(const struct replica *h, uint32_t node)
{
        const struct record *r = &h->record;

        if (h->ahead && commits(r->decision))
                REQUIRE(h->ahead == r->attempt &&
                                memcmp(h->ahead_parts, r->parts, sizeof r->parts) == 0,
                        "node %u commits attempt %u with planes that are ahead by another sum, of "
                        "attempt %u",
                        node, r->attempt, h->ahead);
}

static void word_run(struct world *w, uint32_t node, const struct message *m,
                     const struct owner_action *a)
{
        struct node *n = &w->nodes[node];
        struct replica *h = &n->replicas[a->replica];

        switch (a->kind) {
        case OWNER_CLASH:
                violate("node %u, at version %u, attempt %u, is told of version %u, attempt %u, "
                        "which does not fit its records",
                        node, n->version, n->attempt, m->version, m->attempt);
                break;
        case OWNER_STAND:
                stands(w, node, m, a);
                break;
        case OWNER_ABORT:
                record_change(&h->record, a);
                break;
        case OWNER_ASK:
                h->preparing = m->flag ? 2 : 1;
                h->prepare_scale = m->scale;
                accumulator_vote(w, node, a->replica);
                break;
        case OWNER_DECIDE:
                record_change(&h->record, a);
                h->record.decision = m->decision;
                h->record.skipped = m->skipped;
                check_ahead(h, node);
                h->running = RUNS_UPDATE;
                break;
        case OWNER_TELL_NORM:
                ranks_tell_norm(w, node);
                break;
        case OWNER_UNDO:
                update_undo(h);
                break;
        case OWNER_BEGIN:
                begin_attempt(w, node);
                ranks_answer(w, node, a->decided);
                ranks_admit(w, node);
                break;
        default:
                violate("node %u does %u at message %u", node, a->kind, m->type);
        }
}

static struct owner_actions word_step(const struct node *n, const struct message *m,
                                      enum owner_event_kind kind)
{
        const struct owner_event e = { .kind = kind,
                                       .version = m->version,
                                       .attempt = m->attempt,
                                       .commit = commits(m->decision),
                                       .norm_only = m->flag };
        const struct owner o = owner_of(n);
        struct owner_actions actions;

        owner_step(&o, &e, &actions);
        return actions;
}

static void word(struct world *w, uint32_t node, const struct message *m,
                 enum owner_event_kind kind)
{
        const struct owner_actions actions = word_step(&w->nodes[node], m, kind);

        for (uint32_t i = 0; i < actions.n; i++)
                word_run(w, node, m, &actions.items[i]);
}

/* The coordinator has filled what this node lacks, and has heard of every vote. */
static void check_start(const struct node *n, uint32_t node)
{
        for (uint32_t c = 0; c < placement.copies && is_owner(node); c++) {
                const struct record *r = &n->replicas[c].record;

                REQUIRE(r->attempt, "node %u begins attempt %u without a state", node, n->attempt);
                REQUIRE(r->phase != OWNER_PREPARED,
                        "node %u begins attempt %u with a vote in attempt %u", node, n->attempt,
                        r->attempt);
        }
}

void job_tear(struct world *w, uint32_t node, uint32_t copy)
{
        const struct message m = take(w, COORDINATOR, node);
        const struct owner_actions actions = word_step(&w->nodes[node], &m, OWNER_DECISION);

        for (uint32_t i = 0; i < actions.n; i++)
                if (actions.items[i].kind == OWNER_DECIDE && actions.items[i].replica == copy)
                        word_run(w, node, &m, &actions.items[i]);
        daemon_crash(w, node);
}

/* ---- a replica ---- */

static void vote(struct world *w, uint32_t node, const struct owner_action *a)
{
        struct replica *h = &w->nodes[node].replicas[a->replica];
        struct record *r = &h->record;

        bool norm = h->preparing == 2;
        u8 vote = vote_of(holder_owner(&placement, holder_on(node, a->replica)), r->version,
                          r->skipped);

        h->preparing = 0;
        if (!norm) {
                record_change(r, a);
                accumulator_sum(w, node, a->replica, r->parts);
                r->vote = vote;
                r->scale = h->prepare_scale;
        }
        send(w, node, COORDINATOR,
             (struct message){ .type = PREPARED,
                               .copy = (u8)a->replica,
                               .attempt = w->nodes[node].attempt,
                               .vote = vote,
                               .flag = norm });
}

static void replica_run(struct world *w, uint32_t node, const struct owner_action *a)
{
        struct record *r = &w->nodes[node].replicas[a->replica].record;

        switch (a->kind) {
        case OWNER_VOTE:
                vote(w, node, a);
                break;
        case OWNER_FINISH:
                record_change(r, a);
                r->planes = (u8)(r->planes + commits(r->decision));
                break;
        case OWNER_TELL_DONE:
                send(w, node, COORDINATOR,
                     (struct message){
                             .type = DONE, .copy = (u8)a->replica, .attempt = r->decided_attempt });
                break;
        default:
                violate("node %u does %u by itself", node, a->kind);
        }
}

static void replica_event(struct world *w, uint32_t node, uint32_t copy, enum owner_event_kind kind)
{
        struct owner o = owner_of_replica(&w->nodes[node], copy);
        const struct owner_event e = { .kind = kind };
        struct owner_actions actions;

        o.replicas[0].summed = accumulator_complete(w, node, copy);
        owner_step(&o, &e, &actions);
        for (uint32_t i = 0; i < actions.n; i++)
                replica_run(w, node, &actions.items[i]);
}

void replica_summed(struct world *w, uint32_t node, uint32_t copy)
{
        replica_event(w, node, copy, OWNER_SUMMED);
}

void update_finish(struct world *w, uint32_t node, uint32_t copy)
{
        struct replica *h = &w->nodes[node].replicas[copy];
        bool undone = h->running == RUNS_UNDO;

        h->running = RUNS_NOTHING;
        h->ahead = 0;
        memset(h->ahead_parts, 0, sizeof h->ahead_parts);
        if (!undone)
                replica_event(w, node, copy, OWNER_UPDATED);
        accumulator_vote(w, node, copy);
}

bool lead_can(const struct world *w, uint32_t node, uint32_t copy)
{
        const struct node *n = &w->nodes[node];
        const struct replica *h = &n->replicas[copy];

        return bounds.eager && h->record.attempt && !h->running && !h->ahead &&
               h->record.phase != OWNER_DECIDED && h->record.version == n->version &&
               accumulator_complete(w, node, copy);
}

void lead(struct world *w, uint32_t node, uint32_t copy)
{
        struct replica *h = &w->nodes[node].replicas[copy];

        h->ahead = w->nodes[node].attempt;
        accumulator_sum(w, node, copy, h->ahead_parts);
}

void update_undo(struct replica *h)
{
        if (h->ahead && !h->running)
                h->running = RUNS_UNDO;
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
                word(w, node, m, OWNER_START);
                check_start(n, node);
                break;
        case PART_TOLD:
                if (m->flag)
                        rank_fence(w, node, m);
                break;
        case PREPARE:
                word(w, node, m, OWNER_PREPARE);
                break;
        case DECISION:
                word(w, node, m, OWNER_DECISION);
                break;
        case OFFER:
                accumulator_offer(w, node, from, m);
                break;
        default:
                violate("node %u got message %u", node, m->type);
        }
}
