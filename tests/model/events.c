/* What can happen to a world. */
#include "events.h"

#include <stdio.h>
#include <string.h>

static const char *const message_names[] = { "",
                                             "Join",
                                             "the answer to Join",
                                             "Part",
                                             "Part (told)",
                                             "Open",
                                             "Opened",
                                             "Start",
                                             "Ready",
                                             "the refusal of Ready",
                                             "Prepare",
                                             "Prepared",
                                             "Decision",
                                             "Done",
                                             "Offer",
                                             "Links",
                                             "Fill",
                                             "Filled" };

/* ---- what can happen ---- */

static void add(struct event *events, uint32_t *n, enum event_kind kind, uint32_t a, uint32_t b)
{
        events[(*n)++] = (struct event){ (u8)kind, (u8)a, (u8)b };
}

static void link_events(const struct world *w, uint32_t a, uint32_t b, struct event *e, uint32_t *n)
{
        bool up = is_up(w, a, b), connected = w->connected[a] >> b & 1;

        if (w->count[b][a] && is_up(w, a, b))
                add(e, n, EVENT_DELIVER, b, a);
        if (a == b)
                return;
        if (connected && !up && (a < b || is_up(w, b, a) || !(bounds.less & LESS_UP)))
                add(e, n, EVENT_UP, a, b);
        if (!connected && up)
                add(e, n, EVENT_DOWN, a, b);
}

static void proc_events(const struct world *w, uint32_t p, struct event *e, uint32_t *n)
{
        const struct proc *proc = &w->procs[p];

        if (proc->state == PROC_AWAY && w->nodes[proc->node].alive)
                add(e, n, EVENT_ATTACH, p, 0);
        if (proc_can_push(w, p))
                add(e, n, EVENT_PUSH, p, 0);
        if (proc->state == PROC_RUNS && proc->version < bounds.steps &&
            proc->micro_batch == bounds.micro_batches)
                add(e, n, EVENT_STEP, p, 0);
}

static void replica_events(const struct world *w, uint32_t node, struct event *e, uint32_t *n)
{
        for (uint32_t c = 0; c < placement.copies; c++) {
                if (w->nodes[node].replicas[c].running)
                        add(e, n, EVENT_UPDATED, node, c);
                if (lead_can(w, node, c))
                        add(e, n, EVENT_LEAD, node, c);
                if (w->nodes[node].replicas[c].ahead && !w->nodes[node].replicas[c].running)
                        add(e, n, EVENT_READ, node, c);
                if (fill_can(w, node, c))
                        add(e, n, EVENT_FILL, node, c);
        }
}

/* Everything but faults. */
uint32_t events_ordinary(const void *world, struct event *e)
{
        const struct world *w = world;
        uint32_t n = 0;

        if (bounds.less & LESS_SELF && w->count[COORDINATOR][COORDINATOR]) {
                add(e, &n, EVENT_DELIVER, COORDINATOR, COORDINATOR);
                return n;
        }
        for (uint32_t a = 0; a < bounds.n_nodes; a++) {
                for (uint32_t b = 0; b < bounds.n_nodes; b++)
                        link_events(w, a, b, e, &n);
                if (!w->nodes[a].alive)
                        add(e, &n, EVENT_START, a, 0);
                replica_events(w, a, e, &n);
        }
        for (uint32_t p = 0; p < PROCS; p++)
                proc_events(w, p, e, &n);
        if (w->nodes[COORDINATOR].alive)
                add(e, &n, EVENT_TICK, 0, 0);
        return n;
}

/* Whether there is another copy of what is lost. */
static bool can_wipe(const struct world *w, uint32_t node)
{
        for (uint32_t c = 0; c < placement.copies; c++) {
                uint32_t holder = holder_on(node, c), owner = holder_owner(&placement, holder);
                uint32_t twin = holder_of(&placement, owner, !c);

                if (w->nodes[node].replicas[c].record.attempt &&
                    !w->nodes[holder_node(&placement, twin)].replicas[!c].record.attempt)
                        return false;
        }
        return true;
}

