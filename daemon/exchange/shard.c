/*
 * This owner's shards as others read them.
 *
 * A pull of parameters is answered when the shard is at the version asked for; while its
 * bytes are being read (pinned) the next update of the group waits.
 */
#include "daemon/exchange/exchange.h"

#include <assert.h>
#include <stdlib.h>

#include "proto/cleanup.h"

/* Another node's request for parameters, waiting or being sent. */
struct pull {
        struct list link; /* job.pulls[group] while it waits */
        struct job *job;
        uint32_t node, group;
        uint64_t version, transfer;
};

void shard_pin(struct job *job, uint32_t group)
{
        job->pins[group]++;
}

void shard_unpin(struct job *job, uint32_t group)
{
        assert(job->pins[group] > 0);
        if (--job->pins[group] == 0 && job->update)
                update_unpinned(job);
}

static void pull_free(struct pull *p)
{
        job_unref(p->job);
        free(p);
}

static void pull_sent(void *arg, int status)
{
        struct pull *p = arg;

        shard_unpin(p->job, p->group);
        pull_free(p);
}

static void pull_refuse(struct pull *p, int status, const char *text)
{
        ask_refuse(p->job, p->node, p->transfer, status, text);
        pull_free(p);
}

static void pull_send(struct pull *p)
{
        struct job *job = p->job;
        const struct plan_shard *shard = &job->state->plan->shards[p->group];
        size_t bytes = shard->range.count * dtype_size(job->layout->groups[p->group].dtype);

        shard_pin(job, p->group);
        if (fabric_payload(job->x->fabric, p->node, p->transfer, TRAFFIC_GATHER,
                           state_shard(job->state, job->layout, p->group), bytes, pull_sent,
                           p) == 0)
                return;
        shard_unpin(job, p->group);
        pull_free(p); /* the node is gone, and its request with it */
}

void shard_pull_message(struct job *job, uint32_t node, const Zero__Pull *request)
{
        const struct plan_shard *shard;
        struct pull *p;

        if (!job->state || request->group >= job->layout->n_groups) {
                ask_refuse(job, node, request->transfer, ZERO_EPROTO, "no such shard");
                return;
        }
        shard = &job->state->plan->shards[request->group];
        if (request->first != shard->range.first || request->count != shard->range.count) {
                ask_refuse(job, node, request->transfer, ZERO_EPROTO, "not this owner's range");
                return;
        }
        p = calloc(1, sizeof *p);
        if (!p) {
                ask_refuse(job, node, request->transfer, ZERO_ENOMEM, "out of memory");
                return;
        }
        *p = (struct pull){ .job = job,
                            .node = node,
                            .group = request->group,
                            .version = request->version,
                            .transfer = request->transfer };
        list_init(&p->link);
        job_ref(job);
        if (job->shard_version[p->group] == p->version)
                pull_send(p);
        else if (job->shard_version[p->group] > p->version)
                pull_refuse(p, ZERO_EABORTED, "the shard is at a later version");
        else
                list_insert(&job->pulls[p->group], &p->link);
}

void shard_ready(struct job *job, uint32_t group, uint64_t version)
{
        job->shard_version[group] = version;
        list_for_each (&job->pulls[group], item) {
                struct pull *p = CONTAINER_OF(item, struct pull, link);

                if (p->version > version)
                        continue;
                list_remove(&p->link);
                if (p->version == version)
                        pull_send(p);
                else
                        pull_refuse(p, ZERO_EABORTED, "the shard is at a later version");
        }
        gather_shard_ready(job, group);
}

void shard_forget_node(struct job *job, uint32_t node)
{
        for (uint32_t g = 0; job->state && g < job->layout->n_groups; g++)
                list_for_each (&job->pulls[g], item) {
                        struct pull *p = CONTAINER_OF(item, struct pull, link);

                        if (p->node != node)
                                continue;
                        list_remove(&p->link);
                        pull_free(p);
                }
}
