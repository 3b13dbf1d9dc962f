/*
 * Makes and frees a job's gather windows on this node: how large they are, and which clients fit
 * into them.
 *
 * Each place that clients name has a window.  The first client that names the place makes the
 * window, and the last one there frees it.  The window's size follows the configuration, or what
 * the local clients are expected to declare.  Where a node has several devices, nobody knows how
 * many clients will share one: a window there is made for an even share of the clients, and clients
 * that do not fit get another window beside it.
 *
 * A window apart is one client's alone, and has room for all groups of its form.
 */
#include "daemon/step/gather/entry.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/floor/base/memory.h"
#include "proto/cleanup.h"

/* ---- windows ---- */

void gather_drop_window(struct gather *g)
{
        if (!g->has_window && !g->planned)
                return;
        window_deinit(&g->window);
        memory_kept(&g->promise);
        segment_free(&g->segment);
        g->has_window = g->planned = false;
}

static void gather_free(struct gather *g)
{
        gather_drop_window(g);
        free(g->entries);
        free(g->skip);
        free(g->form);
        free(g);
}

/* NULL: out of memory. */
static struct gather *gather_new(struct job *job, uint32_t place, bool apart)
{
        uint32_t n = job->layout->n_groups;
        struct gather *g = calloc(1, sizeof *g);

        if (!g)
                return NULL;
        g->job = job;
        g->place = place;
        g->apart = apart;
        g->entries = calloc(n, sizeof *g->entries);
        g->skip = calloc(n, sizeof *g->skip);
        g->form = apart ? calloc(n, sizeof *g->form) : NULL;
        if (!g->entries || !g->skip || (apart && !g->form)) {
                gather_free(g);
                return NULL;
        }
        g->segment.fd = -1;
        list_init(&g->starving);
        for (uint32_t i = 0; i < n; i++) {
                list_init(&g->entries[i].waiting);
                list_init(&g->entries[i].starving);
                g->entries[i].slab = SLAB_NONE;
        }
        list_insert(&job->gathers, &g->link);
        return g;
}

void gathers_free(struct job *job)
{
        list_for_each (&job->gathers, item) {
                gather_free(CONTAINER_OF(item, struct gather, link));
        }
        list_init(&job->gathers);
}

bool slabless(const struct gather *g, uint32_t group)
{
        return gather_mapped(g, group) || g->job->layout->groups[group].elements == 0 ||
               !gather_dtype(g, group);
}

const struct segment *gather_serve(const struct gather *g)
{
        const struct replica *sole = replica_sole(g->job);
        const struct segment *serve = sole && sole->state ? state_serve(sole->state) : NULL;

        return serve && !g->apart && g->place == serve->place ? serve : NULL;
}

bool gather_mapped(const struct gather *g, uint32_t group)
{
        const struct layout_group *l = &g->job->layout->groups[group];
        const struct replica *sole = replica_sole(g->job);

        return gather_serve(g) && l->elements > 0 &&
               (layout_group_served(l) || sole->state->plan->serve_bytes == 0);
}

const uint8_t *gather_form(const struct gather *g)
{
        return g->form;
}

