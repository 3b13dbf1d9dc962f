/*
 * Clocks and links: events in the order of their times, and at one time in an order that the seed
 * chooses.
 *
 * A node's loop handles one message at a time, and spends the same time on each that it receives or
 * sends.  A message takes the latency of the link and up to as much again.  All simulated messages
 * go to or from the coordinator's node, and those of one link arrive in the order of sending.
 */
#include "client/simulate/simulate.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

struct event {
        uint64_t at, tie;
        bool idle; /* the node's loop is free; otherwise a message has come */
        struct message m;
};

struct waiting {
        struct waiting *next;
        struct message m;
};

#define X(name) #name,
const char *const kind_names[KINDS] = { SIMULATED_KINDS(X) };
#undef X

int world_init(struct world *w, const struct description *d)
{
        *w = (struct world){ .d = d, .random = d->seed };
        w->coordinator = placement_coordinator(&d->placement, d->job);
        w->nodes = calloc(d->nodes, sizeof *w->nodes);
        w->waiting = calloc(d->nodes, sizeof *w->waiting);
        for (uint32_t p = 0; p < PHASES; p++) {
                w->tallies[p] = calloc(d->nodes, sizeof *w->tallies[p]);
                w->began[p] = UINT64_MAX;
                if (!w->tallies[p])
                        return -ENOMEM;
        }
        if (!w->nodes || !w->waiting)
                return -ENOMEM;
        for (uint32_t n = 0; n < d->nodes; n++)
                w->nodes[n].end = &w->nodes[n].first;
        return coordination_new(w);
}

void world_deinit(struct world *w)
{
        for (uint32_t n = 0; w->nodes && n < w->d->nodes; n++)
                while (w->nodes[n].first) {
                        struct waiting *next = w->nodes[n].first->next;

                        free(w->nodes[n].first);
                        w->nodes[n].first = next;
                }
        for (uint32_t p = 0; p < PHASES; p++)
                free(w->tallies[p]);
        coordination_free(w->coordination);
        free(w->heap);
        free(w->waiting);
        free(w->nodes);
}

/* SplitMix64 (Steele, Lea, Flood, OOPSLA 2014). */
uint64_t world_random(struct world *w, uint64_t below)
{
        uint64_t x = w->random += 0x9e3779b97f4a7c15;

        x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
        x = (x ^ x >> 27) * 0x94d049bb133111eb;
        return (x ^ x >> 31) % below;
}

/* ---- events ------------------------------------------------------------------------------ */

static bool is_before(const struct event *a, const struct event *b)
{
        return a->at < b->at || (a->at == b->at && a->tie < b->tie);
}

static void event_add(struct world *w, struct event e)
{
        uint64_t i = w->n_events++;

        if (i == w->capacity) {
                w->capacity = w->capacity ? 2 * w->capacity : 1024;
                w->heap = realloc(w->heap, w->capacity * sizeof *w->heap);
                if (!w->heap)
                        abort(); /* nothing sensible is left to do */
        }
        e.tie = world_random(w, UINT64_MAX);
        for (; i && is_before(&e, &w->heap[(i - 1) / 2]); i = (i - 1) / 2)
                w->heap[i] = w->heap[(i - 1) / 2];
        w->heap[i] = e;
}

static struct event event_take(struct world *w)
{
        struct event first = w->heap[0], last = w->heap[--w->n_events];
        uint64_t i = 0, next;

        while ((next = 2 * i + 1) < w->n_events) {
                next += next + 1 < w->n_events && is_before(&w->heap[next + 1], &w->heap[next]);
                if (!is_before(&w->heap[next], &last))
                        break;
                w->heap[i] = w->heap[next];
                i = next;
        }
        w->heap[i] = last;
        return first;
}

/* ---- sending ----------------------------------------------------------------------------- */

/* An answer has the phase of the call. */
static uint32_t phase_of(const struct world *w, const struct message *m)
{
        if (m->kind == KIND_answer ? !m->phase : m->kind < KIND_ready)
                return 0;
        return (uint32_t)(m->attempt - w->first_attempt) + 1;
}

