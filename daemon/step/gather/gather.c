/*
 * Parameters for clients.
 *
 * A group that one local owner holds in a serve plane is mapped: no bytes move.  Any other group is
 * gathered into a slab of the window, once per version, however many clients ask.  Clients that ask
 * during a gather wait for it; clients that ask later hit the window.
 *
 * Each place that clients name, host memory or a GPU, has a window.  A group travels from owners to
 * the window whose clients ask first, and from there to those whose clients ask while it is there.
 *
 * Invariants: at most one gather per group and window is in flight; a slab is pinned while it is
 * being filled; a request waits in exactly one entry; entries that wait for a slab are in
 * `starving`, in the order of the requests.  A fetch never sees a mix of versions: an entry is
 * READY only if all its slices were at `version`, and nobody writes to the slab while it is leased.
 *
 * Slices come in parts of at most engine.part_bytes: while one part travels, transfer stages the
 * next at its owner and the one before on this node.  A window apart may have a group in another
 * dtype than the owners: each part is cast on its way into the slab.
 */
#include "daemon/job/core/progress.h"
#include "daemon/step/gather/entry.h"
#include "daemon/step/gather/forward.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"

enum { PARTS_IN_FLIGHT = 8 };

static void gather_advance(struct gather *g, uint32_t group);
static void gather_advance_others(struct gather *g, uint32_t group);
static void gather_feed(struct gather *g);

static void *gather_slab(const struct gather *g, uint32_t group)
{
        return (char *)g->segment.data + window_offset(&g->window, g->entries[group].slab);
}

/* ---- uses of a window ---- */

/* The last client has left, or the last use has ended. */
void gather_vacate(struct gather *g)
{
        uint32_t n = g->job->layout->n_groups;

        if (g->admitted || g->busy || !(g->has_window || g->planned))
                return;
        for (uint32_t i = 0; i < n; i++)
                if (!list_empty(&g->entries[i].waiting))
                        return; /* the window stays for the next clients */
        for (uint32_t i = 0; i < n; i++) {
                list_remove(&g->entries[i].starving);
                g->entries[i].phase = ENTRY_EMPTY;
                g->entries[i].slab = SLAB_NONE;
        }
        gather_drop_window(g);
        for (uint32_t i = 0; i < n; i++)
                gather_advance_others(g, i); /* they waited for what this window would bring */
}

/* A use of the window begins or ends.  A window without clients goes with its last use. */
static void gather_use(struct gather *g)
{
        g->busy++;
}

static void gather_unuse(struct gather *g)
{
        assert(g->busy > 0);
        if (--g->busy == 0)
                gather_vacate(g);
}

/* ---- slices ---- */

/* A part of a slice that is being brought. */
struct slice {
        struct copy copy;
        struct ask ask;
        struct gather *gather;
        uint32_t group, owner;
        uint64_t version;
        uint64_t has; /* that the owner was told; 0: nothing */
        uint32_t n_offered;
        uint64_t offered[DELTAS_KEPT]; /* bytes of deltas from there */
        void *dst;
        void *transit;         /* NULL, or where a part of another node lands that is cast */
        struct shard_part src; /* on this node */
        size_t bytes;          /* as the owner has them */
        uint64_t elements;
};

static void slice_end(struct slice *s, bool ok)
{
        struct gather *g = s->gather;
        struct job *job = g->job;
        struct entry *e = &g->entries[s->group];

        e->in_flight--;
        if (ok)
                e->landed++;
        else
                e->again = true;
        if (!job->dead)
                gather_advance(g, s->group);
        gather_unuse(g);
        transit_free(s->transit);
        free(s);
        job_unref(job);
}

static void slice_copied(struct offload_task *task)
{
        struct slice *s = CONTAINER_OF(task, struct slice, copy.task);

        if (s->src.replica)
                shard_part_end(&s->src);
        slice_end(s, true);
}

static void slice_cast_run(struct offload_task *task, uint32_t worker)
{
        const struct slice *s = CONTAINER_OF(task, struct slice, copy.task);
        const struct job *job = s->gather->job;

        job->x->ops->cast(gather_dtype(s->gather, s->group), s->dst,
                          job->layout->groups[s->group].dtype,
                          s->transit ? s->transit : s->src.bytes.at, s->elements);
}

static void slice_cast(struct slice *s)
{
        s->copy.task = (struct offload_task){ .run = slice_cast_run, .done = slice_copied };
        job_compute(s->gather->job, OFFLOAD_STEP, &s->copy.task);
}

