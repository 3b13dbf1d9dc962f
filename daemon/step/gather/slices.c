/*
 * Brings a group's slices into a slab: from other nodes, or by a copy from this node's shards.
 *
 * Slices come in parts of at most engine.part_bytes: while one part travels, transfer stages the
 * next at its owner and the one before on this node.
 */
#include <stdlib.h>

#include "daemon/step/gather/entry.h"
#include "proto/cleanup.h"

/* A part of a slice that is being brought. */
struct slice {
        struct offload_task task;
        struct ask ask;
        struct gather *gather;
        struct replica *replica; /* to copy from; NULL: on another node */
        uint32_t group;
        uint64_t version;
        void *dst;
        struct mapping src; /* of the replica */
        size_t bytes;
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
        free(s);
        job_unref(job);
}

static void slice_copy(struct offload_task *task, uint32_t worker)
{
        struct slice *s = CONTAINER_OF(task, struct slice, task);

        s->gather->job->x->ops->copy(s->dst, s->src.at, s->bytes);
}

static void slice_copied(struct offload_task *task)
{
        struct slice *s = CONTAINER_OF(task, struct slice, task);

        state_unmap(&s->src);
        shard_unpin(s->replica, s->group);
        slice_end(s, true);
}

static void slice_submit(struct slice *s)
{
        s->task.run = slice_copy;
        s->task.done = slice_copied;
        job_compute(s->gather->job, OFFLOAD_STEP, &s->task);
}

static void slice_landed(struct ask *ask, int status)
{
        struct slice *s = CONTAINER_OF(ask, struct slice, ask);
        struct entry *e = &s->gather->entries[s->group];

        if (status == 0)
                s->gather->elements_received += s->elements;
        if (ask->status == ZERO_ENOJOB)
                e->stalled = true;
        else if (ask->status &&
                 s->version == e->version) /* otherwise a later version is wanted by now */
                e->refused = ask->status;
        slice_end(s, status == 0);
}

static int slice_ask(struct slice *s, uint32_t owner, uint64_t version, struct range range)
{
        struct job *job = s->gather->job;
        Zero__Pull pull = ZERO__PULL__INIT;

        pull.kind = ZERO__PULL__KIND__PARAM;
        pull.group = s->group;
        pull.owner = owner;
        pull.version = version;
        pull.first = range.first;
        pull.count = range.count;
        s->ask.done = slice_landed;
        return ask_send(&s->ask, job, job->placement.node[owner], TRAFFIC_GATHER, &pull, s->dst,
                        s->bytes);
}

/* Number of parts of each slice of the group. */
static uint32_t slice_parts(const struct job *job, uint32_t group)
{
        return partition_slice_parts(job->partition, job->layout, group, job->x->part_bytes);
}

uint32_t gather_parts(const struct job *job, uint32_t group)
{
        return job->partition->slices[group] * slice_parts(job, group);
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

bool gather_part(struct gather *g, uint32_t group, uint32_t k)
{
        struct job *job = g->job;
        struct entry *e = &g->entries[group];
        uint32_t slices = job->partition->slices[group];
        uint32_t owner =
                partition_owner(job->partition, group, slice_order(job, group, k % slices));
        struct range slice = partition_range(job->partition, group, owner);
        struct range range = range_part(slice, k / slices, slice_parts(job, group));
        const struct layout_group *of = &job->layout->groups[group];
        struct replica *h = replica_find(job, owner);
        struct slice *s;

        if (h && h->shard_version[group] != e->version)
                return false;
        s = calloc(1, sizeof *s);
        if (!s) {
                g->lacking = true;
                return false;
        }
        *s = (struct slice){ .gather = g,
                             .replica = h,
                             .group = group,
                             .version = e->version,
                             .dst = (char *)gather_slab(g, group) +
                                    layout_group_bytes(of, range.first),
                             .bytes = layout_group_bytes(of, range.count),
                             .elements = range.count };
        if (!h && slice_ask(s, owner, e->version, range)) {
                g->lacking = true;
                free(s);
                return false;
        }
        job_ref(job);
        gather_use(g);
        e->in_flight++;
        if (h) {
                shard_pin(h, group);
                s->src = state_map_shard(h->state, job->layout, group, range);
                slice_submit(s);
        }
        return true;
}
