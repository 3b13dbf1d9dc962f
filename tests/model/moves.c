/*
 * explore-moves - everything that can happen to a job whose owner list changes: a breadth-first
 * search over all orders of messages, of nodes that hear of a list and start anew with it, of
 * daemons that are killed and start again, of states that are lost, of nodes that never come back
 * and of links that break (moves.h defines a state and lists what is left out).
 *
 * In every state: what was committed last is whole in one placement at least, and once one was
 * whole in that or a later one; the planes of a state are of its version, and a version was made by
 * one attempt, wherever it is held; what is pulled for a holder is of one version and one attempt;
 * a step is decided once, when all who hold states in force have voted; a job that goes on does so
 * from there; what the store asserts of a record holds.  Where nothing can happen any more, and
 * from every sixty-fourth state if no fault comes any more: all nodes go by the last list, hold
 * what it says at the last version, and nothing of earlier ones.  (Where a node that is waited for
 * is dead for good, a person has the next word.)
 *
 * Each of these changes to the code ends in a violation or an assertion:
 * the end of a move hangs on the states that it came from; Settle voids what was decided, or
 * carries out what is void; Placed of another list deletes; states in force count though some lack;
 * the oldest old placement is chosen, or one that is not whole; outdated copies count, or give;
 * what a node told before it was killed counts though it does not tell of it again; a placement
 * that was worked on since is passed over, or a list of which nobody has told, or one of a few that
 * have; a list counts as whole while holders lack their states; a fill that ended is not asked for
 * again. One change is not found: fills may begin before all have settled, because sources refuse
 * until then.
 *
 * explore-moves NAME... searches within the bounds of that name; without a name it lists them.
 * The shortest way to a fault is printed, event by event.
 */
#include <stdio.h>
#include <string.h>

#include "moves.h"

enum event_kind {
        EVENT_DELIVER,
        EVENT_LINK,
        EVENT_START,
        EVENT_CHOOSE,
        EVENT_LEARN,
        EVENT_UPDATED,
        EVENT_FILL,
        EVENT_STEP,
        EVENT_TICK,
        /* faults */
        EVENT_CRASH,
        EVENT_WIPE,
        EVENT_DIE,
        EVENT_CUT,
        EVENT_HASTE
};

static const char *const message_names[] = { "",         "Open",     "Opened", "Settle", "Settled",
                                             "Fill",     "Filled",   "Placed", "Start",  "Prepare",
                                             "Prepared", "Decision", "Done" };

/* ---- what can happen ---------------------------------------------------------------------- */

static void add(struct event *events, uint32_t *n, enum event_kind kind, uint32_t a, uint32_t b)
{
        events[(*n)++] = (struct event){ (u8)kind, (u8)a, (u8)b };
}

/* Whether an earlier holder is being filled: with fewer orders, one holder pulls after the other.
 */
static bool fills_before(const struct world *w, uint32_t node, uint32_t copy)
{
        for (uint32_t i = 0; i < node * COPIES + copy; i++)
                if (w->nodes[i / COPIES].fillings[i % COPIES].active)
                        return true;
        return false;
}

static void node_events(const struct world *w, uint32_t a, struct event *e, uint32_t *n)
{
        const struct node *node = &w->nodes[a];

        if (!node->alive) {
                if (!node->dead)
                        add(e, n, EVENT_START, a, 0);
                return;
        }
        for (u8 placement = (u8)(node->epoch + 1); placement <= w->chosen; placement++)
                add(e, n, EVENT_LEARN, a, placement);
        for (uint32_t i = 0; i < PLACEMENTS * COPIES; i++)
                if (node->states[i / COPIES][i % COPIES].running)
                        add(e, n, EVENT_UPDATED, a, i);
        for (uint32_t c = 0; c < COPIES; c++)
                if (node->fillings[c].active && (!bounds.less || !fills_before(w, a, c)))
                        add(e, n, EVENT_FILL, a, c);
        if (coordinator_can_step(w, a))
                add(e, n, EVENT_STEP, a, 0);
        if (coordinator_of(w, a) == a)
                add(e, n, EVENT_TICK, a, 0);
}

static bool chooses(const struct world *w)
{
        for (uint32_t a = 0; a < bounds.n_nodes; a++)
                if (w->nodes[a].alive && w->nodes[a].epoch == w->chosen)
                        return w->chosen + 1 < n_placements;
        return false;
}