/* Whether the window has the group in another dtype than its owners. */
static bool gather_casts(const struct gather *g, uint32_t group)
{
        return gather_dtype(g, group) != g->job->layout->groups[group].dtype;
}

static void slice_ready(struct shard_part *src)
{
        struct slice *s = CONTAINER_OF(src, struct slice, src);

        if (gather_casts(s->gather, s->group))
                slice_cast(s);
        else
                job_copy(s->gather->job, &s->copy, s->dst, src->bytes.at, s->bytes, slice_copied);
}

static void slice_forwarded(void *arg, bool ok, uint64_t received)
{
        struct slice *s = arg;

        s->gather->forwarded += ok;
        s->gather->delta_bytes_received += received;
        slice_end(s, ok);
}

/* Brings all of the owner's slice forward, in place of one part. */
static bool slice_forward(struct slice *s, uint64_t from, const uint64_t *bytes)
{
        struct job *job = s->gather->job;
        struct range slice = partition_range(job->partition, s->group, s->owner);
        char *values = (char *)gather_slab(s->gather, s->group) +
                       layout_group_bytes(&job->layout->groups[s->group], slice.first);

        if (forward_start(job, s->group, s->owner, from, s->version, bytes, values, slice_forwarded,
                          s))
                return false;
        node_set_add(&s->gather->entries[s->group].forward, s->owner);
        s->gather->entries[s->group].by_deltas = true;
        return true;
}

static void slice_refused(struct ask *ask, const Zero__Refuse *why)
{
        struct slice *s = CONTAINER_OF(ask, struct slice, ask);

        if (!s->has || s->has > s->version || why->n_delta_bytes != s->version + 1 - s->has ||
            why->n_delta_bytes > DELTAS_KEPT)
                return;
        s->n_offered = (uint32_t)why->n_delta_bytes;
        memcpy(s->offered, why->delta_bytes, s->n_offered * sizeof s->offered[0]);
}

static void slice_landed(struct ask *ask, int status)
{
        struct slice *s = CONTAINER_OF(ask, struct slice, ask);
        struct entry *e = &s->gather->entries[s->group];

        node_set_remove(&e->asked, s->owner);
        if (status && s->n_offered) {
                if (slice_forward(s, s->has - 1, s->offered))
                        gather_advance(s->gather, s->group); /* the other parts have waited */
                else
                        slice_end(s, false);
                return;
        }
        if (status == 0)
                s->gather->elements_received += s->elements;
        if (ask->status == ZERO_ENOJOB) {
                e->stalled = true;
                s->gather->lacking |= s->gather->apart; /* readers come before any rank, too */
        } else if (ask->status &&
                   s->version == e->version) /* otherwise a later version is wanted by now */
                e->refused = ask->status;
        if (status == 0 && s->transit)
                slice_cast(s);
        else
                slice_end(s, status == 0);
}

static int slice_ask(struct slice *s, uint64_t version, struct range range)
{
        struct job *job = s->gather->job;
        Zero__Pull pull = ZERO__PULL__INIT;

        pull.kind = ZERO__PULL__KIND__PARAM;
        pull.group = s->group;
        pull.owner = s->owner;
        pull.version = version;
        pull.first = range.first;
        pull.count = range.count;
        pull.reads_along = s->gather->apart;
        pull.has = s->has;
        s->ask.done = slice_landed;
        if (gather_casts(s->gather, s->group) && !(s->transit = transit_new(s->bytes)))
                return -ENOMEM;
        if (ask_send(&s->ask, job, job->placement.node[s->owner], TRAFFIC_GATHER, &pull,
                     s->transit ? s->transit : s->dst, s->bytes))
                return -1;
        s->ask.refused = slice_refused;
        return 0;
}

/* Number of parts that the group, which has elements, comes in, if all slices were the largest. */
static uint32_t gather_parts(const struct job *job, uint32_t group)
{
        return job->partition->slices[group] *
               partition_most_parts(job->partition, job->layout, group, job->x->part_bytes);
}

/*
 * Each node begins behind its own slice, so that the nodes do not all ask one owner at once.  Its
 * own slice, a mere copy, comes last.
 */
static uint32_t slice_order(const struct job *job, uint32_t group, uint32_t k)
{
        uint32_t n = job->partition->slices[group], own = job->x->cluster->self % n;

        for (uint32_t i = 0; i < n; i++)
                if (job->placement.node[partition_owner(job->partition, group, i)] ==
                    job->x->cluster->self)
                        own = i;
        return (own + 1 + k) % n;
}

