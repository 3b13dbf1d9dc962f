/*
 * explore - everything that can happen to a small cluster which trains one job: a breadth-first
 * search over all orders of messages, of daemons that are killed and start again, of nodes whose
 * states are lost and filled again from their mirrors, of links that break, of trainers that are
 * killed and of successors on other nodes (world.h says what a state is and what is left out).
 *
 * In every state: the records of owners and mirrors tell of the last decision or the one before,
 * as it was, and their planes are of that version; an attempt is decided once, after all who hold
 * something have voted in it, and always the same way; what they voted for sums exactly one
 * contribution of each rank to each micro-batch, the same on all, of this attempt, computed at this
 * version, by a session that was not fenced; what a trainer is told of an attempt is so, it is
 * never told an older version than before, and its calls are never refused; the newest process of a
 * rank is never fenced; no node that keeps the rules is cut; what the store asserts of a record
 * holds.  Where nothing can happen any more all trainers are at the last version, all holders have
 * carried it out and none lacks its state: nothing hangs, and no version is lost that was committed
 * while one copy of each owner's shards is left.
 *
 * explore NAME... searches within the bounds of that name; without a name it lists them.
 * The shortest way to a fault is printed, event by event.
 *
 * It finds what it should.  Each of these, done to the code, ends in a violation:
 *
 *   step_vote() takes votes of other attempts, or of a void one, or decides without the last one;
 *   step_links() or step_node_lost() voids nothing; step_join() lets a rank that moved into the
 *   running attempt; step_adopt() goes on with the attempt that was decided; step_ready() refuses
 *   what is over; a seat that nobody has taken yet counts as left; recover() does not decide again,
 *   or with a vote less, or without the good steps before, or what not all have voted for;
 *   a restarted owner aborts what it has voted for; an owner that is behind is not told the
 *   decision; a new attempt keeps what has landed, or what ranks have pushed, in the one before;
 *   a successor begins anew; a session on another node is not fenced; ranks do not join again when
 *   a link is back; an owner votes while it updates; early offers are dropped; a zero_step() that
 *   was in flight is replayed although it was decided.
 *   With mirrors: step_vote() decides without them, or counts them, or for the wrong holder; a
 *   copy that is gone counts as not voted; one that lacks its state counts as done; the end of an
 *   update counts for another holder; a sum goes on to the mirror before it is complete; a mirror
 *   keeps what it took in a void attempt, or votes while it updates, or aborts what it has voted
 *   for; one record alone of a node hears a decision, or the node goes by the one that is ahead; a
 *   state is filled from one that has not carried the last decision out, with the record first,
 *   at another version, without the last decision or at its attempt, or at the one that begins
 *   next; a fill that a link has lost is not asked for again.
 *
 * It does not mind that step_startable() forgets to wait for updates of owners that have their
 * state: one that hears of a new attempt while it updates takes it up afterwards.  Nor, within
 * these bounds, that offers ahead of their attempt outlive the link, as the attempt of a filled
 * state is one further: only where two attempts were begun that nobody is left to tell of would the
 * next one have a number that was used.
 */
#include "events.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void trace(uint32_t state, struct event last)
{
        struct event *events = room(NULL, (states_seen() + 1) * sizeof *events);
        uint32_t n = 0;
        struct world w;

        events[n++] = last;
        for (uint32_t s = state; s; s = seen_parent(s))
                events[n++] = seen_event(s);
        world_init(&w);
        while (n--) {
                event_print(&w, events[n]);
                event_happen(&w, events[n]);
        }
        world_print(&w);
        free(events);
}

/* ---- the search ---- */

/* Worlds that are to be gone on from, each behind its length, without messages that there are not.
 */
struct frontier {
        u8 *bytes;
        uint32_t *ids;
        size_t used, size;
        uint32_t n, room;
};

static void frontier_add(struct frontier *f, const struct world *w, uint32_t id)
{
        uint16_t n = (uint16_t)world_bytes(w);

        if (f->n == f->room) {
                f->room = f->room ? 2 * f->room : 1 << 12;
                f->ids = room(f->ids, f->room * sizeof *f->ids);
        }
        if (f->size < f->used + sizeof n + sizeof *w) {
                f->size = f->size ? f->size + f->size / 2 : 1 << 24;
                f->bytes = room(f->bytes, f->size);
        }
        memcpy(f->bytes + f->used, &n, sizeof n);
        memcpy(f->bytes + f->used + sizeof n, w, n);
        f->used += sizeof n + n;
        f->ids[f->n++] = id;
}

