/*
 * Parameters to trainers.
 *
 * A group that one local owner holds in a serve plane is mapped: nothing moves.  Any other is
 * gathered into a slab of the window, once a version, however many ranks ask; those who
 * ask meanwhile wait for the same gather, those who ask later hit the window.  Into a window on a
 * GPU all is copied, from shards here or from buffers that other nodes' bytes land in, unless their
 * path takes GPU memory.
 *
 * Invariants: at most one gather a group is in flight; a slab being filled is pinned; a
 * request waits in exactly one entry; an entry that waits for a slab is in `starving`, in
 * the order of asking.  A fetch never sees a mix of versions: an entry is READY only if all
 * its slices were at `version`, and nobody writes the slab afterwards while it is leased.
 */
#include "daemon/exchange/gather/gather.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/exchange/reduce/buffer.h"
#include "proto/cleanup.h"

enum { SLICES_IN_FLIGHT = 8 };

/* One slice on its way: from another node, or copied from this one's shard. */
struct slice {
        struct offload_task task;
        struct ask ask;
        struct job *job;
        struct holding *holding; /* copied from; NULL: another node's */
        uint32_t group;
        uint64_t version;
        void *dst;
        const void *src;
        void *buffer; /* another node's, on its way to a GPU */
        size_t bytes;
        uint64_t elements;
};

static void gather_advance(struct job *job, uint32_t group);

/* ---- filling a slab --------------------------------------------------------- */

static void slice_end(struct slice *s, bool ok)
{
        struct job *job = s->job;
        struct entry *e = &job->gather->entries[s->group];

        e->in_flight--;
        if (ok)
                e->landed++;
        else
                e->again = true;
        if (!job->dead)
                gather_advance(job, s->group);
        free(s->buffer);
        free(s);
        job_unref(job);
}

static void slice_copy(struct offload_task *task, uint32_t worker)
{
        struct slice *s = CONTAINER_OF(task, struct slice, task);

        bool gpu =
                s->job->gather->segment.on_gpu || (s->holding && state_on_gpu(s->holding->state));

        ops_for(s->job->x, gpu)->copy(s->dst, s->src, s->bytes);
}

static void slice_copied(struct offload_task *task)
{
        struct slice *s = CONTAINER_OF(task, struct slice, task);

        if (s->holding)
                shard_unpin(s->holding, s->group);
        slice_end(s, true);
}

static void slice_submit(struct slice *s, const void *src)
{
        s->src = src;
        s->task.run = slice_copy;
        s->task.done = slice_copied;
        offload_submit(s->job->x->offload, &s->task);
}

static void slice_landed(struct ask *ask, int status)
{
        struct slice *s = CONTAINER_OF(ask, struct slice, ask);
        struct entry *e = &s->job->gather->entries[s->group];

        if (status == 0)
                s->job->gather->elements_received += s->elements;
        if (ask->status == ZERO_ENOJOB)
                e->stalled = true;
        else if (ask->status && s->version == e->version) /* else a later one is wanted by now */
                e->refused = ask->status;
        if (status == 0 && s->buffer)
                slice_submit(s, s->buffer);
        else
                slice_end(s, status == 0);
}

static int slice_ask(struct slice *s, uint32_t owner, uint64_t version, struct range range)
{
        Zero__Pull pull = ZERO__PULL__INIT;

        pull.kind = ZERO__PULL__KIND__PARAM;
        pull.group = s->group;
        pull.owner = owner;
        pull.version = version;
        pull.first = range.first;
        pull.count = range.count;
        s->ask.done = slice_landed;
        if (s->job->gather->segment.on_gpu &&
            !fabric_takes_gpu(s->job->x->fabric, s->job->place.node[owner], s->bytes)) {
                s->buffer = buffer_new(s->bytes);
                if (!s->buffer)
                        return -ENOMEM;
        }
        return ask_send(&s->ask, s->job, s->job->place.node[owner], TRAFFIC_GATHER, &pull,
                        s->buffer ? s->buffer : s->dst, s->bytes);
}

/* Starts the i-th slice; false if it cannot start now (shard not ready, node not up). */
static bool slice_start(struct job *job, uint32_t group, uint32_t i)
{
        struct gather *g = job->gather;
        struct entry *e = &g->entries[group];
        uint32_t owner = partition_owner(job->partition, group, i);
        struct range range = partition_range(job->partition, group, owner);
        size_t size = dtype_size(job->layout->groups[group].dtype);
        struct holding *h = holding_find(job, owner);
        struct slice *s;

        if (h && h->shard_version[group] != e->version)
                return false;
        s = calloc(1, sizeof *s);
        if (!s)
                return false;
        *s = (struct slice){ .job = job,
                             .holding = h,
                             .group = group,
                             .version = e->version,
                             .dst = (char *)g->segment.data + window_offset(&g->window, e->slab) +
                                    range.first * size,
                             .bytes = range.count * size,
                             .elements = range.count };
        if (!h && slice_ask(s, owner, e->version, range)) {
                free(s->buffer);
                free(s);
                return false;
        }
        job_ref(job);
        e->in_flight++;
        if (h) {
                shard_pin(h, group);
                slice_submit(s, state_shard(h->state, job->layout, group));
        }
        return true;
}

