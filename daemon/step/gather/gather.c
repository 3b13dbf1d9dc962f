/*
 * Parameters for trainers.
 *
 * A group that one local owner holds in a serve plane is mapped: no bytes move.  Any other group is
 * gathered into a slab of the window, once per version, however many ranks ask.  Ranks that ask
 * during a gather wait for it; ranks that ask later hit the window.
 *
 * Each place that ranks name, host memory or a GPU, has a window.  A group travels from its owners
 * to the window whose ranks ask first, and from there to windows whose ranks ask while it is there
 * (spread.c).
 *
 * Invariants: at most one gather per group and window is in flight; a slab is pinned while it is
 * being filled; a request waits in exactly one entry; entries that wait for a slab are in
 * `starving`, in the order of the requests.  A fetch never sees a mix of versions: an entry is
 * READY only if all its slices were at `version`, and nobody writes to the slab while it is leased.
 */
#include "daemon/job/core/progress.h"
#include "daemon/step/gather/entry.h"

#include <assert.h>
#include <stdio.h>

#include "proto/cleanup.h"

enum { PARTS_IN_FLIGHT = 8 };

static void gather_advance_others(struct gather *g, uint32_t group);

/* ---- entries ------------------------------------------------------------------ */

static void entry_answer(struct gather *g, uint32_t group)
{
        struct entry *e = &g->entries[group];

        while (!list_empty(&e->waiting)) {
                struct request *r = CONTAINER_OF(e->waiting.next, struct request, wait);

                window_lease(&g->window, e->slab);
                r->result.fetch.serve = false;
                r->result.fetch.offset = window_offset(&g->window, e->slab);
                request_end(r, ZERO_OK, NULL);
        }
}

void gather_feed(struct gather *g)
{
        if (g->feeding) /* the entry just fed has failed: the next one takes its slab */
                return;
        g->feeding = true;
        list_for_each (&g->starving, item) {
                struct entry *e = CONTAINER_OF(item, struct entry, starving);

                if (!g->window.slots->whole && window_available(&g->window) == 0)
                        break;
                gather_advance(g, (uint32_t)(e - g->entries));
        }
        g->feeding = false;
}

/* An owner has refused: it has reached another version, so the ranks' step was aborted. */
static void entry_fail(struct gather *g, uint32_t group)
{
        struct entry *e = &g->entries[group];

        e->phase = ENTRY_EMPTY;
        g->window.slabs[e->slab].pinned = false;
        requests_end_all(&e->waiting, e->refused,
                         "an owner refused its slice of the group: the version asked for is over");
        gather_advance_others(g, group);
        gather_feed(g);
}

/* Whether this node's own shard has reached a later version before its slice began. */
static bool entry_overtaken(const struct gather *g, uint32_t group)
{
        const struct job *job = g->job;
        const struct entry *e = &g->entries[group];

        if (e->next_part == gather_parts(job, group))
                return false;
        for_replicas (job, h)
                if (h->state->plan->shards[group].range.count > 0 &&
                    h->shard_version[group] > e->version)
                        return true;
        return false;
}

/* Gets a slab for the entry, or puts it among the starving. */
static bool entry_slab(struct gather *g, uint32_t group)
{
        struct entry *e = &g->entries[group];
        uint32_t evicted = SLAB_NONE;

        if (e->slab == SLAB_NONE)
                e->slab = window_take(&g->window, group,
                                      slots_group_bytes(g->job->layout, group, 0), &evicted);
        if (evicted != SLAB_NONE && evicted != group) {
                g->entries[evicted].slab = SLAB_NONE;
                if (g->entries[evicted].phase == ENTRY_READY)
                        g->entries[evicted].phase = ENTRY_EMPTY;
        }
        if (e->slab == SLAB_NONE) {
                if (e->phase != ENTRY_STARVING)
                        list_insert(&g->starving, &e->starving);
                e->phase = ENTRY_STARVING;
                return false;
        }
        list_remove(&e->starving);
        return true;
}

static void entry_begin(struct gather *g, uint32_t group)
{
        struct entry *e = &g->entries[group];

        e->phase = ENTRY_FILLING;
        e->next_part = e->landed = 0;
        e->begun = e->again = false;
        e->refused = 0;
        g->window.slabs[e->slab].pinned = true;
}

