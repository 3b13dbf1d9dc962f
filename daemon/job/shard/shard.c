/*
 * An owner's shards for their readers.
 *
 * A pull of parameters is answered when the shard has reached the version asked for.  While
 * somebody reads its bytes (pins them), the group's next update waits.
 */
#include "daemon/job/deltas/deltas.h"
#include "daemon/job/shard/shard.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"

/* Another node's request for parameters, waiting or being sent. */
struct pull {
        struct list link; /* replica.pulls[group] while it waits */
        struct replica *replica;
        uint32_t node, group;
        uint64_t version, transfer, has; /* has: as in the message */
        struct range range;              /* of the shard */
        struct shard_part part;
};

void shard_pin(struct replica *h, uint32_t group)
{
        h->pins[group]++;
}

void shard_unpin(struct replica *h, uint32_t group)
{
        assert(h->pins[group] > 0);
        if (--h->pins[group])
                return;
        for_observers (h->job->x, o)
                if (o->unpinned)
                        o->unpinned(h);
}

static void part_mapped(struct mapping *bytes)
{
        struct shard_part *part = CONTAINER_OF(bytes, struct shard_part, bytes);

        part->done(part);
}

void shard_want(struct shard_part *part, struct replica *h, struct plane plane, uint32_t group,
                struct range range, void (*done)(struct shard_part *part))
{
        shard_pin(h, group);
        *part = (struct shard_part){ .replica = h, .group = group, .done = done };
        state_want(&part->bytes, h->state, plane, group, range, part_mapped);
}

void shard_part_end(struct shard_part *part)
{
        state_unmap(&part->bytes);
        shard_unpin(part->replica, part->group);
}

static void pull_free(struct pull *p)
{
        job_unref(p->replica->job);
        free(p);
}

static void pull_sent(void *arg, int status)
{
        struct pull *p = arg;

        shard_part_end(&p->part);
        pull_free(p);
}

static void pull_refuse(struct pull *p, int status, const char *text)
{
        ask_refuse(p->replica->job, p->node, p->transfer, status, text);
        pull_free(p);
}

static void pull_ready(struct shard_part *part)
{
        struct pull *p = CONTAINER_OF(part, struct pull, part);

        if (staged_payload(p->replica->job, p->node, p->transfer, TRAFFIC_GATHER, part->bytes.at,
                           part->bytes.bytes, false, pull_sent, p))
                pull_sent(p, -ENOTCONN); /* the node is gone, and its request with it */
}

static void pull_send(struct pull *p)
{
        shard_want(&p->part, p->replica, plane_serve, p->group, p->range, pull_ready);
}

/* Offers deltas in place of the slice, if they are fewer bytes; false: the slice has to go. */
static bool pull_offer(struct pull *p)
{
        struct job *job = p->replica->job;
        struct range whole = p->replica->state->plan->shards[p->group].range;
        uint64_t bytes[DELTAS_KEPT], from = p->has - 1, total = 0;
        uint32_t n = 0;

        if (deltas_reach(job, p->group, p->replica->owner, from, p->version) != p->version)
                return false;
        while (from + n < p->version) {
                bytes[n] = deltas_find(job, p->group, p->replica->owner, from + n + 1)->bytes;
                total += bytes[n++];
        }
        if (total >= layout_group_bytes(&job->layout->groups[p->group], whole.count))
                return false;
        ask_offer_deltas(job, p->node, p->transfer, bytes, n);
        pull_free(p);
        return true;
}

/* Answers the pull, unless it has to wait. */
static bool pull_answer(struct pull *p)
{
        struct replica *h = p->replica;

        if (p->version > h->shard_version[p->group])
                return false;
        if (p->has && deltas_expected(h->job, p->group, h->owner, p->has - 1, p->version))
                return false;
        if (p->has && pull_offer(p))
                return true;
        if (shard_has(h, p->group, p->version))
                pull_send(p);
        else if (p->version < h->shard_version[p->group])
                pull_refuse(p, ZERO_EABORTED, "the shard is at a later version");
        else
                return false;
        return true;
}

