/*
 * The nodes' part in a job: daemon/job/rules/owner.h as it is.  Messages become events, and actions
 * change records, as in engine/job.c, reduce/vote.c and update/.
 *
 * All sums are complete when the coordinator asks for votes: offers and payloads are not simulated
 * here.
 */
#include "client/simulate/simulate.h"

/* ---- what the node knows ----------------------------------------------------------------- */

static struct owner_replica replica_facts(const struct replica *h, uint32_t id)
{
        return (struct owner_replica){ .id = id,
                                       .record = h->record,
                                       .in_force = true,
                                       .updating = h->updating,
                                       .asked = h->asked,
                                       .closing = true,
                                       .summed = true };
}

static struct owner owner_of(const struct node *n)
{
        struct owner o = { .version = n->version, .attempt = n->attempt, .started = n->started };

        for (uint32_t i = 0; i < n->n_replicas; i++)
                o.replicas[o.n++] = replica_facts(&n->replicas[i], i);
        return o;
}

static void replica_step(const struct node *n, uint32_t id, enum owner_event_kind kind,
                         struct owner_actions *ret)
{
        const struct owner o = { .version = n->version,
                                 .attempt = n->attempt,
                                 .started = n->started,
                                 .n = 1,
                                 .replicas = { replica_facts(&n->replicas[id], id) } };

        owner_step(&o, &(struct owner_event){ .kind = kind }, ret);
}

/* ---- joining, opening -------------------------------------------------------------------- */

static void to_coordinator(struct world *w, uint32_t node, struct message m)
{
        m.from = node;
        m.to = w->coordinator;
        world_send(w, m);
}

static void ranks_join(struct world *w, uint32_t node)
{
        for (uint32_t r = 0; r < w->d->ranks; r++)
                to_coordinator(
                        w, node,
                        (struct message){ .kind = KIND_join, .rank = node * w->d->ranks + r });
}

static void replicas_make(const struct placement *p, uint32_t node, struct node *n)
{
        for (uint32_t h = 0; h < placement_holders(p); h++)
                if (holder_node(p, h) == node)
                        n->replicas[n->n_replicas++] =
                                (struct replica){ .owner = holder_owner(p, h),
                                                  .copy = holder_copy(p, h),
                                                  .record.attempt = 1 };
        n->attempt = n->n_replicas ? 1 : 0;
}

static void on_open(struct world *w, uint32_t node, const struct message *m)
{
        struct node *n = &w->nodes[node];
        bool creates = m->flag && !n->has_job;

        if (creates) {
                n->has_job = true;
                replicas_make(&w->d->placement, node, n);
        }
        to_coordinator(w, node, (struct message){ .kind = KIND_opened, .flag = creates });
}

/* ---- steps ------------------------------------------------------------------------------- */

static void attempt_begins(struct world *w, uint32_t node)
{
        if (w->nodes[node].version < STEPS)
                world_wake(w, node, w->d->step + world_random(w, w->d->latency + 1),
                           (struct message){ .kind = WAKE_READY });
}

static void replica_votes(struct world *w, uint32_t node, uint32_t id)
{
        struct node *n = &w->nodes[node];
        struct replica *h = &n->replicas[id];
        struct owner_actions actions;

        if (!h->asked)
                return;
        replica_step(n, id, OWNER_SUMMED, &actions);
        if (!actions.n)
                return;
        h->asked = false; /* OWNER_VOTE */
        h->record = actions.items[0].record;
        to_coordinator(w, node,
                       (struct message){ .kind = KIND_prepared,
                                         .attempt = n->attempt,
                                         .owner = h->owner,
                                         .copy = h->copy });
}

static void word_run(struct world *w, uint32_t node, const struct owner_action *a)
{
        struct node *n = &w->nodes[node];
        struct replica *h = &n->replicas[a->replica];

        switch (a->kind) {
        case OWNER_STAND:
                n->version = a->version;
                n->attempt = a->attempt;
                n->started = true;
                break;
        case OWNER_ABORT:
                h->record = a->record;
                break;
        case OWNER_ASK:
                h->asked = true;
                replica_votes(w, node, a->replica);
                break;
        case OWNER_DECIDE:
                h->record = a->record;
                h->updating = true;
                world_wake(w, node, w->d->update,
                           (struct message){ .kind = WAKE_UPDATED, .owner = a->replica });
                break;
        case OWNER_BEGIN:
                attempt_begins(w, node);
                break;
        default:
                fault_set(&w->fault, ZERO_EINTERNAL, "owner %u on node %u does %d", h->owner, node,
                          (int)a->kind);
        }
}

static void on_word(struct world *w, uint32_t node, enum owner_event_kind kind,
                    const struct message *m)
{
        const struct owner_event e = {
                .kind = kind, .version = m->version, .attempt = m->attempt, .commit = m->flag
        };
        const struct owner o = owner_of(&w->nodes[node]);
        struct owner_actions actions;

        owner_step(&o, &e, &actions);
        for (uint32_t i = 0; i < actions.n; i++)
                word_run(w, node, &actions.items[i]);
}

static void on_updated(struct world *w, uint32_t node, uint32_t id)
{
        struct node *n = &w->nodes[node];
        struct replica *h = &n->replicas[id];
        struct owner_actions actions;
        uint64_t decided = h->record.decided_attempt;

        replica_step(n, id, OWNER_UPDATED, &actions);
        h->updating = false;
        for (uint32_t i = 0; i < actions.n; i++)
                if (actions.items[i].kind == OWNER_FINISH)
                        h->record = actions.items[i].record;
                else
                        to_coordinator(w, node,
                                       (struct message){ .kind = KIND_done,
                                                         .attempt = decided,
                                                         .owner = h->owner,
                                                         .copy = h->copy });
        replica_votes(w, node, id);
}

void node_handle(struct world *w, uint32_t node, const struct message *m)
{
        switch (m->kind) {
        case KIND_open:
                on_open(w, node, m);
                break;
        case KIND_start:
                on_word(w, node, OWNER_START, m);
                break;
        case KIND_prepare:
                on_word(w, node, OWNER_PREPARE, m);
                break;
        case KIND_decision:
                on_word(w, node, OWNER_DECISION, m);
                break;
        case WAKE_JOIN:
                ranks_join(w, node);
                break;
        case WAKE_READY:
                to_coordinator(w, node,
                               (struct message){ .kind = KIND_ready,
                                                 .attempt = w->nodes[node].attempt,
                                                 .rank = node * w->d->ranks });
                break;
        case WAKE_UPDATED:
                on_updated(w, node, m->owner);
                break;
        default: /* an answer: nothing was refused */
                break;
        }
}