/* Both records of the node are about to hear the same decision. */
static bool can_tear(const struct world *w, uint32_t node)
{
        const struct message *m = first(w, COORDINATOR, node);

        if (!m || m->type != DECISION || !is_up(w, node, COORDINATOR) ||
            m->attempt != w->nodes[node].attempt)
                return false;
        for (uint32_t c = 0; c < COPIES; c++)
                if (w->nodes[node].replicas[c].record.phase != OWNER_PREPARED)
                        return false;
        return true;
}

static void crash_events(const struct world *w, uint32_t node, struct event *e, uint32_t *n)
{
        if (!w->nodes[node].alive)
                return;
        if (w->crashes < bounds.crashes)
                add(e, n, EVENT_CRASH, node, 0);
        for (uint32_t c = 0; c < placement.copies && placement.copies > 1; c++)
                if (w->crashes < bounds.crashes && can_tear(w, node))
                        add(e, n, EVENT_TEAR, node, c);
        if (w->wipes < bounds.wipes && is_owner(node) && can_wipe(w, node))
                add(e, n, EVENT_WIPE, node, 0);
}

void events_faults(const void *world, struct event *e, uint32_t *n)
{
        const struct world *w = world;
        if (w->crashes + w->wipes + w->cuts + w->kills + w->moves >= bounds.faults)
                return;
        for (uint32_t a = 0; a < bounds.n_nodes; a++) {
                crash_events(w, a, e, n);
                for (uint32_t b = a + 1; b < bounds.n_nodes; b++)
                        if (w->cuts < bounds.cuts && w->connected[a] >> b & 1 &&
                            (is_up(w, a, b) || is_up(w, b, a)))
                                add(e, n, EVENT_CUT, a, b);
        }
        for (uint32_t p = 0; p < PROCS; p++) {
                const struct proc *proc = &w->procs[p];

                if (proc->state < PROC_ATTACHING || proc->state > PROC_STEPS)
                        continue;
                if (w->kills < bounds.kills)
                        add(e, n, EVENT_KILL, p, 0);
                for (uint32_t b = 0; w->moves < bounds.moves && b < bounds.n_nodes; b++)
                        if (b != proc->node)
                                add(e, n, EVENT_MOVE, p, b);
        }
}

void event_happen(void *world, struct event e)
{
        struct world *w = world;
        switch ((enum event_kind)e.kind) {
        case EVENT_DELIVER:
                deliver(w, e.a, e.b);
                break;
        case EVENT_UP:
                link_up(w, e.a, e.b);
                if (bounds.less & LESS_UP && !is_up(w, e.b, e.a))
                        link_up(w, e.b, e.a);
                break;
        case EVENT_DOWN:
                link_down(w, e.a, e.b);
                break;
        case EVENT_START:
                daemon_start(w, e.a);
                break;
        case EVENT_UPDATED:
                update_finish(w, e.a, e.b);
                break;
        case EVENT_LEAD:
                lead(w, e.a, e.b);
                break;
        case EVENT_READ:
                update_undo(&w->nodes[e.a].replicas[e.b]);
                break;
        case EVENT_FILL:
                fill_go_on(w, e.a, e.b);
                break;
        case EVENT_ATTACH:
                proc_attach(w, e.a);
                break;
        case EVENT_PUSH:
                proc_push(w, e.a);
                break;
        case EVENT_STEP:
                proc_step(w, e.a);
                break;
        case EVENT_TICK:
                coordinator_tick(w);
                break;
        case EVENT_CRASH:
                w->crashes++;
                daemon_crash(w, e.a);
                break;
        case EVENT_TEAR:
                w->crashes++;
                job_tear(w, e.a, e.b);
                break;
        case EVENT_WIPE:
                w->wipes++;
                daemon_wipe(w, e.a);
                break;
        case EVENT_CUT:
                w->cuts++;
                link_cut(w, e.a, e.b);
                break;
        case EVENT_KILL:
                w->kills++;
                proc_kill(w, e.a);
                break;
        case EVENT_MOVE:
                w->moves++;
                proc_move(w, e.a, e.b);
                break;
        }
        world_check(w);
}

/* ---- in words ---- */