/* Whether this node has the deltas that bring the slab's slice to the version. */
static bool forward_here(const struct gather *g, uint32_t group, uint32_t owner)
{
        const struct entry *e = &g->entries[group];

        return e->has && deltas_reach(g->job, group, owner, e->has - 1, e->version) == e->version;
}

/* Starts the k-th part; false if that is not possible now (shard not ready, node not up). */
static bool gather_part(struct gather *g, uint32_t group, uint32_t k)
{
        struct job *job = g->job;
        struct entry *e = &g->entries[group];
        uint32_t slices = job->partition->slices[group];
        uint32_t owner =
                partition_owner(job->partition, group, slice_order(job, group, k % slices));
        struct range slice = partition_range(job->partition, group, owner);
        const struct layout_group *of = &job->layout->groups[group];
        uint32_t parts = partition_slice_parts(job->partition, job->layout, group, slice,
                                               job->x->part_bytes);
        struct replica *h = replica_find(job, owner);
        bool forward = k < slices && forward_here(g, group, owner);
        struct range range;
        struct slice *s;

        if (k / slices >= parts || node_set_has(e->forward, owner)) { /* a larger slice has more */
                e->landed++;
                return true;
        }
        if (node_set_has(e->asked, owner))
                return false;
        range = range_part(slice, k / slices, parts);
        if (h && !forward && !shard_has(h, group, e->version))
                return false;
        s = calloc(1, sizeof *s);
        if (!s) {
                g->lacking = true;
                return false;
        }
        *s = (struct slice){ .gather = g,
                             .group = group,
                             .owner = owner,
                             .version = e->version,
                             .has = k < slices ? e->has : 0,
                             .dst = (char *)gather_slab(g, group) +
                                    dtype_bytes(gather_dtype(g, group), range.first),
                             .bytes = layout_group_bytes(of, range.count),
                             .elements = range.count };
        if (forward ? !slice_forward(s, e->has - 1, NULL) : !h && slice_ask(s, e->version, range)) {
                g->lacking = true;
                transit_free(s->transit);
                free(s);
                return false;
        }
        job_ref(job);
        gather_use(g);
        e->in_flight++;
        if (s->has && !h && !forward)
                node_set_add(&e->asked, owner);
        e->pulled = e->pulled || (!h && !forward);
        if (h && !forward)
                shard_want(&s->src, h, plane_serve, group, range, slice_ready);
        return true;
}

/* ---- from one window to others ---- */

/*
 * Copies a group from one window of the node to all others that wait for it.
 *
 * The entry that has begun to gather from the owners leads; entries of other windows wait for it.
 * An entry that waits has not begun and leads nobody, so no two wait for each other.  If the leader
 * fails, has to fill again, or wants another version by now, the waiting entries decide anew. While
 * a slab is copied from (slab.readers), nobody takes or fills it.  If it becomes dirty meanwhile,
 * the entries that it is copied to notice: they are filling, and fill again.
 */

struct spread {
        struct offload_task task;
        struct gather *from;
        uint32_t group, slab; /* slab: in from */
        const void *src;
        size_t bytes;
        uint32_t n;
        void **dst; /* behind to[] */
        struct gather *to[];
};

static bool alike(const struct gather *a, const struct gather *b, uint32_t group)
{
        return gather_dtype(a, group) == gather_dtype(b, group);
}

/*
 * Ranks train on what owners have sent whole: nothing that came by deltas goes to their windows,
 * and their entries do not wait for one that may.  Nothing is cast twice.
 */
static bool lends(const struct gather *from, const struct gather *to, uint32_t group)
{
        const struct entry *e = &from->entries[group];
        bool may = e->by_deltas || (e->phase == ENTRY_FILLING && e->has);

        return from != to && (alike(from, to, group) || !gather_casts(from, group)) &&
               (to->apart || !may);
}

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

static void spread_run(struct offload_task *task, uint32_t worker)
{
        struct spread *s = CONTAINER_OF(task, struct spread, task);
        const struct job *job = s->from->job;
        uint32_t n = 0;

        for (uint32_t i = 0; i < s->n; i++)
                if (alike(s->from, s->to[i], s->group))
                        s->dst[n++] = s->dst[i];
                else
                        job->x->ops->cast(gather_dtype(s->to[i], s->group), s->dst[i],
                                          gather_dtype(s->from, s->group), s->src,
                                          job->layout->groups[s->group].elements);
        if (n)
                place_spread(s->dst, n, s->src, s->bytes);
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
        free(s);
        job_unref(job);
}

