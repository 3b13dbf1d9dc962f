/* Makes, finds and frees a job's gather windows on this node; which groups need no slab. */
#include "daemon/step/gather/entry.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "proto/cleanup.h"

void gather_drop_window(struct gather *g)
{
        if (!g->has_window && !g->planned)
                return;
        window_deinit(&g->window);
        segment_free(&g->segment);
        g->has_window = g->planned = false;
}

static void gather_free(struct gather *g)
{
        gather_drop_window(g);
        free(g->entries);
        free(g->skip);
        free(g);
}

int gather_new(struct job *job, uint32_t place)
{
        uint32_t n = job->layout->n_groups;
        struct gather *g = calloc(1, sizeof *g);

        if (!g)
                return -ENOMEM;
        g->job = job;
        g->place = place;
        g->entries = calloc(n, sizeof *g->entries);
        g->skip = calloc(n, sizeof *g->skip);
        if (!g->entries || !g->skip) {
                gather_free(g);
                return -ENOMEM;
        }
        g->segment.fd = -1;
        list_init(&g->starving);
        for (uint32_t i = 0; i < n; i++) {
                list_init(&g->entries[i].waiting);
                list_init(&g->entries[i].starving);
                g->entries[i].slab = SLAB_NONE;
        }
        list_insert(&job->gathers, &g->link);
        return 0;
}

void gathers_free(struct job *job)
{
        list_for_each (&job->gathers, item) {
                gather_free(CONTAINER_OF(item, struct gather, link));
        }
        list_init(&job->gathers);
}

static struct gather *gather_at(const struct job *job, struct list *item)
{
        return item == &job->gathers ? NULL : CONTAINER_OF(item, struct gather, link);
}

struct gather *gather_first(const struct job *job)
{
        return gather_at(job, job->gathers.next);
}

struct gather *gather_next(const struct job *job, const struct gather *g)
{
        return gather_at(job, g->link.next);
}

bool slabless(const struct gather *g, uint32_t group)
{
        return gather_mapped(g, group) || g->job->layout->groups[group].elements == 0;
}

const struct segment *gather_serve(const struct gather *g)
{
        const struct replica *sole = replica_sole(g->job);
        const struct segment *serve = sole && sole->state ? state_serve(sole->state) : NULL;

        return serve && g->place == serve->place ? serve : NULL;
}

bool gather_mapped(const struct gather *g, uint32_t group)
{
        const struct layout_group *l = &g->job->layout->groups[group];
        const struct replica *sole = replica_sole(g->job);

        return gather_serve(g) && l->elements > 0 &&
               (layout_group_served(l) || sole->state->plan->serve_bytes == 0);
}

const struct segment *gather_segment(const struct gather *g)
{
        return g->has_window && g->segment.bytes ? &g->segment : NULL;
}

struct job *gather_job(const struct gather *g)
{
        return g->job;
}

uint64_t gather_lacks(const struct gather *g)
{
        return g->planned ? g->window.slots->bytes : 0;
}

void gather_provide(struct gather *g, struct segment *memory)
{
        assert(g->planned);
        g->segment = *memory;
        *memory = (struct segment){ .fd = -1 };
        g->planned = false;
        g->has_window = true;
}