void event_print(const void *world, struct event e)
{
        const struct world *w = world;
        const struct message *m;

        switch ((enum event_kind)e.kind) {
        case EVENT_DELIVER:
                m = first(w, e.a, e.b);
                printf("node %u gets %s of node %u", e.b, message_names[m->type], e.a);
                if (m->attempt)
                        printf(", attempt %u", m->attempt);
                printf("\n");
                break;
        case EVENT_UP:
                printf("node %u sees node %u come up\n", e.a, e.b);
                break;
        case EVENT_DOWN:
                printf("node %u sees that the link to node %u is broken\n", e.a, e.b);
                break;
        case EVENT_START:
                printf("the daemon of node %u starts\n", e.a);
                break;
        case EVENT_UPDATED:
                if (w->nodes[e.a].replicas[e.b].running == RUNS_UNDO)
                        printf("node %u (copy %u) has put its old values back\n", e.a, e.b);
                else
                        printf("node %u (copy %u) has carried the decision of attempt %u out\n",
                               e.a, e.b, w->nodes[e.a].replicas[e.b].record.decided_attempt);
                break;
        case EVENT_LEAD:
                printf("node %u (copy %u) updates ahead of the decision of attempt %u\n", e.a, e.b,
                       w->nodes[e.a].attempt);
                break;
        case EVENT_READ:
                printf("somebody reads planes of node %u (copy %u)\n", e.a, e.b);
                break;
        case EVENT_FILL:
                printf("node %u (copy %u) has %s\n", e.a, e.b,
                       w->nodes[e.a].replicas[e.b].pulled ? "made a state of it"
                                                          : "pulled the other copy's planes");
                break;
        case EVENT_ATTACH:
                printf("process %u (rank %u, incarnation %u) attaches on node %u\n", e.a,
                       w->procs[e.a].rank, w->procs[e.a].incarnation, w->procs[e.a].node);
                break;
        case EVENT_PUSH:
        case EVENT_STEP:
                printf("process %u, version %u, attempt %u: ", e.a, w->procs[e.a].version,
                       w->procs[e.a].attempt);
                if (e.kind == EVENT_PUSH)
                        printf("pushes micro-batch %u\n", w->procs[e.a].micro_batch);
                else
                        printf("calls zero_%s()\n",
                               bounds.norm && !w->procs[e.a].normed ? "norm" : "step");
                break;
        case EVENT_TICK:
                printf("the coordinator ticks\n");
                break;
        case EVENT_CRASH:
                printf("FAULT: the daemon of node %u is killed\n", e.a);
                break;
        case EVENT_TEAR:
                printf("FAULT: the daemon of node %u is killed when copy %u alone has the "
                       "decision\n",
                       e.a, e.b);
                break;
        case EVENT_WIPE:
                printf("FAULT: the daemon of node %u is killed, and its states are lost\n", e.a);
                break;
        case EVENT_CUT:
                printf("FAULT: the link between nodes %u and %u breaks\n", e.a, e.b);
                break;
        case EVENT_KILL:
                printf("FAULT: process %u is killed\n", e.a);
                break;
        case EVENT_MOVE:
                printf("FAULT: a successor of process %u comes up on node %u\n", e.a, e.b);
                break;
        }
}

void world_print(const void *world)
{
        const struct world *w = world;
        for (uint32_t n = 0; n < bounds.n_nodes; n++) {
                const struct node *d = &w->nodes[n];

                printf("  node %u: %s, links %x, version %u, attempt %u", n,
                       d->alive ? "alive" : "dead", d->up, d->version, d->attempt);
                for (uint32_t c = 0; c < placement.copies && is_owner(n); c++)
                        printf("; copy %u: version %u, attempt %u, phase %u, decided %u%s", c,
                               d->replicas[c].record.version, d->replicas[c].record.attempt,
                               d->replicas[c].record.phase, d->replicas[c].record.decided_attempt,
                               d->replicas[c].running ? ", updates" : "");
                printf("\n");
        }
        printf("  coordinator: phase %u, version %u, attempt %u, slots %u%u%u, open %x, done %x, "
               "settled %u\n",
               w->c.phase, w->c.version, w->c.attempt, w->c.rank_slots[0], w->c.rank_slots[1],
               w->c.rank_slots[2], w->c.open, w->c.done, w->c.settled);
        for (uint32_t p = 0; p < PROCS; p++)
                if (w->procs[p].state)
                        printf("  process %u: state %u, version %u, attempt %u\n", p,
                               w->procs[p].state, w->procs[p].version, w->procs[p].attempt);
}