static void spread_add(struct spread *s, struct gather *g)
{
        struct entry *e = &g->entries[s->group];

        e->begun = true;
        e->by_deltas = s->from->entries[s->group].by_deltas;
        e->in_flight++;
        e->next_part = gather_parts(g->job, s->group); /* nothing else has to come */
        gather_use(g);
        s->to[s->n] = g;
        s->dst[s->n++] = gather_slab(g, s->group);
}

static struct spread *spread_new(struct gather *from, uint32_t group)
{
        const struct layout_group *l = &from->job->layout->groups[group];
        struct spread *s;
        uint32_t n = 0;

        for_gathers (from->job, g)
                n++;
        s = calloc(1, sizeof *s + n * (sizeof *s->to + sizeof *s->dst));
        if (!s)
                return NULL;
        s->dst = (void **)(s->to + n);
        s->from = from;
        s->group = group;
        s->slab = from->entries[group].slab;
        s->src = gather_slab(from, group);
        s->bytes = dtype_bytes(gather_dtype(from, group), l->elements);
        return s;
}

/* Copies to all windows that wait for the group; false: out of memory. */
static bool spread_start(struct gather *from, uint32_t group)
{
        uint64_t version = from->entries[group].version;
        struct spread *s = spread_new(from, group);

        if (!s)
                return false;
        for_gathers (from->job, g)
                if (lends(from, g, group) && wants_it(g, group, version))
                        spread_add(s, g);
        from->window.slabs[s->slab].readers++;
        gather_use(from);
        job_ref(from->job);
        s->task.run = spread_run;
        s->task.done = spread_done;
        job_compute(from->job, OFFLOAD_STEP, &s->task);
        return true;
}

/* Whether another window has the group, or will have it: the entry waits and gets it from there. */
static bool spread_to(struct gather *g, uint32_t group)
{
        uint64_t version = g->entries[group].version;

        for_gathers (g->job, other)
                if (lends(other, g, group) && has_it(other, group, version))
                        return spread_start(other, group);
        for_gathers (g->job, other)
                if (lends(other, g, group) && leads(other, group, version))
                        return true;
        return false;
}

/* ---- entries ---- */

static void entry_answer(struct gather *g, uint32_t group)
{
        struct entry *e = &g->entries[group];

        /* an answer may end a client's holds, and ask for another version */
        while (e->phase == ENTRY_READY && !list_empty(&e->waiting)) {
                struct request *r = CONTAINER_OF(e->waiting.next, struct request, wait);

                window_lease(&g->window, e->slab);
                r->result.fetch.serve = false;
                r->result.fetch.offset = window_offset(&g->window, e->slab);
                request_end(r, ZERO_OK, NULL);
        }
}

/* Gives free slabs to the entries that wait for one, in order. */
static void gather_feed(struct gather *g)
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

/* Readers have waited so long for the group. */
static void entry_took(const struct gather *g, uint32_t group)
{
        const struct entry *e = &g->entries[group];
        const struct layout_group *l = &g->job->layout->groups[group];

        if (g->apart && e->pulled)
                deltas_took(g->job, e->by_deltas || (e->refused && e->has),
                            layout_group_bytes(l, l->elements), uv_hrtime() - e->begun_ns);
}

/* An owner has refused: it lacks memory, or has another version, so the ranks' step was aborted. */
static void entry_fail(struct gather *g, uint32_t group)
{
        struct entry *e = &g->entries[group];

        entry_took(g, group);
        e->phase = ENTRY_EMPTY;
        g->window.slabs[e->slab].pinned = false;
        requests_end_all(&e->waiting, e->refused,
                         e->refused == ZERO_ENOMEM
                                 ? "an owner of the group is out of memory"
                                 : "an owner refused its slice of the group: the version asked "
                                   "for is over");
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
                    h->shard_version[group] > e->version && !forward_here(g, group, h->owner))
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
        e->has = 0;
        e->pulled = e->by_deltas = false;
        e->begun_ns = uv_hrtime();
        e->asked = e->forward = NODE_SET_NONE;
        g->window.slabs[e->slab].pinned = true;
}

/* All bytes have come. */
static void entry_ready(struct gather *g, uint32_t group)
{
        struct entry *e = &g->entries[group];

        entry_took(g, group);
        e->phase = ENTRY_READY;
        g->gathers++;
        g->window.slabs[e->slab].pinned = false;
        gather_advance_others(g, group); /* before anybody takes the slab away */
        entry_answer(g, group);
        gather_feed(g);
}