/* The world at *at, which goes on to the next one. */
static void frontier_get(const struct frontier *f, size_t *at, struct world *ret)
{
        uint16_t n;

        memcpy(&n, f->bytes + *at, sizeof n);
        memset(ret, 0, sizeof *ret);
        memcpy(ret, f->bytes + *at + sizeof n, n);
        *at += sizeof n + n;
}

static uint64_t n_events, n_ends;

/* False: something is wrong, and was printed. */
static bool expand(const struct world *w, uint32_t id, struct frontier *next)
{
        struct event events[EVENTS];
        uint32_t n = events_ordinary(w, events);

        if (n == 0) {
                n_ends++;
                if (!world_done(w)) {
                        printf("VIOLATION: nothing can happen any more, and the job is not done\n");
                        trace(seen_parent(id), seen_event(id));
                        return false;
                }
        }
        events_faults(w, events, &n);
        for (uint32_t i = 0; i < n; i++) {
                struct world after = *w;

                event_happen(&after, events[i]);
                n_events++;
                if (violation[0]) {
                        char what[sizeof violation];

                        strcpy(what, violation);
                        printf("VIOLATION: %s\n", what);
                        trace(id, events[i]);
                        return false;
                }
                if (seen_new(&after, id, events[i]))
                        frontier_add(next, &after, states_seen() - 1);
        }
        return true;
}

static bool search(void)
{
        struct frontier now = { 0 }, next = { 0 };
        clock_t start = clock();
        uint32_t depth = 0;
        struct world w;
        bool ok = true;

        numbers_forget();
        n_events = n_ends = 0;
        world_init(&w);
        seen_new(&w, 0, (struct event){ 0 });
        frontier_add(&now, &w, 0);
        while (ok && now.n) {
                struct frontier spent = now;
                size_t at = 0;

                for (uint32_t i = 0; ok && i < now.n; i++) {
                        frontier_get(&now, &at, &w);
                        ok = expand(&w, now.ids[i], &next);
                }
                now = next;
                next = spent;
                next.n = 0;
                next.used = 0;
                depth++;
        }
        printf("%u states, %llu events, depth %u, %llu ends, %.1f s%s\n", states_seen(),
               (unsigned long long)n_events, depth, (unsigned long long)n_ends,
               (double)(clock() - start) / CLOCKS_PER_SEC, ok ? "" : ": FAILED");
        free(now.bytes);
        free(now.ids);
        free(next.bytes);
        free(next.ids);
        seen_forget();
        return ok;
}

/* ---- bounds ---- */

