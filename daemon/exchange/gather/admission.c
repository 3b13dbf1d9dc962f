/*
 * The gather window: how large it is, and which ranks it has room for.
 *
 * It is made for the first rank, from the configuration or from what the local ranks will
 * declare, and goes with the last.
 */
#include "daemon/exchange/gather/gather.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/exchange/gpu/window.h"
#include "proto/cleanup.h"

int gather_new(struct job *job, struct gather **ret)
{
        uint32_t n = job->layout->n_groups;
        struct gather *g = calloc(1, sizeof *g);

        if (!g)
                return -ENOMEM;
        g->job = job;
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
        *ret = g;
        return 0;
}

void gather_free(struct gather *g)
{
        if (!g)
                return;
        if (g->has_window) {
                window_deinit(&g->window);
                segment_free(&g->segment);
        }
        free(g->entries);
        free(g->skip);
        free(g);
}

/* Groups that need no slab. */
bool slabless(const struct job *job, uint32_t group)
{
        return gather_mapped(job, group) || job->layout->groups[group].elements == 0;
}

const struct segment *gather_serve(const struct job *job)
{
        const struct holding *sole = holding_sole(job);
        const struct segment *serve = sole && sole->state ? &sole->state->serve_segment : NULL;

        return serve && serve->data && window_place_has(&job->windows, serve) ? serve : NULL;
}

bool gather_mapped(const struct job *job, uint32_t group)
{
        return gather_serve(job) && job->layout->groups[group].dtype != ZERO_FP32 &&
               job->layout->groups[group].elements > 0;
}

const struct segment *gather_segment(const struct gather *g)
{
        return g->has_window && g->segment.bytes ? &g->segment : NULL;
}

/* ---- admission ----------------------------------------------------------- */

static uint32_t gather_wanted(uint64_t groups, uint32_t n_groups)
{
        return groups < n_groups ? (uint32_t)groups : n_groups;
}

/* The window by configuration: as many slabs as fit; else as many as the ranks declare. */
static int gather_make_slots(struct job *job, uint64_t groups, struct slots **ret)
{
        struct gather *g = job->gather;
        uint32_t wanted = gather_wanted(groups, job->layout->n_groups);
        uint64_t limit = job->x->conf->window;
        struct slots *one = NULL;

        if (!limit)
                return slots_new(job->layout, wanted, 0, g->skip, ret);
        if (slots_new(job->layout, job->layout->n_groups, 0, g->skip, ret))
                return -ENOMEM;
        if ((*ret)->bytes <= limit)
                return 0;
        slots_free(*ret);
        if (slots_new(job->layout, 1, 0, g->skip, &one))
                return -ENOMEM;
        wanted = one->bytes ? (uint32_t)(limit / one->bytes) : 1;
        slots_free(one);
        return slots_new(job->layout, wanted ? wanted : 1, 0, g->skip, ret);
}

static int gather_make_segment(struct job *job, uint64_t bytes, struct fault *fault)
{
        struct segment *s = &job->gather->segment;
        char what[ZERO_NAME_MAX + 40];

        if (bytes == 0)
                return 0;
        if (!job->windows.on_gpu)
                return segment_new("zerod-gather", bytes, SEGMENT_READ_ONLY | SEGMENT_SPARSE, s,
                                   fault);
        snprintf(what, sizeof what, "the gather window of job %s", job->name);
        return gpu_window_new(job, job->windows.gpu, what, bytes, s, fault);
}

static int gather_make_window(struct job *job, uint64_t groups, struct fault *fault)
{
        struct gather *g = job->gather;
        struct slots *slots = NULL;
        int r;

        for (uint32_t i = 0; i < job->layout->n_groups; i++)
                g->skip[i] = slabless(job, i);
        if (gather_make_slots(job, groups, &slots))
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        r = gather_make_segment(job, slots->bytes, fault);
        if (r) {
                slots_free(slots);
                return r;
        }
        if (window_init(&g->window, job->layout->n_groups, slots)) {
                segment_free(&g->segment);
                slots_free(slots);
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        }
        g->has_window = true;
        return 0;
}

bool gather_has_window(const struct job *job)
{
        return job->gather->has_window;
}

/* Whether the window, made if need be, has room for one more rank's groups. */
static int gather_check(struct job *job, uint64_t own, uint32_t local_world_size,
                        struct fault *fault)
{
        struct gather *g = job->gather;
        uint32_t n = job->layout->n_groups;
        uint64_t total = g->admitted + own;
        struct slots *needed = NULL;
        int r = 0;

        if (!g->has_window)
                r = gather_make_window(job, own * local_world_size, fault);
        if (r)
                return r;
        if (g->window.slots->bytes && !g->window.slots->whole &&
            gather_wanted(total, n) > g->window.slots->n) {
                if (slots_new(job->layout, gather_wanted(total, n), 0, g->skip, &needed))
                        return fault_set(fault, ZERO_ENOMEM, "out of memory");
                fault_set(fault, ZERO_EWINDOW,
                          "the gather window of this node holds %u groups (%llu bytes), its ranks "
                          "declare %llu: set window to at least %llu bytes, or attach all %u local "
                          "ranks "
                          "with the same needs",
                          g->window.slots->n, (unsigned long long)g->window.slots->bytes,
                          (unsigned long long)total, (unsigned long long)needed->bytes,
                          local_world_size);
                slots_free(needed);
                return ZERO_EWINDOW;
        }
        return 0;
}

static void gather_drop_window(struct job *job)
{
        struct gather *g = job->gather;

        window_deinit(&g->window);
        segment_free(&g->segment);
        g->segment = (struct segment){ .fd = -1 };
        g->has_window = false;
}

/* The last local rank has left. */
static void gather_vacate(struct job *job)
{
        struct gather *g = job->gather;

        for (uint32_t i = 0; i < job->layout->n_groups; i++)
                if (g->entries[i].in_flight || !list_empty(&g->entries[i].waiting))
                        return; /* the window stays for the next ranks */
        for (uint32_t i = 0; i < job->layout->n_groups; i++) {
                list_remove(&g->entries[i].starving);
                g->entries[i].phase = ENTRY_EMPTY;
                g->entries[i].slab = SLAB_NONE;
        }
        if (g->has_window)
                gather_drop_window(job);
}

int gather_admit(struct job *job, uint32_t hold_groups, uint32_t local_world_size,
                 struct fault *fault)
{
        uint64_t own = gather_wanted(hold_groups, job->layout->n_groups);
        int r = gather_check(job, own, local_world_size, fault);

        if (r == 0)
                job->gather->admitted += own;
        else if (job->n_attached == 0 && gather_has_window(job))
                gather_vacate(job);
        return r;
}

void gather_leave(struct job *job, uint32_t hold_groups)
{
        job->gather->admitted -= gather_wanted(hold_groups, job->layout->n_groups);
        if (job->n_attached == 0)
                gather_vacate(job);
}
