/* The states that were seen, by their hashes. */
#include "events.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* All that is kept of a state: how it was come to. */
struct seen {
        uint32_t parent;
        struct event event;
};

static struct seen *seen;
static uint32_t n_seen, seen_room;
static uint64_t *table; /* open addressing; 0: free */
static uint64_t table_size;

static uint64_t mix(uint64_t x)
{
        x = (x ^ x >> 31) * 0x7fb5d329728ea185;
        x = (x ^ x >> 27) * 0x81dadef4bc2dd44d;
        return x ^ x >> 33;
}

static uint64_t step(uint64_t h, const u8 *p)
{
        uint64_t x;

        memcpy(&x, p, sizeof x);
        h = (h ^ x) * 0xff51afd7ed558ccd;
        return h ^ h >> 29;
}

/* Two chains, that the processor works on side by side. */
static uint64_t hash(const struct world *w)
{
        const u8 *p = (const u8 *)w;
        uint64_t a = 0x9e3779b97f4a7c15, b = 0x2545f4914f6cdd1d, x = 0;
        size_t n = world_bytes(w);

        for (; n >= 16; p += 16, n -= 16) {
                a = step(a, p);
                b = step(b, p + 8);
        }
        if (n >= 8) {
                a = step(a, p);
                p += 8;
                n -= 8;
        }
        memcpy(&x, p, n);
        x = mix(a ^ mix(b ^ mix(x + 1)));
        return x ? x : 1;
}

void *room(void *p, size_t n)
{
        void *q = realloc(p, n);

        if (!q) {
                fprintf(stderr, "out of memory\n");
                exit(2);
        }
        return q;
}

static void table_put(uint64_t h)
{
        uint64_t i = h & (table_size - 1);

        while (table[i])
                i = (i + 1) & (table_size - 1);
        table[i] = h;
}

static void table_grow(void)
{
        uint64_t *old = table, size = table_size;

        table_size = size ? 2 * size : 1 << 20;
        table = calloc(table_size, sizeof *table);
        if (!table) {
                fprintf(stderr, "out of memory\n");
                exit(2);
        }
        for (uint64_t i = 0; i < size; i++)
                if (old[i])
                        table_put(old[i]);
        free(old);
}

/* Two states of one hash count as one: once in 10^5 runs of 10^7 states. */
bool seen_new(const struct world *w, uint32_t parent, struct event event)
{
        uint64_t h = hash(w), i;

        if (2 * (uint64_t)n_seen >= table_size)
                table_grow();
        for (i = h & (table_size - 1); table[i]; i = (i + 1) & (table_size - 1))
                if (table[i] == h)
                        return false;
        table[i] = h;
        if (n_seen == seen_room) {
                seen_room = seen_room ? 2 * seen_room : 1 << 20;
                seen = room(seen, seen_room * sizeof *seen);
        }
        seen[n_seen++] = (struct seen){ parent, event };
        return true;
}

uint32_t states_seen(void)
{
        return n_seen;
}

uint32_t seen_parent(uint32_t state)
{
        return seen[state].parent;
}

struct event seen_event(uint32_t state)
{
        return seen[state].event;
}

void seen_forget(void)
{
        free(seen);
        free(table);
        seen = NULL;
        table = NULL;
        n_seen = seen_room = 0;
        table_size = 0;
}