static bool all_forward_here(const struct gather *g, uint32_t group)
{
        const struct partition *p = g->job->partition;

        for (uint32_t i = 0; i < p->slices[group]; i++)
                if (!forward_here(g, group, partition_owner(p, group, i)))
                        return false;
        return true;
}

/* Starts the parts that can start, unless other windows still copy the slab's old bytes. */
static void entry_fill(struct gather *g, uint32_t group)
{
        struct entry *e = &g->entries[group];
        uint32_t parts = gather_parts(g->job, group);

        if (e->again || e->refused || g->window.slabs[e->slab].readers)
                return;
        if (!e->begun && !all_forward_here(g, group) && spread_to(g, group))
                return;
        e->begun = true;
        while (e->next_part < parts && e->in_flight < PARTS_IN_FLIGHT &&
               gather_part(g, group, e->next_part))
                e->next_part++;
        if (e->landed == parts)
                entry_ready(g, group);
}

/* Moves an entry on as far as possible. */
static void gather_advance(struct gather *g, uint32_t group)
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

/* ---- asking ---- */

/* Begins to bring the group at that version, unless it is here or on its way. */
static void gather_want(struct gather *g, uint32_t group, uint64_t version)
{
        struct entry *e = &g->entries[group];
        uint64_t has = 0;

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
        if (g->apart && !gather_casts(g, group) && e->phase == ENTRY_READY &&
            e->version < version && deltas_pay(g->job, version))
                has = 1 + e->version;
        e->version = version;
        if (!entry_slab(g, group))
                return;
        entry_begin(g, group);
        e->has = has;
        gather_advance(g, group);
}

static int gather_describe(const struct request *r, struct wait_line *ret)
{
        const struct holds *h = r->subject;
        const struct job *job = h->job;
        const struct entry *e = &h->gather->entries[r->group];
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
                if (!g->apart) /* readers do not say in which order the next update goes */
                        shard_use(h, group, version);
        r->describe = gather_describe;
        if (job->layout->groups[group].elements == 0) {
                r->result.fetch.serve = false;
                r->result.fetch.offset = 0;
                request_end(r, ZERO_OK, NULL);
                return;
        }
        const struct replica *sole = gather_mapped(g, group) ? replica_sole(job) : NULL;

        if (sole && shard_has(sole, group, version)) {
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

void holds_prefetch(const struct holds *h, uint32_t group, uint64_t version)
{
        struct gather *g = h->gather;
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

void holds_return(const struct holds *h, uint32_t group)
{
        struct gather *g = h->gather;
        struct entry *e = &g->entries[group];

        if (h->job->dead || slabless(g, group)) /* the groups of a dead job may be gone */
                return;
        assert(e->slab != SLAB_NONE);
        if (window_release(&g->window, e->slab))
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

                g->dirty = g->dirty || gather_dtype(g, group);
                if (e->phase == ENTRY_READY)
                        e->phase = ENTRY_EMPTY;
                else if (e->phase == ENTRY_FILLING)
                        e->again = true;
        }
}

bool gather_dirtied(struct gather *g)
{
        bool dirty = g->dirty;

        g->dirty = false;
        return dirty;
}

void gather_fail(struct job *job, int status, const char *text)
{
        for_gathers (job, g)
                for (uint32_t i = 0; i < job->layout->n_groups; i++)
                        requests_end_all(&g->entries[i].waiting, status, text);
}

/* ---- what the node goes through ---- */

static void gathers_node_up(struct engine *x, uint32_t node)
{
        list_for_each (&x->jobs, item) {
                gather_up(CONTAINER_OF(item, struct job, link));
        }
}

/* Goes on where memory was lacking, or an owner had not taken up the job yet. */
static void gathers_tick(struct engine *x)
{
        list_for_each (&x->jobs, item) {
                struct job *job = CONTAINER_OF(item, struct job, link);

                for_gathers (job, g) {
                        bool lacking = g->lacking;

                        g->lacking = false;
                        for (uint32_t i = 0; lacking && i < job->layout->n_groups; i++) {
                                g->entries[i].stalled &= !g->apart;
                                gather_advance(g, i);
                        }
                }
        }
}

const struct module gather_module = { .tick = gathers_tick,
                                      .node_up = gathers_node_up,
                                      .job_dropped = gather_fail,
                                      .job_free = gathers_free };
const struct shard_observer gather_observer = { .ready = gather_shard_ready };
