/* Who holds which part of every group, and where. */
#include "daemon/face/status/status.h"

#include "daemon/job/shard/shard.h"
#include "proto/cleanup.h"

/* ---- what this node holds ---- */

/* Updates by an earlier process are not known. */
static void report_group_versions(struct arena *arena, const struct replica *h, uint32_t group,
                                  struct status_replica *ret)
{
        bool has = h->state->plan->shards[group].range.count;
        bool updated = h->idle[group] < h->committed;

        numbers_add(arena, &ret->versions, has ? h->shard_version[group] : RECORD_NULL);
        numbers_add(arena, &ret->updates, updated ? h->job->version - h->idle[group] : RECORD_NULL);
}

void report_replicas(struct arena *arena, const struct job *job, struct status_replicas *ret)
{
        *ret = (struct status_replicas){ .replicas = { 0 } };
        for_replicas (job, h) {
                struct status_replica *own = h->copy == 0 ? LIST_ADD(arena, &ret->replicas) : NULL;

                if (!own)
                        continue;
                own->owner = h->owner;
                own->place = arena_copy(arena, place_name(h->state->id.place).text);
                for (uint32_t g = 0; g < job->layout->n_groups; g++)
                        report_group_versions(arena, h, g, own);
        }
}

/* ---- what all nodes hold ---- */

static uint64_t number_of(const struct record_numbers *numbers, uint32_t i)
{
        return i < numbers->n ? numbers->items[i] : RECORD_NULL;
}

static void report_shard(struct arena *arena, const struct job *job, uint32_t group, uint32_t owner,
                         const struct status_replica *told, struct status_shard *ret)
{
        struct range range = partition_range(job->partition, group, owner);
        uint32_t moments = optimizer_group_moments(job->layout, group);
        uint64_t trainable = partition_trainable(job->layout, group, range);
        uint64_t old = trainable * sizeof(float);
        const struct layout_group *g = &job->layout->groups[group];

        ret->owner = node_name(job->x, job->placement.node[owner]);
        ret->device = holder_device(&job->placement, holder_of(&job->placement, owner, 0));
        ret->first = range.first;
        ret->count = range.count;
        counts_add(arena, &ret->bytes, "master", format_bytes(optimizer_master(g), range.count));
        for (uint32_t i = 0; i < moments; i++) {
                uint64_t bytes = optimizer_moment_bytes(job->layout, group, range, i);

                old += bytes;
                counts_add(arena, &ret->bytes, optimizer_group_moment(job->layout, group, i),
                           bytes);
        }
        counts_add(arena, &ret->bytes, "grad",
                   dtype_bytes(job_spec_sum_dtype(&job->spec), trainable));
        counts_add(arena, &ret->bytes, "serve", range.count * layout_group_served(g));
        if (g->eager)
                counts_add(arena, &ret->bytes, "old", old);
        ret->version = told ? number_of(&told->versions, group) : RECORD_NULL;
        ret->last_updated = told ? number_of(&told->updates, group) : RECORD_NULL;
        ret->place = told ? told->place : NULL;
}

/* "muon, adamw" where tensors of the group differ. */
static const char *optimizers_text(struct arena *arena, const layout *l,
                                   const struct layout_group *g)
{
        const struct optimizer *seen[8] = { optimizer_find(g->optimizer) };
        uint32_t n = layout_group_trainable(l, (uint32_t)(g - l->groups)) ? 0 : 1;
        char text[8 * (ZERO_OPTIMIZER_MAX + 2)] = "";

        for (uint32_t t = g->first_tensor; t < g->first_tensor + g->n_tensors; t++) {
                uint32_t i = 0;

                while (i < n && seen[i] != optimizer_of(l, t))
                        i++;
                if (i == n && n < 8 && !l->tensors[t].frozen)
                        seen[n++] = optimizer_of(l, t);
        }
        for (uint32_t i = 0, end = 0; i < n; i++)
                end += (uint32_t)snprintf(text + end, sizeof(text) - end, "%s%s", i ? ", " : "",
                                          seen[i]->name);
        return arena_copy(arena, text);
}

static void report_group(struct arena *arena, const struct job *job, uint32_t group,
                         const struct status_replica *const *told, struct status_group *ret)
{
        const struct layout_group *g = &job->layout->groups[group];

        ret->group = arena_copy(arena, g->name);
        ret->index = group;
        ret->elements = g->elements;
        ret->dtype = dtype_name(g->dtype);
        ret->optimizer = optimizers_text(arena, job->layout, g);
        ret->ema = g->ema;
        ret->state = arena_copy(arena, *g->state ? g->state : "fp32");
        ret->master = arena_copy(arena, *g->master ? g->master : "fp32");
        for (uint32_t i = 0; i < g->n_tensors; i++) {
                const struct layout_tensor *t = &job->layout->tensors[g->first_tensor + i];

                if (t->whole)
                        texts_add(arena, &ret->whole, arena_copy(arena, t->name));
        }
        for (uint32_t i = 0; i < job->partition->slices[group]; i++) {
                uint32_t owner = partition_owner(job->partition, group, i);
                struct status_shard *shard = LIST_ADD(arena, &ret->shards);

                if (shard)
                        report_shard(arena, job, group, owner, told[owner], shard);
        }
}

void report_job_shards(struct arena *arena, const struct job *job,
                       const struct status_replica *const *told, struct status_job_shards *ret)
{
        *ret = (struct status_job_shards){ .job = arena_copy(arena, job->name) };
        for (uint32_t g = 0; g < job->layout->n_groups; g++) {
                struct status_group *group = LIST_ADD(arena, &ret->groups);

                if (group)
                        report_group(arena, job, g, told, group);
        }
}

static void report_job_shards_here(struct arena *arena, const struct job *job,
                                   struct status_shards *ret)
{
        const struct status_replica *told[ZERO_NODE_MAX] = { NULL };
        struct status_job_shards *shards = LIST_ADD(arena, &ret->jobs);
        struct status_replicas own;

        if (!shards)
                return;
        report_replicas(arena, job, &own);
        for (uint32_t i = 0; i < own.replicas.n; i++)
                told[own.replicas.items[i].owner] = &own.replicas.items[i];
        report_job_shards(arena, job, told, shards);
}

void report_shards(struct arena *arena, const struct engine *x, uint32_t uid,
                   struct status_shards *ret)
{
        *ret = (struct status_shards){ .jobs = { 0 } };
        list_for_each ((struct list *)&x->jobs, item) {
                const struct job *job = CONTAINER_OF(item, struct job, link);

                if (!job->opening && job_is_for(job, uid))
                        report_job_shards_here(arena, job, ret);
        }
}