void world_send(struct world *w, struct message m)
{
        uint64_t at = w->free += w->d->message;

        m.phase = phase_of(w, &m);
        assert(m.phase < PHASES && (m.from == w->coordinator || m.to == w->coordinator));
        if (w->began[m.phase] == UINT64_MAX)
                w->began[m.phase] = w->now;
        if (m.from != m.to) {
                struct node *other = &w->nodes[m.from == w->coordinator ? m.to : m.from];
                uint64_t *due = &other->due[m.to == w->coordinator];

                at += w->d->latency + world_random(w, w->d->latency + 1);
                at = *due = at > *due ? at : *due + 1;
                w->tallies[m.phase][m.from].sent[m.kind]++;
                w->tallies[m.phase][m.to].received[m.kind]++;
        }
        event_add(w, (struct event){ .at = at, .m = m });
}

void world_wake(struct world *w, uint32_t node, uint64_t after, struct message m)
{
        m.from = m.to = node;
        event_add(w, (struct event){ .at = w->now + after, .m = m });
}

/* ---- handling ---------------------------------------------------------------------------- */

/* Counts the nodes whose messages wait for the coordinator's loop. */
static void incast_count(struct world *w, const struct message *m, bool comes)
{
        if (m->to != w->coordinator || m->from == m->to)
                return;
        if (!comes) {
                w->n_waiting -= --w->waiting[m->from] == 0;
                return;
        }
        w->n_waiting += w->waiting[m->from]++ == 0;
        if (m->phase && w->n_waiting > w->incast.senders)
                w->incast = (struct incast){ w->n_waiting, m->to, m->kind };
}

static void message_handle(struct world *w, const struct message *m)
{
        incast_count(w, m, false);
        switch (m->kind) {
        case KIND_join:
        case KIND_opened:
        case KIND_ready:
        case KIND_prepared:
        case KIND_done:
                coordination_handle(w, m);
                break;
        default:
                node_handle(w, m->to, m);
        }
        if (m->kind < KINDS && w->ended[m->phase] < w->free)
                w->ended[m->phase] = w->free;
        if ((m->kind == KIND_start || m->kind == KIND_decision) && w->told[m->phase] < w->free)
                w->told[m->phase] = w->free;
}

/* Handles the next message, if the loop is free. */
static void loop_turn(struct world *w, struct node *n)
{
        struct waiting *next = n->first;

        if (n->busy || !next)
                return;
        n->first = next->next;
        if (!n->first)
                n->end = &n->first;
        w->free = w->now + (next->m.kind < KINDS ? w->d->message : 0);
        message_handle(w, &next->m);
        n->busy = true;
        event_add(w, (struct event){ .at = w->free, .idle = true, .m.to = next->m.to });
        free(next);
}

static void event_run(struct world *w, const struct event *e)
{
        struct node *n = &w->nodes[e->m.to];

        if (e->idle) {
                n->busy = false;
        } else {
                struct waiting *new = malloc(sizeof *new);

                if (!new)
                        abort(); /* nothing sensible is left to do */
                *new = (struct waiting){ .m = e->m };
                *n->end = new;
                n->end = &new->next;
                incast_count(w, &e->m, true);
        }
        loop_turn(w, n);
}

/* Every node stands behind the last step, with all of its replicas. */
static bool all_stand(const struct world *w)
{
        for (uint32_t n = 0; n < w->d->nodes; n++) {
                const struct node *node = &w->nodes[n];

                if (node->version != STEPS)
                        return false;
                for (uint32_t i = 0; i < node->n_replicas; i++)
                        if (node->replicas[i].record.version != STEPS ||
                            node->replicas[i].record.phase != OWNER_OPEN)
                                return false;
        }
        return true;
}

int world_run(struct world *w)
{
        for (uint32_t n = 0; n < w->d->nodes; n++)
                world_wake(w, n, world_random(w, w->d->latency + 1),
                           (struct message){ .kind = WAKE_JOIN });
        while (w->n_events && !w->fault.status) {
                struct event e = event_take(w);

                w->now = e.at;
                event_run(w, &e);
        }
        if (!w->fault.status && !all_stand(w))
                fault_set(&w->fault, ZERO_EINTERNAL, "the job stands still before step %d", STEPS);
        return w->fault.status;
}