static const struct {
        const char *name, *what;
        struct bounds bounds;
} named[] = {
        { "orders",
          "two nodes, two steps (the first is skipped once), any one fault, every order",
          { .n_nodes = 2,
            .owners = 3,
            .n_ranks = 2,
            .micro_batches = 1,
            .steps = 2,
            .overflow = true,
            .crashes = 1,
            .cuts = 1,
            .kills = 1,
            .faults = 1 } },
        { "batches",
          "two nodes, two micro-batches, any two faults",
          { .n_nodes = 2,
            .owners = 3,
            .n_ranks = 2,
            .micro_batches = 2,
            .steps = 1,
            .crashes = 2,
            .cuts = 2,
            .kills = 2,
            .faults = 2,
            .less = LESS_SELF } },
        { "moves",
          "two nodes, a rank that moves and another fault",
          { .n_nodes = 2,
            .owners = 3,
            .n_ranks = 2,
            .micro_batches = 1,
            .steps = 1,
            .crashes = 1,
            .cuts = 1,
            .kills = 1,
            .moves = 1,
            .faults = 2,
            .less = LESS_SELF } },
        { "faults",
          "two nodes, two steps (the first is skipped once), any two faults",
          { .n_nodes = 2,
            .owners = 3,
            .n_ranks = 2,
            .micro_batches = 1,
            .steps = 2,
            .overflow = true,
            .crashes = 2,
            .cuts = 2,
            .kills = 2,
            .faults = 2,
            .less = LESS_SELF } },
        { "third",
          "three nodes, two of them own, any one fault or move",
          { .n_nodes = 3,
            .owners = 3,
            .n_ranks = 3,
            .micro_batches = 1,
            .steps = 1,
            .crashes = 1,
            .cuts = 1,
            .kills = 1,
            .moves = 1,
            .faults = 1,
            .less = LESS_SELF | LESS_UP } },
        { "mirrors",
          "two nodes that mirror each other, two steps (the first is skipped once), any one fault",
          { .n_nodes = 2,
            .owners = 3,
            .n_ranks = 2,
            .mirror = true,
            .micro_batches = 1,
            .steps = 2,
            .overflow = true,
            .crashes = 1,
            .wipes = 1,
            .cuts = 1,
            .kills = 1,
            .faults = 1,
            .less = LESS_SELF } },
        { "losses",
          "two nodes that mirror each other, one is lost for good and another fault",
          { .n_nodes = 2,
            .owners = 3,
            .n_ranks = 2,
            .mirror = true,
            .micro_batches = 1,
            .steps = 1,
            .crashes = 1,
            .wipes = 2,
            .cuts = 1,
            .kills = 1,
            .faults = 2,
            .less = LESS_SELF | LESS_UP } },
        { "ring",
          "three nodes that mirror each other, one is lost, for good or not, or a link",
          { .n_nodes = 3,
            .owners = 7,
            .n_ranks = 1,
            .mirror = true,
            .micro_batches = 1,
            .steps = 1,
            .crashes = 1,
            .wipes = 1,
            .cuts = 1,
            .faults = 1,
            .less = LESS_SELF | LESS_UP | LESS_FLIGHT } },
        { "owners",
          "three nodes that own, any one fault",
          { .n_nodes = 3,
            .owners = 7,
            .n_ranks = 3,
            .micro_batches = 1,
            .steps = 1,
            .crashes = 1,
            .cuts = 1,
            .kills = 1,
            .faults = 1,
            .less = LESS_SELF | LESS_UP } },
        { "three-faults",
          "two nodes, two steps, any three faults",
          { .n_nodes = 2,
            .owners = 3,
            .n_ranks = 2,
            .micro_batches = 1,
            .steps = 2,
            .crashes = 3,
            .cuts = 3,
            .kills = 3,
            .faults = 3,
            .less = LESS_SELF } },
        { "all-orders",
          "two nodes, one step, any two faults, every order",
          { .n_nodes = 2,
            .owners = 3,
            .n_ranks = 2,
            .micro_batches = 1,
            .steps = 1,
            .crashes = 2,
            .cuts = 2,
            .kills = 2,
            .faults = 2 } },
        { "mirror-faults",
          "two nodes that mirror each other, two steps, any two faults",
          { .n_nodes = 2,
            .owners = 3,
            .n_ranks = 2,
            .mirror = true,
            .micro_batches = 1,
            .steps = 2,
            .overflow = true,
            .crashes = 2,
            .wipes = 2,
            .cuts = 2,
            .kills = 2,
            .faults = 2,
            .less = LESS_SELF | LESS_UP } },
        { "mirror-orders",
          "two nodes that mirror each other, one is lost for good and another fault, every order",
          { .n_nodes = 2,
            .owners = 3,
            .n_ranks = 2,
            .mirror = true,
            .micro_batches = 1,
            .steps = 1,
            .crashes = 1,
            .wipes = 2,
            .cuts = 1,
            .kills = 1,
            .faults = 2 } },
        { "third-node",
          "three nodes, two of them own, any two faults or a move and another",
          { .n_nodes = 3,
            .owners = 3,
            .n_ranks = 2,
            .micro_batches = 1,
            .steps = 1,
            .crashes = 1,
            .cuts = 1,
            .kills = 1,
            .moves = 1,
            .faults = 2,
            .less = LESS_SELF | LESS_UP | LESS_FLIGHT } },
};

enum { NAMED = sizeof named / sizeof named[0] };

static int usage(void)
{
        for (size_t i = 0; i < NAMED; i++)
                fprintf(stderr, "%-13s %s\n", named[i].name, named[i].what);
        return 2;
}

static int explore(const char *name)
{
        for (size_t i = 0; i < NAMED; i++)
                if (strcmp(named[i].name, name) == 0) {
                        bounds = named[i].bounds;
                        printf("%s: %s\n", name, named[i].what);
                        return search() ? 0 : 1;
                }
        return usage();
}

int main(int argc, char **argv)
{
        int r = argc > 1 ? 0 : usage();

        for (int i = 1; r == 0 && i < argc; i++)
                r = explore(argv[i]);
        return r;
}