static uint32_t ordinary(const void *world, struct event *e)
{
        const struct world *w = world;
        uint32_t n = 0;

        for (uint32_t a = 0; a < bounds.n_nodes; a++)
                if (w->count[a][a]) { /* a daemon hears its own messages at once */
                        add(e, &n, EVENT_DELIVER, a, a);
                        return n;
                }
        for (uint32_t a = 0; a < bounds.n_nodes; a++) {
                for (uint32_t b = 0; b < bounds.n_nodes; b++)
                        if (w->count[a][b])
                                add(e, &n, EVENT_DELIVER, a, b);
                for (uint32_t b = a + 1; b < bounds.n_nodes; b++)
                        if (w->nodes[a].alive && w->nodes[b].alive && !linked(w, a, b) &&
                            w->nodes[a].epoch == w->nodes[b].epoch)
                                add(e, &n, EVENT_LINK, a, b);
                node_events(w, a, e, &n);
        }
        if (chooses(w))
                add(e, &n, EVENT_CHOOSE, 0, 0);
        return n;
}

/* Whether there is another copy of what is lost. */
static bool can_lose(const struct world *w, uint32_t node)
{
        struct world without = *w;

        memset(without.nodes[node].states, 0, sizeof without.nodes[node].states);
        return truth_kept(&without);
}

static void faults(const void *world, struct event *e, uint32_t *n)
{
        const struct world *w = world;

        if (w->crashes + w->wipes + w->deaths + w->cuts + w->hastes >= bounds.faults)
                return;
        for (uint32_t a = 0; a < bounds.n_nodes; a++) {
                if (!w->nodes[a].alive)
                        continue;
                if (w->crashes < bounds.crashes)
                        add(e, n, EVENT_CRASH, a, 0);
                if (w->wipes < bounds.wipes && can_lose(w, a))
                        add(e, n, EVENT_WIPE, a, 0);
                if (w->deaths < bounds.deaths && can_lose(w, a))
                        add(e, n, EVENT_DIE, a, 0);
                if (w->hastes < bounds.hastes && coordinator_waits(w, a))
                        add(e, n, EVENT_HASTE, a, 0);
                for (uint32_t b = a + 1; w->cuts < bounds.cuts && b < bounds.n_nodes; b++)
                        if (linked(w, a, b))
                                add(e, n, EVENT_CUT, a, b);
        }
}

static void lose(struct world *w, uint32_t node, bool dead)
{
        daemon_crash(w, node);
        w->nodes[node] = (struct node){ .dead = dead };
}

static void happen(void *world, struct event e)
{
        struct world *w = world;

        switch ((enum event_kind)e.kind) {
        case EVENT_DELIVER:
                deliver(w, e.a, e.b);
                break;
        case EVENT_LINK:
                link_make(w, e.a, e.b);
                break;
        case EVENT_START:
                daemon_start(w, e.a);
                break;
        case EVENT_CHOOSE:
                w->chosen++;
                break;
        case EVENT_LEARN:
                daemon_learn(w, e.a, e.b);
                break;
        case EVENT_UPDATED:
                update_finish(w, e.a, e.b / COPIES, e.b % COPIES);
                break;
        case EVENT_FILL:
                filling_goes_on(w, e.a, e.b);
                break;
        case EVENT_STEP:
                coordinator_begin(w, e.a);
                break;
        case EVENT_TICK:
                coordinator_tick(w, e.a);
                break;
        case EVENT_CRASH:
                w->crashes++;
                daemon_crash(w, e.a);
                break;
        case EVENT_WIPE:
                w->wipes++;
                lose(w, e.a, false);
                break;
        case EVENT_DIE:
                w->deaths++;
                lose(w, e.a, true);
                break;
        case EVENT_CUT:
                w->cuts++;
                link_cut(w, e.a, e.b);
                break;
        case EVENT_HASTE:
                w->hastes++;
                coordinator_hasten(w, e.a);
                break;
        }
        world_check(w);
}

/* Without further faults: lets everything that can happen do so, one event after the other. */
static void alone(const void *world)
{
        struct world w = *(const struct world *)world;
        struct event e[SEARCH_EVENTS];

        for (uint32_t i = 0; i < 1000; i++) {
                struct world before = w;
                uint32_t n = ordinary(&w, e), tries = 0;

                while (tries < n && memcmp(&w, &before, sizeof w) == 0)
                        happen(&w, e[(i + tries++) % n]);
                if (violation[0] || memcmp(&w, &before, sizeof w) == 0)
                        break;
        }
        if (!world_done(&w))
                violate("left alone, it does not come to its end");
}

/* ---- in words -------------------------------------------------------------------------------- */

