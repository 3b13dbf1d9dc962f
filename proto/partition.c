/*
 * The partition of every group over the owners; see partition.h for the rule.
 *
 * Invariants: the slices of a group are contiguous and cover it exactly; the numbers of slices of
 * any two owners differ by at most one.
 */
#include "proto/partition.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "proto/cleanup.h"
#include "proto/dtype.h"

DEFINE_CLEANUP(struct partition *, partition_free)

void partition_free(struct partition *p)
{
        if (!p)
                return;
        free(p->ranges);
        free(p->start);
        free(p->slices);
        free(p);
}

static uint32_t slice_count(const struct layout_group *g, uint32_t n_owners)
{
        if (g->elements == 0)
                return 0;

        uint64_t n = layout_group_bytes(g, g->elements) / PARTITION_SLICE_MIN;
        if (n < 1)
                return 1;
        return n < n_owners ? (uint32_t)n : n_owners;
}

static void cut_group(struct partition *p, const struct layout_group *g, uint32_t group)
{
        uint64_t units = g->elements / LAYOUT_ALIGN;
        uint32_t k = p->slices[group];

        for (uint32_t i = 0; i < k; i++) {
                uint64_t first = units * i / k, end = units * (i + 1) / k;
                uint32_t owner = partition_owner(p, group, i);

                p->ranges[(size_t)group * p->n_owners + owner] = (struct range){
                        .first = first * LAYOUT_ALIGN,
                        .count = (end - first) * LAYOUT_ALIGN,
                };
        }
}

int partition_new(const layout *l, uint32_t n_owners, struct partition **ret)
{
        assert(n_owners > 0);
        CLEANUP(cleanup_partition_free) struct partition *p = calloc(1, sizeof(*p));
        if (!p)
                return -ENOMEM;
        p->n_groups = l->n_groups;
        p->n_owners = n_owners;
        p->ranges = calloc((size_t)l->n_groups * n_owners + 1, sizeof(*p->ranges));
        p->start = calloc((size_t)l->n_groups + 1, sizeof(*p->start));
        p->slices = calloc((size_t)l->n_groups + 1, sizeof(*p->slices));
        if (!p->ranges || !p->start || !p->slices)
                return -ENOMEM;

        uint32_t start = 0;
        for (uint32_t g = 0; g < l->n_groups; g++) {
                p->start[g] = start;
                p->slices[g] = slice_count(&l->groups[g], n_owners);
                cut_group(p, &l->groups[g], g);
                start = (start + p->slices[g]) % n_owners;
        }
        *ret = STEAL(p);
        return 0;
}

bool range_within(struct range inner, struct range outer)
{
        return inner.count > 0 && inner.first >= outer.first &&
               inner.first - outer.first <= outer.count &&
               inner.count <= outer.count - (inner.first - outer.first);
}

uint32_t range_parts(uint64_t count, uint64_t most)
{
        assert(most >= LAYOUT_ALIGN);
        return count ? (uint32_t)((count - 1) / most + 1) : 1;
}

struct range range_part(struct range whole, uint32_t part, uint32_t parts)
{
        uint64_t units = whole.count / LAYOUT_ALIGN;
        uint64_t first = units * part / parts * LAYOUT_ALIGN;
        uint64_t end = part + 1 < parts ? units * (part + 1) / parts * LAYOUT_ALIGN : whole.count;

        return (struct range){ whole.first + first, end - first };
}

struct range partition_range(const struct partition *p, uint32_t group, uint32_t owner)
{
        assert(group < p->n_groups && owner < p->n_owners);
        return p->ranges[(size_t)group * p->n_owners + owner];
}

uint32_t partition_owner(const struct partition *p, uint32_t group, uint32_t i)
{
        assert(group < p->n_groups && i < p->slices[group]);
        return (p->start[group] + i) % p->n_owners;
}

uint32_t partition_slice_parts(const struct partition *p, const layout *l, uint32_t group,
                               uint64_t most)
{
        uint64_t slices = p->slices[group], units = l->groups[group].elements / LAYOUT_ALIGN;
        uint64_t largest = (units + slices - 1) / slices * LAYOUT_ALIGN;

        return range_parts(largest, most / layout_group_bytes(&l->groups[group], 1));
}

uint64_t partition_elements(const struct partition *p, uint32_t owner)
{
        uint64_t elements = 0;

        for (uint32_t g = 0; g < p->n_groups; g++)
                elements += partition_range(p, g, owner).count;
        return elements;
}