/*
 * The slice to take as the k-th.  Every node begins behind its own slice, so that no owner is
 * asked by all at once, and the own one, a copy, comes last.
 */
static uint32_t slice_order(const struct job *job, uint32_t group, uint32_t k)
{
        uint32_t n = job->partition->slices[group], own = job->x->cluster->self % n;

        for (uint32_t i = 0; i < n; i++)
                if (job->place.node[partition_owner(job->partition, group, i)] ==
                    job->x->cluster->self)
                        own = i;
        return (own + 1 + k) % n;
}

static void entry_answer(struct job *job, uint32_t group)
{
        struct gather *g = job->gather;
        struct entry *e = &g->entries[group];

        while (!list_empty(&e->waiting)) {
                struct request *r = CONTAINER_OF(e->waiting.next, struct request, wait);

                window_lease(&g->window, e->slab);
                r->result.fetch.serve = false;
                r->result.fetch.offset = window_offset(&g->window, e->slab);
                request_end(r, ZERO_OK, NULL);
        }
}

/* Slabs have become free: those who wait for one go on, in order. */
static void gather_feed(struct job *job)
{
        struct gather *g = job->gather;

        if (g->feeding) /* an entry fed just now failed: its slab is taken by the next */
                return;
        g->feeding = true;
        list_for_each (&g->starving, item) {
                struct entry *e = CONTAINER_OF(item, struct entry, starving);

                if (!g->window.slots->whole && window_available(&g->window) == 0)
                        break;
                gather_advance(job, (uint32_t)(e - g->entries));
        }
        g->feeding = false;
}

/* An owner refused: it has gone on to another version, so the ranks' step was aborted. */
static void entry_fail(struct job *job, uint32_t group)
{
        struct gather *g = job->gather;
        struct entry *e = &g->entries[group];

        e->phase = ENTRY_EMPTY;
        g->window.slabs[e->slab].pinned = false;
        requests_end_all(&e->waiting, e->refused,
                         "an owner refused its slice of the group: the version asked for is over");
        gather_feed(job);
}

/* This node's own shard, too, may have gone on before its slice was begun. */
static bool entry_overtaken(const struct job *job, uint32_t group)
{
        const struct entry *e = &job->gather->entries[group];

        if (e->next_slice == job->partition->slices[group])
                return false;
        for_holdings (job, h)
                if (h->state->plan->shards[group].range.count > 0 &&
                    h->shard_version[group] > e->version)
                        return true;
        return false;
}

