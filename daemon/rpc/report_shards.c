/* Who holds which part of every group, and where, as JSON. */
#include "daemon/rpc/report.h"

#include <stdio.h>

#include "daemon/device/gpu.h"
#include "daemon/shard/shards.h"
#include "daemon/rpc/report_json.h"

/* ---- what this node tells ---- */

static json_t *versions_of(const struct holding *h)
{
        json_t *versions = json_array();

        for (uint32_t g = 0; g < h->job->layout->n_groups; g++)
                json_array_append_new(versions, h->state->plan->shards[g].range.count
                                                        ? number(h->shard_version[g])
                                                        : json_null());
        return versions;
}

/* The version that last changed a group; null: none did since the state was taken up. */
static json_t *updates_of(const struct holding *h)
{
        json_t *updates = json_array();

        for (uint32_t g = 0; g < h->job->layout->n_groups; g++)
                json_array_append_new(updates, h->idle[g] < h->committed
                                                       ? number(h->job->version - h->idle[g])
                                                       : json_null());
        return updates;
}

/* Where the states of an owner are. */
static json_t *place_of(const struct holding *h)
{
        int gpu = gpu_of(h->state->master);

        return gpu < 0 ? json_string("host") : json_sprintf("GPU %d", gpu);
}

json_t *report_held(const struct job *job)
{
        json_t *owners = json_object(), *held;
        char key[16];

        for_holdings (job, h) {
                if (h->copy != 0)
                        continue;
                snprintf(key, sizeof key, "%u", h->owner);
                held = json_object();
                json_object_set_new(held, "versions", versions_of(h));
                json_object_set_new(held, "updates", updates_of(h));
                json_object_set_new(held, "place", place_of(h));
                json_object_set_new(owners, key, held);
        }
        return owners;
}

json_t *report_held_by(json_t *held, uint32_t owner)
{
        char key[16];

        snprintf(key, sizeof key, "%u", owner);
        return json_object_get(held, key);
}

/* ---- put together ---- */

/* What another node has told, or null. */
static void set_told(json_t *j, const char *key, json_t *told)
{
        if (told)
                json_object_set(j, key, told);
        else
                json_object_set_new(j, key, json_null());
}

static json_t *report_shard(const struct job *job, uint32_t group, uint32_t owner, json_t *held)
{
        struct range range = partition_range(job->partition, group, owner);
        enum zero_dtype dtype = job->layout->groups[group].dtype;
        uint64_t moments = shard_trainable(job->layout, group, range) * sizeof(float);
        json_t *j = json_object(), *bytes = json_object();

        json_object_set_new(j, "owner", text(node_name(job->x, job->place.node[owner])));
        json_object_set_new(j, "device",
                            number(holder_device(&job->place, holder_of(&job->place, owner, 0))));
        json_object_set_new(j, "first", number(range.first));
        json_object_set_new(j, "count", number(range.count));
        json_object_set_new(bytes, "master", number(range.count * sizeof(float)));
        json_object_set_new(bytes, "exp_avg", number(moments));
        json_object_set_new(bytes, "exp_avg_sq", number(moments));
        json_object_set_new(bytes, "grad", number(moments));
        json_object_set_new(bytes, "serve",
                            number(dtype == ZERO_FP32 ? 0 : range.count * dtype_size(dtype)));
        json_object_set_new(j, "bytes", bytes);
        set_told(j, "version", json_array_get(json_object_get(held, "versions"), group));
        set_told(j, "last_updated", json_array_get(json_object_get(held, "updates"), group));
        set_told(j, "place", json_object_get(held, "place"));
        return j;
}

static json_t *report_group(const struct job *job, uint32_t group, json_t *const *held)
{
        const struct layout_group *g = &job->layout->groups[group];
        json_t *j = json_object(), *shards = json_array();

        json_object_set_new(j, "group", text(g->name));
        json_object_set_new(j, "index", number(group));
        json_object_set_new(j, "elements", number(g->elements));
        json_object_set_new(j, "dtype", text(dtype_name(g->dtype)));
        for (uint32_t i = 0; i < job->partition->slices[group]; i++) {
                uint32_t owner = partition_owner(job->partition, group, i);

                json_array_append_new(shards, report_shard(job, group, owner, held[owner]));
        }
        json_object_set_new(j, "shards", shards);
        return j;
}

json_t *report_shards(const struct job *job, json_t *const *held)
{
        json_t *j = json_object(), *groups = json_array();

        json_object_set_new(j, "job", text(job->name));
        for (uint32_t g = 0; g < job->layout->n_groups; g++)
                json_array_append_new(groups, report_group(job, g, held));
        json_object_set_new(j, "groups", groups);
        return j;
}