void shard_pulls(struct replica *h, uint32_t group)
{
        list_for_each (&h->pulls[group], item) {
                struct pull *p = CONTAINER_OF(item, struct pull, link);

                list_remove(&p->link);
                if (!pull_answer(p))
                        list_insert(item_next, &p->link);
        }
}

void shard_use(struct replica *h, uint32_t group, uint64_t version)
{
        uint32_t n = h->job->layout->n_groups, at;

        if (version < h->used_version)
                return; /* frozen: never updated */
        if (version > h->used_version)
                h->n_used = 0;
        h->used_version = version;
        for (at = h->n_used; at < n && h->order[at] != group; at++)
                ;
        if (at == n)
                return;
        memmove(&h->order[h->n_used + 1], &h->order[h->n_used],
                (at - h->n_used) * sizeof *h->order);
        h->order[h->n_used++] = group;
}

void shard_pull_message(struct job *job, uint32_t node, const Zero__Pull *request)
{
        struct replica *h = replica_find(job, request->owner);
        struct range range = { request->first, request->count };
        struct pull *p;

        if (!h || request->group >= job->layout->n_groups) {
                ask_refuse(job, node, request->transfer, h ? ZERO_EPROTO : ZERO_ENOJOB,
                           "this node does not have that shard");
                return;
        }
        if (!range_within(range, h->state->plan->shards[request->group].range)) {
                ask_refuse(job, node, request->transfer, ZERO_EPROTO,
                           "the range reaches beyond this owner's");
                return;
        }
        p = calloc(1, sizeof *p);
        if (!p) {
                ask_refuse(job, node, request->transfer, ZERO_ENOMEM, "out of memory");
                return;
        }
        *p = (struct pull){ .replica = h,
                            .node = node,
                            .group = request->group,
                            .version = request->version,
                            .transfer = request->transfer,
                            .has = request->has,
                            .range = range };
        list_init(&p->link);
        job_ref(job);
        if (request->has)
                deltas_want(job, p->version);
        if (!request->reads_along)
                shard_use(h, p->group, p->version);
        /* who is too far behind for deltas has nothing that counts */
        if (p->has > p->version || (p->has && p->version + 1 - p->has > DELTAS_KEPT))
                p->has = 0;
        if (!pull_answer(p))
                list_insert(&h->pulls[p->group], &p->link);
}

void shard_ready(struct replica *h, uint32_t group, uint64_t version)
{
        h->shard_version[group] = version;
        h->changing[group] = false;
        shard_pulls(h, group);
        for_observers (h->job->x, o)
                if (o->ready)
                        o->ready(h, group);
}

static void replica_forget_node(struct replica *h, uint32_t node)
{
        for (uint32_t g = 0; g < h->job->layout->n_groups; g++)
                list_for_each (&h->pulls[g], item) {
                        struct pull *p = CONTAINER_OF(item, struct pull, link);

                        if (p->node != node)
                                continue;
                        list_remove(&p->link);
                        pull_free(p);
                }
}

void shard_settled(struct job *job)
{
        for_observers (job->x, o)
                if (o->settled)
                        o->settled(job);
}

/* ---- what the node goes through ---------------------------------------------------- */

static void shards_node_down(struct engine *x, uint32_t node, const char *why)
{
        list_for_each (&x->jobs, item) {
                for_replicas (CONTAINER_OF(item, struct job, link), h)
                        replica_forget_node(h, node);
        }
}

static bool shards_idle(const struct engine *x)
{
        return !x->releases;
}

static void shards_job_dropped(struct job *job, int status, const char *text)
{
        for_replicas (job, h)
                for (uint32_t n = 0; n < job->x->cluster->n_nodes; n++)
                        replica_forget_node(h, n);
}

static void shards_job_released(struct job *job)
{
        while (!list_empty(&job->replicas))
                replica_free(replica_first(job));
        list_for_each (&job->old_replicas, item) {
                replica_free(CONTAINER_OF(item, struct replica, link));
        }
}

const struct module shard_module = { .node_down = shards_node_down,
                                     .idle = shards_idle,
                                     .job_dropped = shards_job_dropped,
                                     .job_released = shards_job_released,
                                     .job_free = shards_job_released };
