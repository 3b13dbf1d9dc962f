/*
 * Copies a group from one window of the node to all others that wait for it.
 *
 * The entry that has begun to gather from the owners leads; entries of other windows wait for it.
 * An entry that waits has not begun and leads nobody, so no two wait for each other.  If the leader
 * fails, has to fill again, or wants another version by now, the waiting entries decide anew. While
 * a slab is copied from (slab.readers), nobody takes or fills it.  If it becomes dirty meanwhile,
 * the entries that it is copied to notice: they are filling, and fill again.
 */
#include <stdlib.h>

#include "daemon/step/gather/entry.h"
#include "proto/cleanup.h"
#include "proto/dtype.h"

struct spread {
        struct offload_task task;
        struct gather *from;
        uint32_t group, slab; /* slab: in from */
        const void *src;
        size_t bytes;
        uint32_t n;
        struct gather **to;
        void **dst;
};

static void spread_free(struct spread *s)
{
        if (!s)
                return;
        free(s->to);
        free(s->dst);
        free(s);
}

DEFINE_CLEANUP(struct spread *, spread_free)

static bool has_it(const struct gather *g, uint32_t group, uint64_t version)
{
        const struct entry *e = &g->entries[group];

        return e->phase == ENTRY_READY && e->version == version;
}

static bool leads(const struct gather *g, uint32_t group, uint64_t version)
{
        const struct entry *e = &g->entries[group];

        return e->phase == ENTRY_FILLING && e->begun && e->version == version && !e->again &&
               !e->refused;
}

static bool wants_it(const struct gather *g, uint32_t group, uint64_t version)
{
        const struct entry *e = &g->entries[group];

        return e->phase == ENTRY_FILLING && !e->begun && e->version == version && !e->again &&
               !e->refused && g->window.slabs[e->slab].readers == 0;
}

/* ---- on its way ----------------------------------------------------------------- */

static void spread_run(struct offload_task *task, uint32_t worker)
{
        struct spread *s = CONTAINER_OF(task, struct spread, task);

        place_spread(s->dst, s->n, s->src, s->bytes);
}

static void spread_landed(struct gather *g, uint32_t group)
{
        struct entry *e = &g->entries[group];

        e->in_flight--;
        e->landed = gather_parts(g->job, group);
        g->spread++;
        if (!g->job->dead)
                gather_advance(g, group);
        gather_unuse(g);
}

static void spread_done(struct offload_task *task)
{
        CLEANUP(cleanup_spread_free)
        struct spread *s = CONTAINER_OF(task, struct spread, task);
        struct gather *from = s->from;
        struct job *job = from->job;

        from->window.slabs[s->slab].readers--;
        for (uint32_t i = 0; i < s->n; i++)
                spread_landed(s->to[i], s->group);
        if (!job->dead) {
                gather_advance(from, s->group);
                gather_feed(from);
        }
        gather_unuse(from);
        job_unref(job);
}

static void spread_add(struct spread *s, struct gather *g)
{
        struct entry *e = &g->entries[s->group];

        e->begun = true;
        e->in_flight++;
        e->next_part = gather_parts(g->job, s->group); /* nothing else has to come */
        gather_use(g);
        s->to[s->n] = g;
        s->dst[s->n++] = gather_slab(g, s->group);
}

static struct spread *spread_new(struct gather *from, uint32_t group)
{
        const struct layout_group *l = &from->job->layout->groups[group];
        CLEANUP(cleanup_spread_free) struct spread *s = calloc(1, sizeof *s);
        uint32_t n = 0;

        if (!s)
                return NULL;
        for_gathers (from->job, g)
                n++;
        s->to = calloc(n, sizeof(struct gather *));
        s->dst = calloc(n, sizeof(void *));
        if (!s->to || !s->dst)
                return NULL;
        s->from = from;
        s->group = group;
        s->slab = from->entries[group].slab;
        s->src = gather_slab(from, group);
        s->bytes = layout_group_bytes(l, l->elements);
        return STEAL(s);
}

/* Copies to all windows that wait for the group; false: out of memory. */
static bool spread_start(struct gather *from, uint32_t group)
{
        uint64_t version = from->entries[group].version;
        struct spread *s = spread_new(from, group);

        if (!s)
                return false;
        for_gathers (from->job, g)
                if (wants_it(g, group, version))
                        spread_add(s, g);
        from->window.slabs[s->slab].readers++;
        gather_use(from);
        job_ref(from->job);
        s->task.run = spread_run;
        s->task.done = spread_done;
        job_compute(from->job, OFFLOAD_STEP, &s->task);
        return true;
}

bool spread_to(struct gather *g, uint32_t group)
{
        uint64_t version = g->entries[group].version;

        for_gathers (g->job, other)
                if (other != g && has_it(other, group, version))
                        return spread_start(other, group);
        for_gathers (g->job, other)
                if (other != g && leads(other, group, version))
                        return true;
        return false;
}