static void print_event(const void *world, struct event e)
{
        const struct world *w = world;
        static const char *const names[] = { "",
                                             "",
                                             "starts",
                                             "",
                                             "",
                                             "",
                                             "",
                                             "begins a step",
                                             "ticks",
                                             "is KILLED",
                                             "is KILLED and loses its states",
                                             "DIES",
                                             "",
                                             "does NOT WAIT any longer" };
        uint32_t at = 0;

        switch ((enum event_kind)e.kind) {
        case EVENT_DELIVER:
                for (uint32_t i = 0; i < (uint32_t)NODES * e.a + e.b; i++)
                        at += w->count[i / NODES][i % NODES];
                printf("node %u gets %s of node %u (attempt %u, version %u, status %u)\n", e.b,
                       message_names[w->messages[at].type], e.a, w->messages[at].attempt,
                       w->messages[at].version, w->messages[at].status);
                break;
        case EVENT_LINK:
        case EVENT_CUT:
                printf("the link of nodes %u and %u %s\n", e.a, e.b,
                       e.kind == EVENT_CUT ? "BREAKS" : "stands");
                break;
        case EVENT_CHOOSE:
                printf("list %u is chosen: %s\n", w->chosen + 1, bounds.lists[w->chosen + 1]);
                break;
        case EVENT_LEARN:
                printf("node %u starts anew with list %u\n", e.a, e.b);
                break;
        case EVENT_UPDATED:
                printf("node %u has carried the decision out (list %u, copy %u)\n", e.a,
                       e.b / COPIES, e.b % COPIES);
                break;
        case EVENT_FILL:
                printf("node %u fills copy %u further\n", e.a, e.b);
                break;
        default:
                printf("node %u %s\n", e.a, names[e.kind]);
        }
}

static void print_state(const struct state *s, uint32_t epoch, uint32_t copy)
{
        static const char *const phases[] = { "open", "prepared", "decided" };

        if (s->attempt)
                printf("; list %u copy %u: version %u, attempt %u %s, last %u", epoch, copy,
                       s->version, s->attempt, phases[s->phase], s->decided);
}

static void print(const void *world)
{
        const struct world *w = world;

        for (uint32_t n = 0; n < bounds.n_nodes; n++) {
                const struct node *d = &w->nodes[n];
                const struct coordination *c = &d->c;

                printf("  node %u: %s, list %u, links %x", n,
                       d->alive  ? "alive"
                       : d->dead ? "dead"
                                 : "away",
                       d->epoch, d->links);
                for (uint32_t e = 0; e < PLACEMENTS; e++)
                        for (uint32_t copy = 0; copy < COPIES; copy++)
                                print_state(&d->states[e][copy], e, copy);
                if (c->there)
                        printf("\n    coordinates: settled %u, whole %u, fault %u, from %d, nodes "
                               "%u%u%u, version %u, attempt %u, last %u, phase %u, done %x, "
                               "filling "
                               "%x",
                               c->settled, c->whole, c->fault, c->old_placement - 1, c->nodes[0],
                               c->nodes[1], c->nodes[2], c->version, c->attempt, c->decided,
                               c->phase, c->done, c->filling);
                printf("\n");
        }
        printf("  true: version %u of attempt %u\n", w->truth.version, w->truth.attempt);
}

/* ---- bounds ---------------------------------------------------------------------------------- */