/* All bytes have come. */
static void entry_ready(struct gather *g, uint32_t group)
{
        struct entry *e = &g->entries[group];

        e->phase = ENTRY_READY;
        g->window.slabs[e->slab].pinned = false;
        gather_advance_others(g, group); /* before anybody takes the slab away */
        entry_answer(g, group);
        gather_feed(g);
}

/* Starts the parts that can start, unless other windows still copy the slab's old bytes. */
static void entry_fill(struct gather *g, uint32_t group)
{
        struct entry *e = &g->entries[group];
        uint32_t parts = gather_parts(g->job, group);

        if (e->again || e->refused || g->window.slabs[e->slab].readers)
                return;
        if (!e->begun && spread_to(g, group))
                return;
        e->begun = true;
        while (e->next_part < parts && e->in_flight < PARTS_IN_FLIGHT &&
               gather_part(g, group, e->next_part))
                e->next_part++;
        if (e->landed == parts)
                entry_ready(g, group);
}

void gather_advance(struct gather *g, uint32_t group)
{
        struct entry *e = &g->entries[group];

        if (e->phase == ENTRY_STARVING && entry_slab(g, group))
                entry_begin(g, group);
        if (e->phase != ENTRY_FILLING)
                return;
        if (e->again && !e->stalled && !e->refused && e->in_flight == 0)
                entry_begin(g, group);
        if (!e->again && entry_overtaken(g, group))
                e->refused = ZERO_EABORTED;
        if (e->refused && e->in_flight == 0)
                entry_fail(g, group);
        if (e->phase == ENTRY_FILLING)
                entry_fill(g, group);
}

static void gather_advance_others(struct gather *g, uint32_t group)
{
        if (g->job->dead)
                return;
        for_gathers (g->job, other)
                if (other != g)
                        gather_advance(other, group);
}

/* ---- uses of a window ----------------------------------------------------------- */

/* The last rank has left, or the last use has ended. */
void gather_vacate(struct gather *g)
{
        uint32_t n = g->job->layout->n_groups;

        if (g->admitted || g->busy || !(g->has_window || g->planned))
                return;
        for (uint32_t i = 0; i < n; i++)
                if (!list_empty(&g->entries[i].waiting))
                        return; /* the window stays for the next ranks */
        for (uint32_t i = 0; i < n; i++) {
                list_remove(&g->entries[i].starving);
                g->entries[i].phase = ENTRY_EMPTY;
                g->entries[i].slab = SLAB_NONE;
        }
        gather_drop_window(g);
        for (uint32_t i = 0; i < n; i++)
                gather_advance_others(g, i); /* they waited for what this window would bring */
}

void gather_use(struct gather *g)
{
        g->busy++;
}

void gather_unuse(struct gather *g)
{
        assert(g->busy > 0);
        if (--g->busy == 0)
                gather_vacate(g);
}

/* ---- asking -------------------------------------------------------------------- */

/* Begins to bring the group at that version, unless it is here or on its way. */
static void gather_want(struct gather *g, uint32_t group, uint64_t version)
{
        struct entry *e = &g->entries[group];

        if (e->phase == ENTRY_FILLING || e->phase == ENTRY_STARVING) {
                if (e->version == version)
                        return;
                e->version = version;
                e->again = e->phase == ENTRY_FILLING;
                e->refused = 0;
                gather_advance(g, group);
                gather_advance_others(g, group); /* they waited for what this window would bring */
                return;
        }
        e->version = version;
        g->gathers++;
        if (!entry_slab(g, group))
                return;
        entry_begin(g, group);
        gather_advance(g, group);
}

static int gather_describe(const struct request *r, struct wait_line *ret)
{
        const struct gather *g = r->subject;
        const struct job *job = g->job;
        const struct entry *e = &g->entries[r->group];
        int status = job_describe(job, ret);

        ret->until_ms = 0; /* the wait is for nodes, not for a rank */
        snprintf(ret->what, sizeof ret->what, "group '%.80s' at version %llu%s",
                 job->layout->groups[r->group].name, (unsigned long long)e->version,
                 e->phase == ENTRY_STARVING ? ", no slab of the window is free" : "");
        return status;
}

