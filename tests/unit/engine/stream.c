/* A trainer's GPU. */
#include "stream.h"

#include <dlfcn.h>
#include <string.h>
#include <time.h>

#include "check.h"
#include "daemon/compute/device/gpu/gpu.h"
#include "proto/cleanup.h"
#include "tests/support/fake_gpu.h"
#include "zoo.h"

/* A view that is read at the end must have the bytes of its fetch. */
struct reading {
        const void *view;
        void *bytes;
        size_t n;
};

struct work {
        struct work *next;
        uint32_t event;
        uint64_t attempt;
        bool writes;
        struct op op;
        uint32_t slot;
        struct reading readings[ZOO_GROUPS];
        uint32_t n_readings;
};

struct stream {
        struct stream *next; /* unused */
        uint32_t place;
        struct trainer *trainer;
        void *events[STREAM_EVENTS];
        uint8_t handles[STREAM_EVENTS][ZERO_GPU_HANDLE];
        bool used[STREAM_EVENTS];
        struct work *first, **last;
};

static const struct zero_gpu_client *plugin;
static fake_event_until_fn *set_until;
/* Streams without a trainer: as in libzero, the daemon may still have their events open. */
static struct stream *unused;

void stream_gpus_open(uint32_t n)
{
        struct fault fault;
        void *library;
        zero_gpu_fn *table;
        char text[12];

        if (gpus_count() == n)
                return;
        gpus_close();
        snprintf(text, sizeof text, "%u", n);
        setenv("FAKE_GPUS", text, 1);
        setenv("FAKE_GPU_COPIES_ON_LOOP", "1", 1); /* the links' (bulk_inproc.c) */
        CHECK(gpus_open(FAKE_GPU, device_host(NULL), &fault) == 0, "%s", fault.text);
        library = dlopen(FAKE_GPU, RTLD_NOW);
        CHECK(library, "%s", dlerror());
        table = (zero_gpu_fn *)dlsym(library, ZERO_GPU_SYMBOL);
        set_until = (fake_event_until_fn *)dlsym(library, "fake_event_until");
        CHECK(table && set_until);
        plugin = table();
}

uint64_t stream_gpus_left(void)
{
        uint64_t sum = 0;

        for (uint32_t i = 0; i < gpus_count(); i++) {
                uint64_t left, total;

                CHECK(gpu_memory(i, &left, &total) == 0);
                sum += left;
        }
        return sum;
}

/* The event's work ends at that time; UINT64_MAX: never. */
static void record(const struct stream *s, uint32_t event, uint64_t until_ns)
{
        set_until(s->events[event], until_ns);
}

static struct stream *stream_make(uint32_t place)
{
        struct stream *s = calloc(1, sizeof *s);

        CHECK(s);
        s->place = place;
        s->last = &s->first;
        for (uint32_t i = 0; i < STREAM_EVENTS; i++)
                CHECK(plugin->event_new((int)place_gpu(place), s->handles[i], &s->events[i]) == 0);
        return s;
}

static struct stream *stream_take(uint32_t place)
{
        struct stream **at = &unused, *s;

        while ((s = *at) && s->place != place)
                at = &s->next;
        if (s)
                *at = s->next;
        return s;
}

struct stream *stream_new(struct trainer *t)
{
        struct stream *s = stream_take(t->needs.windows);

        if (!s)
                s = stream_make(t->needs.windows);
        s->trainer = t;
        t->needs.event_handles = (const uint8_t(*)[ZERO_GPU_HANDLE])s->handles;
        t->needs.n_events = STREAM_EVENTS;
        return s;
}

static void work_pop(struct stream *s)
{
        struct work *w = s->first;

        s->first = w->next;
        if (!s->first)
                s->last = &s->first;
        for (uint32_t i = 0; i < w->n_readings; i++)
                free(w->readings[i].bytes);
        free(w);
}

void stream_forget(struct stream *s)
{
        while (s && s->first)
                work_pop(s);
}

