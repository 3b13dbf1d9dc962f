/*
 * explore-register - everything that can happen to the register of views (daemon/job/register.c)
 * among a few nodes: a breadth-first search over all orders in which messages are delivered, lost
 * and delivered again, of nodes that are killed and start again with their record alone, of one
 * that loses its disk, and of one that dies and is declared dead.
 *
 * A message may come at any time, also after those that were sent later, or never; some come twice.
 * What can change nothing any more is taken off the network.  A node that lost its disk starts on
 * new connections, so nothing that was on its way to it comes any more.
 *
 * In every state: of each epoch one view is known to be chosen, the same to all, for ever, and one
 * that somebody proposed; epochs are known one after the other; records make sense; the
 * proposer is told the truth about who won.  From every sixteenth state: where nothing fails any
 * more, any one node that proposes alone comes to an end.
 *
 * explore-register NAME... searches within the bounds of that name; without a name it lists them.
 * The shortest way to a fault is printed, event by event.
 *
 * It finds what it should.  Each of these, done to register.c, ends in a violation:
 *
 *   a quorum one smaller, without or with dead; hear_prepare() promises below a promise;
 *   hear_accept() accepts below a promise, or does not raise it; accept_collect() proposes what is
 *   wanted although something was accepted; hear_promise() does not take the highest; votes of
 *   another ballot or phase count; a retry keeps its ballot; promises of an epoch are kept in the
 *   next; a node without a record votes at once, or takes nothing over; the proposer asks others
 *   before its record has its own promise, or acceptance.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "register.h"

/* ---- what was seen ---- */

struct seen {
        uint32_t parent;
        struct event event;
};
static struct seen *seen;
static uint32_t n_seen, seen_room;
static uint64_t *table, table_size;

static void *room(void *p, size_t n)
{
        void *q = realloc(p, n);

        if (!q) {
                fprintf(stderr, "out of memory\n");
                exit(2);
        }
        return q;
}

static uint64_t hash(const struct world *w)
{
        size_t n = offsetof(struct world, messages) + w->n_messages * sizeof w->messages[0];
        const u8 *p = (const u8 *)w;
        uint64_t h = 0x9e3779b97f4a7c15, x;

        for (size_t i = 0; i < n; i += 8) {
                x = 0;
                memcpy(&x, p + i, n - i < 8 ? n - i : 8);
                h = (h ^ x) * 0xff51afd7ed558ccd;
                h ^= h >> 29;
        }
        h = (h ^ h >> 31) * 0x7fb5d329728ea185;
        h ^= h >> 33;
        return h ? h : 1;
}

static void table_grow(void)
{
        uint64_t *old = table, size = table_size;

        table_size = size ? 2 * size : 1 << 16;
        table = calloc(table_size, sizeof *table);
        if (!table)
                exit(2);
        for (uint64_t i = 0; i < size; i++) {
                uint64_t at = old[i] & (table_size - 1);

                while (old[i] && table[at])
                        at = (at + 1) & (table_size - 1);
                if (old[i])
                        table[at] = old[i];
        }
        free(old);
}

static bool is_new(const struct world *w, uint32_t parent, struct event event)
{
        uint64_t h = hash(w), i;

        if (2 * (uint64_t)n_seen >= table_size)
                table_grow();
        for (i = h & (table_size - 1); table[i]; i = (i + 1) & (table_size - 1))
                if (table[i] == h)
                        return false;
        table[i] = h;
        if (n_seen == seen_room) {
                seen_room = seen_room ? 2 * seen_room : 1 << 16;
                seen = room(seen, seen_room * sizeof *seen);
        }
        seen[n_seen++] = (struct seen){ parent, event };
        return true;
}

/* ---- the search ---- */

static void trace(uint32_t state, const struct event *last)
{
        struct event *way = room(NULL, (n_seen + 1) * sizeof *way);
        uint32_t n = 0;
        struct world w;

        if (last)
                way[n++] = *last;
        for (uint32_t s = state; s; s = seen[s].parent)
                way[n++] = seen[s].event;
        world_init(&w);
        while (n--) {
                print_event(&w, way[n]);
                happen(&w, way[n]);
        }
        free(way);
}

struct frontier {
        struct world *worlds;
        uint32_t *ids;
        uint32_t n, room;
};

static void frontier_add(struct frontier *f, const struct world *w, uint32_t id)
{
        if (f->n == f->room) {
                f->room = f->room ? 2 * f->room : 1 << 10;
                f->worlds = room(f->worlds, f->room * sizeof *f->worlds);
                f->ids = room(f->ids, f->room * sizeof *f->ids);
        }
        f->worlds[f->n] = *w;
        f->ids[f->n++] = id;
}

