/*
 * What comes in at one node in a pass over the groups, message by message: the offers of gradients,
 * and the requests for parameters, of all other nodes.
 *
 * Nodes work on a group at the same time, but for the latency of a link.  A node offers its
 * gradient to the owners in the order of their slices, one after the other; so all nodes reach the
 * first owner first.  A node that gathers begins behind its own slice, and asks for the next part
 * when the part eight before has come.
 */
#include "client/simulate/simulate.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/dtype.h"

enum { PARTS_IN_FLIGHT = 8 }; /* as in gather/gather.c */

struct arrival {
        uint64_t at;
        uint32_t from;
};

struct arrivals {
        struct world *w;
        uint32_t node; /* where they come in */
        struct arrival *items;
        uint64_t n;
        uint32_t *waiting; /* [node] */
        struct burst *burst;
};

static int compare(const void *a, const void *b)
{
        const struct arrival *x = a, *y = b;

        if (x->at != y->at)
                return x->at < y->at ? -1 : 1;
        return x->from < y->from ? -1 : x->from > y->from;
}

/* The loop takes them one after the other and spends `each` on one. */
static void arrivals_handle(struct arrivals *a, enum kind kind, uint64_t each)
{
        struct incast *most = &a->burst->incast;
        uint64_t done = 0, next = 0;
        uint32_t senders = 0;

        qsort(a->items, a->n, sizeof *a->items, compare);
        for (uint64_t i = 0; i < a->n; i++) {
                const struct arrival *x = &a->items[i];

                done = (done > x->at ? done : x->at) + each;
                /* those that have come before this one is over wait with it */
                for (; next < a->n && a->items[next].at < done; next++)
                        senders += a->waiting[a->items[next].from]++ == 0;
                if (senders > most->senders)
                        *most = (struct incast){ senders, a->node, kind };
                senders -= --a->waiting[x->from] == 0;
        }
        a->n = 0;
}

static void arrival_add(struct arrivals *a, uint32_t from, uint64_t sent)
{
        const struct description *d = a->w->d;
        uint64_t late = world_random(a->w, d->latency + 1);

        a->items[a->n++] = (struct arrival){ sent + d->latency + late, from };
}

/* ---- gradients --------------------------------------------------------------------------- */

static void offers_come(struct arrivals *a, uint32_t group, uint32_t slice, const uint64_t *starts)
{
        const struct description *d = a->w->d;
        uint32_t owner = partition_owner(d->partition, group, slice);
        uint64_t pulls = traffic_grad_parts(d, partition_range(d->partition, group, owner));

        for (uint32_t n = 0; n < d->nodes; n++) {
                if (n == a->node)
                        continue;
                arrival_add(a, n, starts[n] + (slice + 1) * d->message);
                a->burst->offers += d->pushes;
        }
        arrivals_handle(a, KIND_offer, (1 + pulls) * d->message);
}

/* ---- parameters -------------------------------------------------------------------------- */

/* The number of a node's slice in the order of the group, as slice_order() in gather/gather.c. */
static uint32_t own_slice(const struct description *d, uint32_t group, uint32_t node)
{
        uint32_t n = d->partition->slices[group], own = node % n;

        for (uint32_t i = 0; i < n; i++)
                if (d->placement.node[partition_owner(d->partition, group, i)] == node)
                        own = i;
        return own;
}

static void pulls_come(struct arrivals *a, uint32_t group, uint32_t slice, const uint64_t *starts)
{
        const struct description *d = a->w->d;
        uint32_t n = d->partition->slices[group];
        uint32_t owner = partition_owner(d->partition, group, slice);
        const struct range range = partition_range(d->partition, group, owner);
        uint64_t parts = partition_slice_parts(d->partition, d->layout, group, range, PART_BYTES);
        double bytes = (double)range.count / (double)parts *
                       (double)dtype_bytes(d->layout->groups[group].dtype, 1);
        uint64_t each = (uint64_t)(bytes / d->link * 1e9);

        each = each > 2 * d->message ? each : 2 * d->message; /* a request, and what comes of it */
        for (uint32_t from = 0; from < d->nodes; from++) {
                uint32_t at = (slice + 2 * n - own_slice(d, group, from) - 1) % n;

                if (from == a->node ||
                    (d->placement.copies > 1 && from == d->placement.mirror[owner]))
                        continue;
                for (uint64_t k = at; k < parts * n; k += n) {
                        uint64_t waits = k < PARTS_IN_FLIGHT ? 0 : k + 1 - PARTS_IN_FLIGHT;

                        arrival_add(a, from, starts[from] + (k + 1) * d->message + waits * each);
                        a->burst->pulls += d->gathers[group];
                }
        }
        if (d->gathers[group])
                arrivals_handle(a, KIND_pull, d->message);
        a->n = 0;
}

/* ---- a pass ------------------------------------------------------------------------------ */

static uint64_t most_arrivals(const struct description *d)
{
        uint64_t most = 1;

        for (uint32_t g = 0; g < d->layout->n_groups; g++) {
                uint64_t parts =
                        d->layout->groups[g].elements
                                ? partition_most_parts(d->partition, d->layout, g, PART_BYTES)
                                : 0;

                most = parts > most ? parts : most;
        }
        return most * d->nodes;
}

static void group_come(struct arrivals *a, uint32_t group, uint64_t *starts)
{
        const struct description *d = a->w->d;

        for (uint32_t i = 0; i < d->partition->slices[group]; i++) {
                if (d->placement.node[partition_owner(d->partition, group, i)] != a->node)
                        continue;
                for (uint32_t n = 0; n < d->nodes; n++)
                        starts[n] = world_random(a->w, d->latency + 1);
                pulls_come(a, group, i, starts);
                if (layout_group_trainable(d->layout, group))
                        offers_come(a, group, i, starts);
        }
}

int burst_run(struct world *w, uint32_t node, struct burst *ret)
{
        const struct description *d = w->d;
        struct arrivals a = { .w = w, .node = node, .burst = ret };
        uint64_t *starts = calloc(d->nodes, sizeof *starts);
        int r = -ENOMEM;

        *ret = (struct burst){ 0 };
        a.items = calloc(most_arrivals(d), sizeof *a.items);
        a.waiting = calloc(d->nodes, sizeof *a.waiting);
        if (starts && a.items && a.waiting) {
                for (uint32_t g = 0; g < d->layout->n_groups; g++)
                        group_come(&a, g, starts);
                r = 0;
        }
        free(starts);
        free(a.items);
        free(a.waiting);
        return r;
}