void stream_free(struct stream *s)
{
        if (!s)
                return;
        stream_forget(s);
        for (uint32_t i = 0; i < STREAM_EVENTS; i++) {
                s->used[i] = false;
                record(s, i, 0);
        }
        s->next = unused;
        unused = s;
}

static struct work *enqueue(struct stream *s, uint32_t *ret_event)
{
        uint32_t event = 0;
        struct work *w;

        while (event < STREAM_EVENTS && s->used[event])
                event++;
        if (event == STREAM_EVENTS)
                return NULL;
        w = calloc(1, sizeof *w);
        CHECK(w);
        s->used[event] = true;
        w->event = event;
        w->attempt = s->trainer->attempt;
        record(s, event, UINT64_MAX);
        *s->last = w;
        s->last = &w->next;
        *ret_event = event + 1;
        return w;
}

static void work_add(const struct stream *s, struct work *w, uint32_t group)
{
        const struct layout_group *g = &s->trainer->layout->groups[group];
        struct reading *r = &w->readings[w->n_readings];

        if (!s->trainer->views[group] || g->elements == 0)
                return;
        r->view = s->trainer->views[group];
        r->n = dtype_bytes(g->dtype, g->elements);
        r->bytes = malloc(r->n);
        CHECK(r->bytes);
        gpu_ops()->copy(r->bytes, r->view, r->n);
        w->n_readings++;
}

bool stream_read(struct stream *s, uint32_t group, uint32_t *ret_event)
{
        struct work *w = enqueue(s, ret_event);

        if (w)
                work_add(s, w, group);
        return w;
}

bool stream_read_held(struct stream *s, uint32_t *ret_event)
{
        struct work *w = enqueue(s, ret_event);

        for (uint32_t g = 0; w && g < ZOO_GROUPS; g++)
                if (s->trainer->rank->holds.of[g] == HOLD_HELD)
                        work_add(s, w, g);
        return w;
}

bool stream_write(struct stream *s, const struct op *op, uint32_t slot, uint32_t *ret_event)
{
        struct work *w = enqueue(s, ret_event);

        if (!w)
                return false;
        w->writes = true;
        w->op = *op;
        w->slot = slot;
        trainer_spoil_slot(s->trainer, op, slot);
        return true;
}

/* Whether work is pending that the event is recorded behind. */
static bool is_ahead(const struct stream *s, uint32_t event)
{
        for (const struct work *w = s->first; w; w = w->next)
                if (w->event == event)
                        return true;
        return false;
}

void stream_answered(struct stream *s, uint32_t event, bool well)
{
        if (!s || !event)
                return;
        CHECK(!well || !is_ahead(s, event - 1), "rank %u was answered before its GPU was done",
              s->trainer->needs.rank);
        s->used[event - 1] = false;
}

static void work_read(const struct stream *s, const struct reading *r)
{
        void *now = malloc(r->n);

        CHECK(now);
        gpu_ops()->copy(now, r->view, r->n);
        CHECK(memcmp(now, r->bytes, r->n) == 0,
              "rank %u: a view was written while its GPU was still to read it",
              s->trainer->needs.rank);
        free(now);
}

/* Work of an attempt that is over may read anything. */
static bool work_counts(const struct stream *s, const struct work *w)
{
        const struct job *job = s->trainer->rank->job;

        return w->attempt == s->trainer->attempt && !job->dead;
}

bool stream_work(struct stream *s)
{
        struct work *w = s->first;
        uint32_t event;

        if (!w)
                return false;
        if (w->writes)
                trainer_write_gradient(s->trainer, &w->op, w->slot);
        for (uint32_t i = 0; i < w->n_readings && work_counts(s, w); i++)
                work_read(s, &w->readings[i]);
        event = w->event;
        work_pop(s);
        if (!is_ahead(s, event)) /* else the event was recorded again */
                record(s, event, 0);
        return true;
}

void stream_finish(struct stream *s)
{
        while (stream_work(s))
                ;
}