static const struct search_case cases[] = {
        { "add", "a node is added, any two faults",
          &(const struct bounds){ .n_nodes = 2,
                                  .lists = { "0", "01" },
                                  .steps = 2,
                                  .crashes = 2,
                                  .cuts = 2,
                                  .faults = 2 } },
        { "remove", "a node is removed, any two faults",
          &(const struct bounds){ .n_nodes = 2,
                                  .lists = { "01", "1" },
                                  .steps = 2,
                                  .crashes = 2,
                                  .cuts = 2,
                                  .faults = 2 } },
        { "replace", "a node is added and the other one removed, any one fault",
          &(const struct bounds){ .n_nodes = 2,
                                  .lists = { "0", "01", "1" },
                                  .steps = 2,
                                  .crashes = 1,
                                  .cuts = 1,
                                  .faults = 1 } },
        { "third", "a third node is added to two, any one fault",
          &(const struct bounds){ .n_nodes = 3,
                                  .lists = { "01", "021" },
                                  .steps = 1,
                                  .crashes = 1,
                                  .cuts = 1,
                                  .faults = 1 } },
        { "third-back", "a third node is added to two and taken away again, a crash",
          &(const struct bounds){ .n_nodes = 3,
                                  .lists = { "01", "021", "01" },
                                  .coordinator = 1,
                                  .steps = 1,
                                  .crashes = 1,
                                  .faults = 1,
                                  .less = true } },
        { "mirror",
          "of two nodes that mirror each other one is removed and added again, a crash or a loss",
          &(const struct bounds){ .n_nodes = 2,
                                  .mirror = true,
                                  .lists = { "01", "0", "01" },
                                  .steps = 1,
                                  .crashes = 1,
                                  .wipes = 1,
                                  .faults = 1,
                                  .less = true } },
        { "takeover", "two nodes that mirror each other, one dies and is taken over, and a crash",
          &(const struct bounds){ .n_nodes = 2,
                                  .mirror = true,
                                  .lists = { "01", "0" },
                                  .steps = 2,
                                  .crashes = 1,
                                  .deaths = 1,
                                  .faults = 2,
                                  .less = true } },
        { "ring",
          "of three nodes that mirror each other one is removed, one is lost, for good or not",
          &(const struct bounds){ .n_nodes = 3,
                                  .mirror = true,
                                  .lists = { "012", "01" },
                                  .steps = 1,
                                  .wipes = 1,
                                  .deaths = 1,
                                  .faults = 1,
                                  .less = true } },
        { "broken-off",
          "a third node is added to two that mirror each other; one dies and is taken over",
          &(const struct bounds){ .n_nodes = 3,
                                  .mirror = true,
                                  .lists = { "01", "021", "02" },
                                  .steps = 1,
                                  .deaths = 1,
                                  .faults = 1,
                                  .less = true } },
        { "returns", "as mirror, and then the other one is removed, a crash",
          &(const struct bounds){ .n_nodes = 2,
                                  .mirror = true,
                                  .lists = { "01", "0", "01", "1" },
                                  .steps = 1,
                                  .crashes = 1,
                                  .faults = 1,
                                  .less = true } },
        { "outdated", "as mirror, and a coordinator does not wait for what others have",
          &(const struct bounds){ .n_nodes = 2,
                                  .mirror = true,
                                  .lists = { "01", "0", "01" },
                                  .steps = 1,
                                  .hastes = 1,
                                  .faults = 1,
                                  .less = true } },
        { "two-faults", "as takeover, any two faults",
          &(const struct bounds){ .n_nodes = 2,
                                  .mirror = true,
                                  .lists = { "01", "0" },
                                  .steps = 2,
                                  .crashes = 1,
                                  .wipes = 1,
                                  .deaths = 1,
                                  .cuts = 1,
                                  .faults = 2 } },
        { "ring-faults", "as ring, any one fault",
          &(const struct bounds){ .n_nodes = 3,
                                  .mirror = true,
                                  .lists = { "012", "01" },
                                  .steps = 1,
                                  .crashes = 1,
                                  .wipes = 1,
                                  .deaths = 1,
                                  .cuts = 1,
                                  .faults = 1 } },
        { "haste", "as returns, and a coordinator does not wait for what others have",
          &(const struct bounds){ .n_nodes = 2,
                                  .mirror = true,
                                  .lists = { "01", "0", "01", "1" },
                                  .steps = 1,
                                  .hastes = 1,
                                  .faults = 1,
                                  .less = true } },
        { "haste-back",
          "a node is taken out and comes back, a coordinator does not wait, and a fault",
          &(const struct bounds){ .n_nodes = 2,
                                  .lists = { "0", "1", "0" },
                                  .steps = 2,
                                  .crashes = 1,
                                  .cuts = 1,
                                  .hastes = 1,
                                  .faults = 2 } },
        { "haste-on", "one node after the other, a coordinator does not wait, and a crash",
          &(const struct bounds){ .n_nodes = 3,
                                  .lists = { "0", "1", "2" },
                                  .steps = 1,
                                  .crashes = 1,
                                  .hastes = 1,
                                  .faults = 2,
                                  .less = true } },
        { "haste-half", "one node, two others, and one of each, a coordinator does not wait",
          &(const struct bounds){ .n_nodes = 3,
                                  .lists = { "2", "01", "12" },
                                  .steps = 1,
                                  .hastes = 1,
                                  .faults = 1,
                                  .less = true } },
};

static void begin(const struct bounds *b)
{
        bounds = *b;
}

int main(int argc, char **argv)
{
        static const struct search s = { .size = sizeof(struct world),
                                         .bytes = world_bytes,
                                         .init = world_init,
                                         .ordinary = ordinary,
                                         .faults = faults,
                                         .happen = happen,
                                         .done = world_done,
                                         .alone = alone,
                                         .every = 64,
                                         .print_event = print_event,
                                         .print = print };

        return search_main(argc, argv, &s, cases, sizeof cases / sizeof cases[0], begin);
}