const struct segment *gather_segment(const struct gather *g)
{
        return g->has_window && g->segment.bytes ? &g->segment : NULL;
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

/* ---- admission ---- */

static uint32_t gather_wanted(uint64_t groups, uint32_t n_groups)
{
        return groups < n_groups ? (uint32_t)groups : n_groups;
}

/* The configured window: as many slabs as fit.  Without one: as many as the clients declare, and
 * never more bytes than the groups have. */
static int gather_make_slots(struct gather *g, uint64_t groups, struct slots **ret)
{
        const struct job *job = g->job;
        uint32_t wanted = gather_wanted(groups, job->layout->n_groups);
        uint64_t limit = job->x->conf->window;
        struct slots *one = NULL;

        if (g->apart)
                return slots_new_form(job->layout, g->form, ret);
        if (!limit)
                return slots_new_bounded(job->layout, wanted, 0, g->skip, ret);
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

static int gather_make_segment(struct gather *g, struct fault *fault)
{
        uint64_t bytes = g->window.slots->bytes;
        int r = 0;

        if (bytes && !place_is_host(g->place)) {
                g->planned = true;
                return 0;
        }
        if (bytes)
                r = segment_new("zerod-gather", bytes, SEGMENT_READ_ONLY | SEGMENT_SPARSE,
                                &g->segment, fault);
        g->has_window = r == 0;
        return r;
}

static int gather_make_window(struct gather *g, uint64_t groups, struct fault *fault)
{
        const struct job *job = g->job;
        struct slots *slots = NULL;
        int r;

        for (uint32_t i = 0; i < job->layout->n_groups; i++)
                g->skip[i] = slabless(g, i);
        if (gather_make_slots(g, groups, &slots))
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        if (window_init(&g->window, job->layout->n_groups, slots)) {
                slots_free(slots);
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        }
        r = gather_make_segment(g, fault);
        if (r)
                window_deinit(&g->window);
        return r;
}

/* Local clients that a window in that place will probably serve. */
static uint32_t sharers(uint32_t place, uint32_t n_local)
{
        uint32_t n = places_like(place);

        return (n_local + n - 1) / n;
}

/* Whether the window has room for one more client's groups; makes it if need be. */
static int gather_check(struct gather *g, uint64_t own, uint32_t n_local, struct fault *fault)
{
        const struct job *job = g->job;
        uint32_t n = job->layout->n_groups;
        uint64_t total = g->admitted + own;
        struct slots *needed = NULL;
        int r = 0;

        assert(!g->planned); /* the caller admits nobody meanwhile */
        if (!g->has_window)
                r = gather_make_window(g, own * sharers(g->place, n_local), fault);
        if (r)
                return r;
        if (g->window.slots->bytes && !g->window.slots->whole &&
            gather_wanted(total, n) > g->window.slots->n) {
                if (slots_new_bounded(job->layout, gather_wanted(total, n), 0, g->skip, &needed))
                        return fault_set(fault, ZERO_ENOMEM, "out of memory");
                fault_set(fault, ZERO_EWINDOW,
                          "the gather window of this node holds %u groups (%llu bytes), but its "
                          "ranks declare %llu: set window to at least %llu bytes, or attach all %u "
                          "local ranks with the same needs",
                          g->window.slots->n, (unsigned long long)g->window.slots->bytes,
                          (unsigned long long)total, (unsigned long long)needed->bytes, n_local);
                slots_free(needed);
                return ZERO_EWINDOW;
        }
        return 0;
}

/* Whether clients in that place may have several windows. */
static bool windows_beside(const struct job *job, uint32_t place)
{
        return places_like(place) > 1 && !job->x->conf->window;
}

/* Finds a window there with room, or makes one. */
static int gather_find(struct job *job, uint32_t place, uint64_t own, uint32_t n_local,
                       struct gather **ret, struct fault *fault)
{
        for_gathers (job, g) {
                int r;

                if (g->place != place || g->apart)
                        continue;
                r = gather_check(g, own, n_local, fault);
                if (r == 0)
                        *ret = g;
                else
                        gather_vacate(g);
                if (r != ZERO_EWINDOW || !windows_beside(job, place))
                        return r;
        }
        if (!gather_new(job, place, false))
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        return gather_find(job, place, own, n_local, ret, fault);
}

static int holds_new(struct holds *h, struct gather *g, uint32_t limit, struct fault *fault)
{
        uint32_t n = g->job->layout->n_groups;
        enum hold *of = calloc(n, sizeof *of);

        if (!of) {
                gather_vacate(g);
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        }
        g->admitted += gather_wanted(limit, n);
        *h = (struct holds){ .job = g->job, .gather = g, .limit = limit, .of = of };
        return 0;
}

int holds_admit(struct holds *h, struct job *job, uint32_t place, uint32_t limit, uint32_t n_local,
                struct fault *fault)
{
        uint64_t own = gather_wanted(limit, job->layout->n_groups);
        struct gather *g = NULL;
        int r = gather_find(job, place, own, n_local, &g, fault);

        return r ? r : holds_new(h, g, limit, fault);
}

/* A window apart that nobody uses any more, or a new one; NULL: out of memory. */
static struct gather *gather_apart(struct job *job)
{
        for_gathers (job, g)
                if (g->apart && !g->admitted && !g->has_window)
                        return g;
        return gather_new(job, 0, true);
}

/* Of all windows apart of a user's jobs. */
static uint64_t apart_bytes(const struct engine *x, uint32_t uid)
{
        uint64_t bytes = 0;

        list_for_each ((struct list *)&x->jobs, item) {
                const struct job *job = CONTAINER_OF(item, struct job, link);

                for_gathers (job, g)
                        bytes +=
                                job->uid == uid && g->apart && g->has_window ? g->segment.bytes : 0;
        }
        return bytes;
}

/* Counts the window's memory, which is taken as groups come. */
static int gather_promise(struct gather *g, struct fault *fault)
{
        uint64_t bytes = g->segment.bytes, available = memory_available();
        uint64_t most = g->job->x->conf->follow_limit;
        uint64_t used = most ? apart_bytes(g->job->x, g->job->uid) : 0;

        if (used > most)
                return fault_set(fault, ZERO_EQUOTA,
                                 "one more version of job '%s': user %u's versions would have %.1f "
                                 "MiB on this node, and follow_limit allows %.1f",
                                 g->job->name, g->job->uid, (double)used / 0x1p20,
                                 (double)most / 0x1p20);
        if (bytes > available)
                return fault_set(fault, ZERO_ESHM,
                                 "a version of job '%s' needs %.1f MiB of shared memory: this node "
                                 "can spare %.1f",
                                 g->job->name, (double)bytes / 0x1p20, (double)available / 0x1p20);
        if (bytes)
                memory_promise(&g->promise, bytes, g->segment.fd, false);
        return 0;
}

int holds_admit_apart(struct holds *h, struct job *job, const uint8_t *form, struct fault *fault)
{
        struct gather *g = gather_apart(job);
        int r;

        if (!g)
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        memcpy(g->form, form, job->layout->n_groups);
        r = gather_make_window(g, job->layout->n_groups, fault);
        if (r)
                return r;
        r = gather_promise(g, fault);
        if (r)
                gather_vacate(g);
        return r ? r : holds_new(h, g, job->layout->n_groups, fault);
}

void holds_leave(struct holds *h)
{
        if (!h->job)
                return;
        holds_end(h, HOLD_HELD);
        assert(h->n == 0);
        h->gather->admitted -= gather_wanted(h->limit, h->job->layout->n_groups);
        gather_vacate(h->gather);
        free(h->of);
        *h = (struct holds){ .job = NULL };
}

/* ---- figures ---- */

static void info_add(const struct gather *g, struct gather_info *info)
{
        char *end = info->places + strlen(info->places);
        size_t left = sizeof info->places - (size_t)(end - info->places);
        const char *comma = end > info->places ? ", " : "";

        info->hits += g->hits;
        info->misses += g->misses;
        info->gathers += g->gathers;
        info->spread += g->spread;
        info->elements_received += g->elements_received;
        info->forwarded += g->forwarded;
        info->delta_bytes_received += g->delta_bytes_received;
        if (!g->has_window || g->apart)
                return;
        info->window_bytes += g->window.slots->bytes;
        info->slots += g->window.slots->n;
        snprintf(end, left, "%s%s", comma, place_name(g->place).text);
}

void gather_info(const struct job *job, struct gather_info *ret)
{
        struct gather_info info = { .window_bytes = 0 };

        for_gathers (job, g)
                info_add(g, &info);
        *ret = info;
}
