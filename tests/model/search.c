/* The search, the states that were seen, and the cases of an explorer. */
#include "search.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

char violation[400];

void violate(const char *format, ...)
{
        va_list args;

        if (violation[0])
                return;
        va_start(args, format);
        vsnprintf(violation, sizeof violation, format, args);
        va_end(args);
}

static void *allocate(void *p, size_t n)
{
        void *q = realloc(p, n);

        if (!q) {
                fprintf(stderr, "out of memory\n");
                exit(2);
        }
        return q;
}

/* ---- what was seen ---- */

struct seen {
        uint32_t parent;
        struct event event;
};

enum { HUGE_PAGE = 2 << 20 };

static struct seen *seen;
static uint32_t n_seen, seen_capacity;
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
static uint64_t hash(const u8 *p, size_t n)
{
        uint64_t a = 0x9e3779b97f4a7c15, b = 0x2545f4914f6cdd1d, x = 0;

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

static void table_put(uint64_t h)
{
        uint64_t i = h & (table_size - 1);

        while (table[i])
                i = (i + 1) & (table_size - 1);
        table[i] = h;
}

/* Accesses to the table are random, and cost half in huge pages. */
static void *table_new(size_t n)
{
        void *p = aligned_alloc(HUGE_PAGE, n);

        if (!p) {
                fprintf(stderr, "out of memory\n");
                exit(2);
        }
        madvise(p, n, MADV_HUGEPAGE);
        return memset(p, 0, n);
}

static void table_grow(void)
{
        uint64_t *old = table, size = table_size;

        table_size = size ? 2 * size : 1 << 18;
        table = table_new(table_size * sizeof *table);
        for (uint64_t i = 0; i < size; i++)
                if (old[i])
                        table_put(old[i]);
        free(old);
}

/* Two states with one hash count as one, which happens once in 10^5 runs of 10^7 states. */
static bool seen_new(uint64_t h, uint32_t parent, struct event event)
{
        uint64_t i;

        for (i = h & (table_size - 1); table[i]; i = (i + 1) & (table_size - 1))
                if (table[i] == h)
                        return false;
        table[i] = h;
        if (n_seen == seen_capacity) {
                seen_capacity = seen_capacity ? 2 * seen_capacity : 1 << 16;
                seen = allocate(seen, seen_capacity * sizeof *seen);
        }
        seen[n_seen++] = (struct seen){ parent, event };
        if (2 * (uint64_t)n_seen >= table_size)
                table_grow();
        return true;
}

static void seen_forget(void)
{
        free(seen);
        free(table);
        seen = NULL;
        table = NULL;
        n_seen = seen_capacity = 0;
        table_size = 0;
}

/* ---- the way to a state ---- */

/* last: the event that went wrong in that state; NULL: the state itself is wrong. */
static void trace(const struct search *s, uint32_t state, const struct event *last)
{
        struct event *way = allocate(NULL, (n_seen + 1) * sizeof *way);
        uint32_t n = 0;
        char what[sizeof violation];
        u8 *w = allocate(NULL, s->size);

        memcpy(what, violation, sizeof what);
        if (last)
                way[n++] = *last;
        for (uint32_t i = state; i; i = seen[i].parent)
                way[n++] = seen[i].event;
        s->init(w);
        while (n--) {
                s->print_event(w, way[n]);
                s->happen(w, way[n]);
        }
        s->print(w);
        printf("VIOLATION: %s\n", what);
        free(w);
        free(way);
}

/* ---- the search ---- */

/* Worlds to continue from, each behind its length. */
struct frontier {
        u8 *bytes;
        uint32_t *ids;
        size_t used, size;
        uint32_t n, capacity;
};

static void frontier_add(struct frontier *f, const struct search *s, const void *w, uint16_t n)
{
        if (f->n == f->capacity) {
                f->capacity = f->capacity ? 2 * f->capacity : 1 << 12;
                f->ids = allocate(f->ids, f->capacity * sizeof *f->ids);
        }
        if (f->size < f->used + sizeof n + s->size) {
                f->size = f->size ? f->size + f->size / 2 : 1 << 20;
                f->bytes = allocate(f->bytes, f->size);
        }
        memcpy(f->bytes + f->used, &n, sizeof n);
        memcpy(f->bytes + f->used + sizeof n, w, n);
        f->used += sizeof n + n;
        f->ids[f->n++] = n_seen - 1;
}

/* A world and the number of its bytes in use; the others are zero. */
struct buffer {
        u8 *world;
        uint16_t used;
};

static void buffer_copy(struct buffer *p, const u8 *world, uint16_t n)
{
        memcpy(p->world, world, n);
        if (p->used > n)
                memset(p->world + n, 0, (size_t)p->used - n);
        p->used = n;
}

static struct buffer buffer_new(const struct search *s)
{
        return (struct buffer){ memset(allocate(NULL, s->size), 0, s->size), 0 };
}

/* The world at *at; moves *at on to the next one. */
static void frontier_get(const struct frontier *f, size_t *at, struct buffer *ret)
{
        uint16_t n;

        memcpy(&n, f->bytes + *at, sizeof n);
        buffer_copy(ret, f->bytes + *at + sizeof n, n);
        *at += sizeof n + n;
}

static uint64_t n_events, n_ends;

/*
 * The world that an event made.  The search looks it up during the next event, because the table's
 * memory takes longer to arrive than most events take.
 */
static struct made {
        struct buffer buffer;
        uint64_t hash;
        uint32_t parent;
        struct event event;
        bool waits;
} made[2];

static void made_settle(const struct search *s, struct made *m, struct frontier *next)
{
        if (m->waits && seen_new(m->hash, m->parent, m->event))
                frontier_add(next, s, m->buffer.world, m->buffer.used);
        m->waits = false;
}

/* False: wrong. */
static bool expand_one(const struct search *s, const struct buffer *w, uint32_t id, struct event e,
                       struct frontier *next, bool *ret_changed)
{
        struct made *m = &made[n_events & 1], *before = &made[++n_events & 1];

        buffer_copy(&m->buffer, w->world, w->used);
        s->happen(m->buffer.world, e);
        m->buffer.used = (uint16_t)s->bytes(m->buffer.world);
        if (violation[0]) {
                trace(s, id, &e);
                return false;
        }
        *ret_changed = m->buffer.used != w->used || memcmp(m->buffer.world, w->world, w->used) != 0;
        if (*ret_changed) {
                m->hash = hash(m->buffer.world, m->buffer.used);
                __builtin_prefetch(&table[m->hash & (table_size - 1)]);
                m->parent = id;
                m->event = e;
                m->waits = true;
        }
        made_settle(s, before, next);
        return true;
}

static bool expand(const struct search *s, const struct buffer *buffer, uint32_t id,
                   struct frontier *next)
{
        struct event events[SEARCH_EVENTS];
        const u8 *w = buffer->world;
        uint32_t n = s->ordinary(w, events), ordinary = n;
        bool end = true, changed;

        if (s->alone && id % s->every == 0)
                s->alone(w);
        s->faults(w, events, &n);
        for (uint32_t i = 0; i < n && !violation[0]; i++) {
                if (!expand_one(s, buffer, id, events[i], next, &changed))
                        return false;
                end = end && (i >= ordinary || !changed);
        }
        n_ends += end;
        if (!violation[0] && end && !s->done(w))
                violate("nothing can happen any more, and all is not well");
        if (violation[0])
                trace(s, id, NULL);
        return !violation[0];
}

/* All worlds of one depth; false: one is wrong. */
static bool expand_all(const struct search *s, const struct frontier *now, struct buffer *buffer,
                       struct frontier *next)
{
        size_t at = 0;

        for (uint32_t i = 0; i < now->n; i++) {
                frontier_get(now, &at, buffer);
                if (!expand(s, buffer, now->ids[i], next))
                        return false;
        }
        made_settle(s, &made[0], next);
        made_settle(s, &made[1], next);
        return true;
}

static void search_begin(const struct search *s, struct buffer *buffer, struct frontier *now)
{
        n_events = n_ends = 0;
        made[0] = (struct made){ .buffer = buffer_new(s) };
        made[1] = (struct made){ .buffer = buffer_new(s) };
        *buffer = buffer_new(s);
        s->init(buffer->world);
        buffer->used = (uint16_t)s->bytes(buffer->world);
        table_grow();
        seen_new(hash(buffer->world, buffer->used), 0, (struct event){ 0 });
        frontier_add(now, s, buffer->world, buffer->used);
}

static bool search(const struct search *s)
{
        struct frontier now = { 0 }, next = { 0 };
        struct buffer buffer;
        clock_t start = clock();
        uint32_t depth = 0;
        bool ok = true;

        search_begin(s, &buffer, &now);
        for (; ok && now.n; depth++) {
                struct frontier spent = now;

                ok = expand_all(s, &now, &buffer, &next);
                now = next;
                next = spent;
                next.n = 0;
                next.used = 0;
        }
        printf("%u states, %llu events, depth %u, %llu ends, %.1f s%s\n", n_seen,
               (unsigned long long)n_events, depth, (unsigned long long)n_ends,
               (double)(clock() - start) / CLOCKS_PER_SEC, ok ? "" : ": FAILED");
        free(buffer.world);
        free(made[0].buffer.world);
        free(made[1].buffer.world);
        free(now.bytes);
        free(now.ids);
        free(next.bytes);
        free(next.ids);
        seen_forget();
        return ok;
}

/* ---- cases ---- */

static int usage(const struct search_case *cases, size_t n)
{
        for (size_t i = 0; i < n; i++)
                fprintf(stderr, "%-13s %s\n", cases[i].name, cases[i].what);
        return 2;
}

int search_main(int argc, char **argv, const struct search *s, const struct search_case *cases,
                size_t n_cases, void (*begin)(const struct bounds *bounds))
{
        if (argc < 2)
                return usage(cases, n_cases);
        for (int i = 1; i < argc; i++) {
                const struct search_case *c = cases;

                while (c < cases + n_cases && strcmp(c->name, argv[i]) != 0)
                        c++;
                if (c == cases + n_cases)
                        return usage(cases, n_cases);
                printf("%s: %s\n", c->name, c->what);
                begin(c->bounds);
                if (!search(s))
                        return 1;
        }
        return 0;
}