/* last: what happened in that state; NULL: a node that proposed alone. */
static bool wrong(uint32_t state, const struct event *last)
{
        char what[sizeof violation];

        if (!violation[0])
                return false;
        strcpy(what, violation);
        trace(state, last);
        printf("VIOLATION: %s\n", what);
        return true;
}

static bool expand(const struct world *w, uint32_t id, struct frontier *next)
{
        struct event list[EVENTS];
        uint32_t n = events(w, list);

        if (id % ALONE_EVERY == 0)
                for (uint32_t p = 0; p < bounds.n_nodes; p++)
                        if (!(w->gone >> p & 1))
                                alone(w, p);
        if (wrong(id, NULL))
                return false;
        for (uint32_t i = 0; i < n; i++) {
                struct world after = *w;

                happen(&after, list[i]);
                if (wrong(id, &list[i]))
                        return false;
                if (is_new(&after, id, list[i]))
                        frontier_add(next, &after, n_seen - 1);
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

        world_init(&w);
        is_new(&w, 0, (struct event){ 0 });
        frontier_add(&now, &w, 0);
        for (; ok && now.n; depth++) {
                struct frontier spent = now;

                for (uint32_t i = 0; ok && i < now.n; i++)
                        ok = expand(&now.worlds[i], now.ids[i], &next);
                now = next;
                next = spent;
                next.n = 0;
        }
        printf("%u states, depth %u, %.1f s%s\n", n_seen, depth,
               (double)(clock() - start) / CLOCKS_PER_SEC, ok ? "" : ": FAILED");
        free(now.worlds);
        free(now.ids);
        free(next.worlds);
        free(next.ids);
        free(seen);
        free(table);
        seen = NULL;
        table = NULL;
        table_size = n_seen = seen_room = 0;
        return ok;
}

static const struct {
        const char *name, *what;
        struct bounds bounds;
} named[] = {
        { "two",
          "two nodes that both propose, two epochs, crashes",
          { .n_nodes = 2,
            .proposers = 3,
            .retriers = 3,
            .epochs = 2,
            .proposals = 3,
            .retries = 1,
            .crashes = 1 } },
        { "crashes",
          "three nodes, two of them propose, one is killed",
          { .n_nodes = 3, .proposers = 3, .epochs = 1, .proposals = 2, .crashes = 1 } },
        { "twice",
          "three nodes, two of them propose, one message comes twice",
          { .n_nodes = 3, .proposers = 3, .epochs = 1, .proposals = 2, .twice = 1 } },
        { "again",
          "three nodes, two of them propose, one of these again",
          { .n_nodes = 3,
            .proposers = 3,
            .retriers = 1,
            .epochs = 1,
            .proposals = 2,
            .retries = 1 } },
        { "blank",
          "two nodes on their first start",
          { .n_nodes = 2, .proposers = 3, .epochs = 1, .proposals = 2, .blank = true } },
        { "disk",
          "three nodes, one loses its disk",
          { .n_nodes = 3, .proposers = 3, .epochs = 1, .proposals = 2, .losses = 1 } },
        { "dead-two",
          "two nodes, one dies and is declared dead",
          { .n_nodes = 2,
            .proposers = 3,
            .retriers = 3,
            .epochs = 2,
            .proposals = 3,
            .retries = 1,
            .deaths = 1 } },
        { "dead-three",
          "three nodes, one dies and is declared dead",
          { .n_nodes = 3, .proposers = 3, .epochs = 1, .proposals = 2, .deaths = 1 } },
        { "four",
          "four nodes, two of them propose",
          { .n_nodes = 4, .proposers = 3, .epochs = 1, .proposals = 2 } },
        { "dead-four",
          "four nodes, one dies and is declared dead",
          { .n_nodes = 4, .proposers = 3, .epochs = 1, .proposals = 2, .deaths = 1 } },
        { "both-again",
          "three nodes, two of them propose, and one of these again",
          { .n_nodes = 3,
            .proposers = 3,
            .retriers = 3,
            .epochs = 1,
            .proposals = 2,
            .retries = 1 } },
        { "dead-again",
          "three nodes, one dies and is declared dead, one proposes again",
          { .n_nodes = 3,
            .proposers = 3,
            .retriers = 3,
            .epochs = 1,
            .proposals = 2,
            .retries = 1,
            .deaths = 1 } },
};

enum { NAMED = sizeof named / sizeof named[0] };

static int usage(void)
{
        for (size_t i = 0; i < NAMED; i++)
                fprintf(stderr, "%-11s %s\n", named[i].name, named[i].what);
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