/* Gets the entry a slab, or puts it among the starving. */
static bool entry_slab(struct job *job, uint32_t group)
{
        struct gather *g = job->gather;
        struct entry *e = &g->entries[group];
        uint32_t evicted = SLAB_NONE;

        if (e->slab == SLAB_NONE)
                e->slab = window_take(&g->window, group, &evicted);
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

static void entry_begin(struct job *job, uint32_t group)
{
        struct gather *g = job->gather;
        struct entry *e = &g->entries[group];

        e->phase = ENTRY_FILLING;
        e->next_slice = e->landed = 0;
        e->again = false;
        e->refused = 0;
        g->window.slabs[e->slab].pinned = true;
}

/* Moves an entry on as far as it goes now. */
static void gather_advance(struct job *job, uint32_t group)
{
        struct gather *g = job->gather;
        struct entry *e = &g->entries[group];
        uint32_t slices = job->partition->slices[group];

        if (e->phase == ENTRY_STARVING && entry_slab(job, group))
                entry_begin(job, group);
        if (e->phase != ENTRY_FILLING)
                return;
        if (e->again && !e->stalled && !e->refused && e->in_flight == 0)
                entry_begin(job, group);
        if (!e->again && entry_overtaken(job, group))
                e->refused = ZERO_EABORTED;
        if (e->refused && e->in_flight == 0)
                entry_fail(job, group);
        if (e->phase != ENTRY_FILLING)
                return;
        while (!e->again && !e->refused && e->next_slice < slices &&
               e->in_flight < SLICES_IN_FLIGHT &&
               slice_start(job, group, slice_order(job, group, e->next_slice)))
                e->next_slice++;
        if (e->again || e->refused || e->landed < slices)
                return;
        e->phase = ENTRY_READY;
        g->window.slabs[e->slab].pinned = false;
        entry_answer(job, group);
        gather_feed(job);
}

/* ---- asking -------------------------------------------------------------------- */

/* Begins to bring the group to a version, if it is not there or under way already. */
static void gather_want(struct job *job, uint32_t group, uint64_t version)
{
        struct gather *g = job->gather;
        struct entry *e = &g->entries[group];

        if (e->phase == ENTRY_FILLING || e->phase == ENTRY_STARVING) {
                if (e->version == version)
                        return;
                e->version = version;
                e->again = e->phase == ENTRY_FILLING;
                e->refused = 0;
                gather_advance(job, group);
                return;
        }
        e->version = version;
        g->misses++;
        if (!entry_slab(job, group))
                return;
        entry_begin(job, group);
        gather_advance(job, group);
}

static int gather_describe(const struct request *r, struct wait_line *ret)
{
        const struct job *job = r->subject;
        const struct entry *e = &job->gather->entries[r->group];
        int status = job_describe(job, ret);

        snprintf(ret->what, sizeof ret->what, "group '%.80s' at version %llu%s",
                 job->layout->groups[r->group].name, (unsigned long long)e->version,
                 e->phase == ENTRY_STARVING ? ", no slab of the window is free" : "");
        return status;
}

void gather_fetch(struct job *job, uint32_t group, uint64_t version, struct request *r)
{
        struct gather *g = job->gather;
        struct entry *e = &g->entries[group];

        r->describe = gather_describe;
        r->subject = job;
        r->group = group;
        if (job->layout->groups[group].elements == 0) {
                r->result.fetch.serve = false;
                r->result.fetch.offset = 0;
                request_end(r, ZERO_OK, NULL);
                return;
        }
        const struct holding *sole = gather_mapped(job, group) ? holding_sole(job) : NULL;

        if (sole && sole->shard_version[group] == version) {
                r->result.fetch.serve = true;
                r->result.fetch.offset = sole->state->plan->shards[group].serve;
                request_end(r, ZERO_OK, NULL);
                return;
        }
        list_insert(&e->waiting, &r->wait);
        if (sole)
                return; /* shard_ready() will answer */
        if (e->phase == ENTRY_READY && e->version == version) {
                g->hits++;
                entry_answer(job, group);
                return;
        }
        gather_want(job, group, version);
}

void gather_prefetch(struct job *job, uint32_t group, uint64_t version)
{
        struct gather *g = job->gather;
        struct entry *e = &g->entries[group];

        if (slabless(job, group) || e->phase == ENTRY_FILLING || e->phase == ENTRY_STARVING ||
            (e->phase == ENTRY_READY && e->version == version))
                return;
        if (e->slab == SLAB_NONE && window_available(&g->window) == 0)
                return;
        if (e->slab != SLAB_NONE && g->window.slabs[e->slab].leases > 0)
                return;
        gather_want(job, group, version);
}

void gather_release(struct job *job, uint32_t group)
{
        struct gather *g = job->gather;
        struct entry *e = &g->entries[group];

        if (slabless(job, group))
                return;
        assert(e->slab != SLAB_NONE);
        if (window_release(&g->window, e->slab) && !job->dead)
                gather_feed(job);
}

void gather_up(struct job *job)
{
        for (uint32_t i = 0; i < job->layout->n_groups; i++) {
                job->gather->entries[i].stalled = false;
                gather_advance(job, i);
        }
}

void gather_shard_ready(struct job *job, uint32_t group)
{
        struct entry *e = &job->gather->entries[group];

        if (!gather_mapped(job, group)) {
                gather_advance(job, group);
                return;
        }
        while (!list_empty(&e->waiting)) {
                struct request *r = CONTAINER_OF(e->waiting.next, struct request, wait);

                r->result.fetch.serve = true;
                r->result.fetch.offset = holding_sole(job)->state->plan->shards[group].serve;
                request_end(r, ZERO_OK, NULL);
        }
}

void gather_dirty(struct job *job, uint32_t group)
{
        struct entry *e = &job->gather->entries[group];

        if (e->phase == ENTRY_READY)
                e->phase = ENTRY_EMPTY;
        else if (e->phase == ENTRY_FILLING)
                e->again = true;
}

void gather_fail(struct job *job, int status, const char *text)
{
        for (uint32_t i = 0; i < job->layout->n_groups; i++)
                requests_end_all(&job->gather->entries[i].waiting, status, text);
}

void gather_info(const struct job *job, struct gather_info *ret)
{
        const struct gather *g = job->gather;

        *ret = (struct gather_info){ .hits = g->hits,
                                     .misses = g->misses,
                                     .elements_received = g->elements_received };
        if (g->has_window) {
                ret->window_bytes = g->window.slots->bytes;
                ret->slots = g->window.slots->n;
        }
}
