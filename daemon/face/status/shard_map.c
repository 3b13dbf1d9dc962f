/*
 * A picture of the jobs' shards: owners by bands, where a band is one group or several in a row.
 *
 * Rule: the map of a job has at most MAP_BANDS bands, so it is small however many groups there are,
 * and it names no group: any local user may see it, again and again.
 */
#include "daemon/face/status/status.h"

#include <string.h>

#include "daemon/job/shard/shard.h"
#include "proto/cleanup.h"

enum { MAP_BANDS = 64, MAP_JOBS = 64, MAP_SHARES = 4096 * ZERO_NODE_MAX };

/* A whole map looks at MAP_SHARES groups, bands or owners at most; what is left out stays empty. */
static bool may_look(uint64_t *left, uint64_t n)
{
        bool may = n <= *left;

        *left -= may ? n : 0;
        return may;
}

static uint32_t bands_of(const struct job *job)
{
        uint32_t n = job->layout->n_groups;

        return n < MAP_BANDS ? n : MAP_BANDS;
}

static uint32_t band_first(const struct job *job, uint32_t band)
{
        return (uint32_t)((uint64_t)band * job->layout->n_groups / bands_of(job));
}

static void report_elements(struct arena *arena, const struct job *job,
                            struct status_owner_map *ret)
{
        for (uint32_t b = 0; b < bands_of(job); b++) {
                uint64_t elements = 0;

                for (uint32_t g = band_first(job, b); g < band_first(job, b + 1); g++)
                        elements += partition_range(job->partition, g, (uint32_t)ret->owner).count;
                numbers_add(arena, &ret->elements, elements);
        }
}

static void report_versions(struct arena *arena, const struct replica *h,
                            struct status_owner_map *ret)
{
        ret->version = h->job->version;
        for (uint32_t b = 0; b < bands_of(h->job); b++) {
                uint64_t oldest = RECORD_NULL, newest = RECORD_NULL;

                for (uint32_t g = band_first(h->job, b); g < band_first(h->job, b + 1); g++) {
                        uint64_t version = h->shard_version[g];

                        if (!h->state->plan->shards[g].range.count)
                                continue;
                        oldest = version < oldest ? version : oldest;
                        newest = newest == RECORD_NULL || version > newest ? version : newest;
                }
                numbers_add(arena, &ret->oldest, oldest);
                numbers_add(arena, &ret->newest, newest);
        }
}

static void numbers_copy(struct arena *arena, const struct record_numbers *from,
                         struct record_numbers *ret)
{
        for (uint32_t i = 0; i < from->n; i++)
                numbers_add(arena, ret, from->items[i]);
}

/* Versions as the owner's node told them: of the same job, in the same epoch. */
static void report_told(struct arena *arena, const struct job *job, const struct status_map *told,
                        struct status_owner_map *ret)
{
        for (uint32_t i = 0; told && i < told->jobs.n; i++) {
                const struct status_job_map *j = &told->jobs.items[i];

                if (!j->job || strcmp(j->job, job->name) != 0 || j->epoch != job->placement.epoch)
                        continue;
                for (uint32_t k = 0; k < j->owners.n; k++) {
                        const struct status_owner_map *o = &j->owners.items[k];

                        if (o->owner != ret->owner || o->oldest.n != bands_of(job) ||
                            o->newest.n != bands_of(job))
                                continue;
                        ret->version = o->version;
                        numbers_copy(arena, &o->oldest, &ret->oldest);
                        numbers_copy(arena, &o->newest, &ret->newest);
                        return;
                }
        }
}

/* elements: they are looked at.  left: may_look(). */
static void report_owner(struct arena *arena, const struct job *job, uint32_t owner,
                         const struct status_map *const *told, bool elements, uint64_t *left,
                         struct status_job_map *ret)
{
        const struct placement *p = &job->placement;
        const struct replica *h = replica_of_copy(job, owner, 0);
        struct status_owner_map *o = told || h ? LIST_ADD(arena, &ret->owners) : NULL;

        if (!o)
                return;
        o->owner = owner;
        o->version = RECORD_NULL;
        o->node = node_name(job->x, p->node[owner]);
        o->device = holder_device(p, holder_of(p, owner, 0));
        if (elements)
                report_elements(arena, job, o);
        if (h && may_look(left, job->layout->n_groups))
                report_versions(arena, h, o);
        else if (!h && may_look(left, bands_of(job)))
                report_told(arena, job, told[p->node[owner]], o);
}

void report_map(struct arena *arena, const struct engine *x, const struct status_map *const *told,
                struct status_map *ret)
{
        uint64_t left = MAP_SHARES;

        *ret = (struct status_map){ .jobs = { 0 } };
        list_for_each ((struct list *)&x->jobs, item) {
                const struct job *job = CONTAINER_OF(item, struct job, link);
                struct status_job_map *j = job->opening || ret->jobs.n == MAP_JOBS
                                                   ? NULL
                                                   : LIST_ADD(arena, &ret->jobs);
                bool elements;

                if (!j)
                        continue;
                j->job = arena_copy(arena, job->name);
                j->epoch = job->placement.epoch;
                j->version = job->version;
                j->groups = job->layout->n_groups;
                for (uint32_t b = 0; told && b < bands_of(job); b++)
                        numbers_add(arena, &j->bands, band_first(job, b));
                elements = told && may_look(&left, (uint64_t)job->layout->n_groups *
                                                           job->placement.n_owners);
                for (uint32_t o = 0; o < job->placement.n_owners; o++)
                        report_owner(arena, job, o, told, elements, &left, j);
        }
}