void gather_fetch(struct gather *g, uint32_t group, uint64_t version, struct request *r)
{
        struct job *job = g->job;
        struct entry *e = &g->entries[group];

        for_replicas (job, h)
                shard_use(h, group, version);
        r->describe = gather_describe;
        r->subject = g;
        r->group = group;
        if (job->layout->groups[group].elements == 0) {
                r->result.fetch.serve = false;
                r->result.fetch.offset = 0;
                request_end(r, ZERO_OK, NULL);
                return;
        }
        const struct replica *sole = gather_mapped(g, group) ? replica_sole(job) : NULL;

        if (sole && sole->shard_version[group] == version) {
                r->result.fetch.serve = true;
                r->result.fetch.offset = state_serve_offset(sole->state, group);
                request_end(r, ZERO_OK, NULL);
                return;
        }
        list_insert(&e->waiting, &r->wait);
        if (sole)
                return; /* shard_ready() will answer */
        if (e->phase == ENTRY_READY && e->version == version) {
                g->hits++;
                entry_answer(g, group);
                return;
        }
        g->misses++;
        gather_want(g, group, version);
}

void gather_prefetch(struct gather *g, uint32_t group, uint64_t version)
{
        struct entry *e = &g->entries[group];

        if (slabless(g, group) || e->phase == ENTRY_FILLING || e->phase == ENTRY_STARVING ||
            (e->phase == ENTRY_READY && e->version == version))
                return;
        if (e->slab == SLAB_NONE && window_available(&g->window) == 0)
                return;
        if (e->slab != SLAB_NONE && g->window.slabs[e->slab].leases > 0)
                return;
        gather_want(g, group, version);
}

void gather_release(struct gather *g, uint32_t group)
{
        struct entry *e = &g->entries[group];

        if (slabless(g, group))
                return;
        assert(e->slab != SLAB_NONE);
        if (window_release(&g->window, e->slab) && !g->job->dead)
                gather_feed(g);
}

void gather_up(struct job *job)
{
        for_gathers (job, g)
                for (uint32_t i = 0; i < job->layout->n_groups; i++) {
                        g->entries[i].stalled = false;
                        gather_advance(g, i);
                }
}

static void mapped_ready(struct gather *g, uint32_t group)
{
        struct entry *e = &g->entries[group];

        while (!list_empty(&e->waiting)) {
                struct request *r = CONTAINER_OF(e->waiting.next, struct request, wait);

                r->result.fetch.serve = true;
                r->result.fetch.offset = state_serve_offset(replica_sole(g->job)->state, group);
                request_end(r, ZERO_OK, NULL);
        }
}

static void gather_shard_ready(struct replica *h, uint32_t group)
{
        for_gathers (h->job, g)
                if (gather_mapped(g, group))
                        mapped_ready(g, group);
                else
                        gather_advance(g, group);
}

void gather_dirty(struct job *job, uint32_t group)
{
        for_gathers (job, g) {
                struct entry *e = &g->entries[group];

                if (e->phase == ENTRY_READY)
                        e->phase = ENTRY_EMPTY;
                else if (e->phase == ENTRY_FILLING)
                        e->again = true;
        }
}

void gather_fail(struct job *job, int status, const char *text)
{
        for_gathers (job, g)
                for (uint32_t i = 0; i < job->layout->n_groups; i++)
                        requests_end_all(&g->entries[i].waiting, status, text);
}

/* ---- what the node goes through ---------------------------------------------------- */

static void gathers_node_up(struct engine *x, uint32_t node)
{
        list_for_each (&x->jobs, item) {
                gather_up(CONTAINER_OF(item, struct job, link));
        }
}

/* Goes on where memory was lacking. */
static void gathers_tick(struct engine *x)
{
        list_for_each (&x->jobs, item) {
                struct job *job = CONTAINER_OF(item, struct job, link);

                for_gathers (job, g) {
                        bool lacking = g->lacking;

                        g->lacking = false;
                        for (uint32_t i = 0; lacking && i < job->layout->n_groups; i++)
                                gather_advance(g, i);
                }
        }
}

const struct module gather_module = { .tick = gathers_tick,
                                      .node_up = gathers_node_up,
                                      .job_dropped = gather_fail,
                                      .job_free = gathers_free };
const struct shard_observer gather_observer = { .ready = gather_shard_ready };
