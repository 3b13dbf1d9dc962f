/* Makes and finds an owner's shards on this node. */
#include "daemon/job/shard/shard.h"

#include <errno.h>
#include <stdlib.h>

#include "proto/cleanup.h"

static bool replica_alloc(struct replica *h)
{
        uint32_t n = h->job->layout->n_groups;

        h->shard_version = calloc(n, sizeof *h->shard_version);
        h->changing = calloc(n, sizeof *h->changing);
        h->order = calloc(n, sizeof *h->order);
        h->idle = calloc(n, sizeof *h->idle);
        h->pins = calloc(n, sizeof *h->pins);
        h->unread = calloc(n, sizeof *h->unread);
        h->pulls = malloc(n * sizeof *h->pulls);
        if (!h->shard_version || !h->changing || !h->order || !h->idle || !h->pins || !h->unread ||
            !h->pulls)
                return false;
        for (uint32_t g = 0; g < n; g++) {
                h->order[g] = g;
                list_init(&h->pulls[g]);
        }
        for_observers (h->job->x, o)
                if (o->made && o->made(h))
                        return false;
        return true;
}

int replica_new(struct job *job, uint32_t owner, uint32_t copy, struct replica **ret)
{
        struct replica *h = calloc(1, sizeof *h);

        if (!h)
                return -ENOMEM;
        h->job = job;
        h->owner = owner;
        h->copy = copy;
        list_init(&h->link);
        if (!replica_alloc(h)) {
                replica_free(h);
                return -ENOMEM;
        }
        list_insert(&job->replicas, &h->link);
        *ret = h;
        return 0;
}

int replica_new_old_placement(struct job *job, struct state *state, struct replica **ret)
{
        int r = replica_new(job, state->plan->owner, state->id.copy, ret);

        if (r)
                return r;
        (*ret)->state = state;
        list_remove(&(*ret)->link);
        list_insert(&job->old_replicas, &(*ret)->link);
        return 0;
}

void replica_free(struct replica *h)
{
        if (!h)
                return;
        list_remove(&h->link);
        for_observers (h->job->x, o)
                if (o->freed)
                        o->freed(h);
        if (h->job->drop_state) {
                state_withdraw(h->state);
                state_drop_later(h->job->x, h->job, h->state);
        } else {
                state_close(h->state);
        }
        free(h->shard_version);
        free(h->changing);
        free(h->order);
        free(h->idle);
        free(h->pins);
        free(h->unread);
        free(h->pulls);
        free(h);
}

static struct replica *replica_at(const struct job *job, struct list *item)
{
        return item == &job->replicas ? NULL : CONTAINER_OF(item, struct replica, link);
}

struct replica *replica_first(const struct job *job)
{
        return replica_at(job, job->replicas.next);
}

struct replica *replica_next(const struct job *job, const struct replica *h)
{
        return replica_at(job, h->link.next);
}

struct replica *replica_find(const struct job *job, uint32_t owner)
{
        for_replicas (job, h)
                if (h->owner == owner)
                        return h;
        return NULL;
}

struct replica *replica_of_copy(const struct job *job, uint32_t owner, uint32_t copy)
{
        for_replicas (job, h)
                if (h->owner == owner && h->copy == copy)
                        return h;
        return NULL;
}

struct replica *replica_of_epoch(const struct job *job, uint64_t epoch, uint32_t owner,
                                 uint32_t copy)
{
        if (epoch == job->placement.epoch)
                return replica_of_copy(job, owner, copy);
        list_for_each ((struct list *)&job->old_replicas, item) {
                struct replica *h = CONTAINER_OF(item, struct replica, link);

                if (h->state->id.epoch == epoch && h->owner == owner && h->copy == copy)
                        return h;
        }
        return NULL;
}

struct replica *replica_newest_old_placement(const struct job *job)
{
        struct replica *newest = NULL;

        list_for_each ((struct list *)&job->old_replicas, item) {
                struct replica *h = CONTAINER_OF(item, struct replica, link);

                if (!newest || h->state->id.epoch > newest->state->id.epoch)
                        newest = h;
        }
        return newest;
}

bool replicas_whole(const struct job *job)
{
        const struct placement *placement = &job->placement;

        for (uint32_t i = 0; i < placement_holders(placement); i++)
                if (holder_node(placement, i) == job->x->cluster->self &&
                    !replica_of_copy(job, holder_owner(placement, i), holder_copy(placement, i)))
                        return false;
        return true;
}

struct replica *replica_sole(const struct job *job)
{
        return job->placement.n_owners == 1 ? replica_first(job) : NULL;
}
