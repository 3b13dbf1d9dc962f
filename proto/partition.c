/*
 * The partition of every group over the owners; see partition.h for the rule.
 *
 * Invariants: the slices of a group are contiguous and cover it exactly.  Without whole tensors the
 * numbers of slices of any two owners differ by at most one.
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
        free(p->owners);
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

static struct range *range_at(const struct partition *p, uint32_t group, uint32_t owner)
{
        return &p->ranges[(size_t)group * p->n_owners + owner];
}

/* A cut, or the nearer edge of the whole tensor that it would cut. */
static uint64_t edge(const layout *l, const struct layout_group *g, uint64_t cut)
{
        for (uint32_t i = 0; i < g->n_tensors; i++) {
                const struct layout_tensor *t = &l->tensors[g->first_tensor + i];
                uint64_t end = t->offset + layout_tensor_room(t);

                if (cut < end)
                        return !t->whole ? cut : cut - t->offset <= end - cut ? t->offset : end;
        }
        return cut;
}

/* Cuts a group over the owners from `start` on. */
static void cut_group(struct partition *p, const layout *l, uint32_t group, uint32_t start)
{
        const struct layout_group *g = &l->groups[group];
        uint64_t units = g->elements / LAYOUT_ALIGN, first = 0;
        uint64_t least = PARTITION_SLICE_MIN / layout_group_bytes(g, 1);
        uint32_t k = slice_count(g, p->n_owners), n = 0;

        for (uint32_t i = 1; i <= k; i++) {
                uint64_t end = edge(l, g, units * i / k * LAYOUT_ALIGN);

                if (i < k && (end < first + least || g->elements - end < least))
                        continue; /* two cuts have moved to one edge, or to near ones */
                uint32_t owner = (start + n) % p->n_owners;

                *range_at(p, group, owner) = (struct range){ first, end - first };
                p->owners[(size_t)group * p->n_owners + n++] = owner;
                first = end;
        }
        p->slices[group] = n;
}

/* ---- slices of different sizes ------------------------------------------- */

struct slice {
        struct range range;
        uint32_t group;
};

static int compare_slices(const void *a, const void *b)
{
        const struct slice *x = a, *y = b;

        if (x->range.count != y->range.count)
                return x->range.count > y->range.count ? -1 : 1;
        if (x->group != y->group)
                return x->group < y->group ? -1 : 1;
        return x->range.first < y->range.first ? -1 : 1;
}

/* Takes the slices of groups with whole tensors from their owners; the rest of them is in loads. */
static uint32_t take_slices(struct partition *p, const layout *l, struct slice *slices,
                            uint64_t *loads)
{
        uint32_t n = 0;

        for (uint32_t g = 0; g < p->n_groups; g++) {
                bool whole = layout_group_whole(l, g);

                for (uint32_t o = 0; o < p->n_owners; o++) {
                        struct range *r = range_at(p, g, o);

                        if (!whole)
                                loads[o] += r->count;
                        else if (r->count)
                                slices[n++] = (struct slice){ *r, g };
                        *r = whole ? (struct range){ 0, 0 } : *r;
                }
        }
        return n;
}

/* Gives a slice to the owner that has least, of those without one of its group. */
static void give_slice(struct partition *p, const struct slice *s, uint64_t *loads)
{
        uint32_t to = p->n_owners;

        for (uint32_t o = 0; o < p->n_owners; o++)
                if (!range_at(p, s->group, o)->count && (to == p->n_owners || loads[o] < loads[to]))
                        to = o;
        *range_at(p, s->group, to) = s->range;
        loads[to] += s->range.count;
}

/* Two owners exchange their slices of the group that bring them nearest; false: none does. */
static bool exchange(struct partition *p, uint32_t high, uint32_t low, uint64_t *loads)
{
        uint64_t gap = loads[high] - loads[low], best = 0;
        uint32_t group = 0;

        for (uint32_t g = 0; g < p->n_groups; g++) {
                uint64_t more = range_at(p, g, high)->count, less = range_at(p, g, low)->count;
                uint64_t d = more > less ? more - less : 0;
                uint64_t gain = d < gap ? (d < gap - d ? d : gap - d) : 0;

                if (gain > best) {
                        best = gain;
                        group = g;
                }
        }
        if (best == 0)
                return false;
        struct range *a = range_at(p, group, high), *b = range_at(p, group, low), was = *a;
        loads[high] -= a->count - b->count;
        loads[low] += a->count - b->count;
        *a = *b;
        *b = was;
        return true;
}

/* A hostile layout might take long: the number of exchanges is limited. */
static void even_out(struct partition *p, uint64_t *loads)
{
        bool goes_on = true;

        for (uint32_t i = 0; goes_on && i < 64 * p->n_owners; i++) {
                uint32_t high = 0, low = 0;

                for (uint32_t o = 1; o < p->n_owners; o++) {
                        high = loads[o] > loads[high] ? o : high;
                        low = loads[o] < loads[low] ? o : low;
                }
                goes_on = exchange(p, high, low, loads);
        }
}

/* Lists the owners of a group in the order of their slices. */
static void list_owners(struct partition *p, uint32_t group)
{
        uint32_t *owners = p->owners + (size_t)group * p->n_owners, n = 0;

        for (uint32_t o = 0; o < p->n_owners; o++) {
                const struct range *r = range_at(p, group, o);
                uint32_t i = n;

                if (!r->count)
                        continue;
                for (; i > 0 && range_at(p, group, owners[i - 1])->first > r->first; i--)
                        owners[i] = owners[i - 1];
                owners[i] = o;
                n++;
        }
}

static int deal(struct partition *p, const layout *l)
{
        size_t most = 1;

        for (uint32_t g = 0; g < p->n_groups; g++)
                most += p->slices[g];
        CLEANUP(cleanup_free) struct slice *slices = calloc(most, sizeof(*slices));
        CLEANUP(cleanup_free) uint64_t *loads = calloc(p->n_owners, sizeof(*loads));
        if (!slices || !loads)
                return -ENOMEM;
        uint32_t n = take_slices(p, l, slices, loads);

        if (n == 0)
                return 0;
        qsort(slices, n, sizeof(*slices), compare_slices);
        for (uint32_t i = 0; i < n; i++)
                give_slice(p, &slices[i], loads);
        even_out(p, loads);
        for (uint32_t g = 0; g < p->n_groups; g++)
                list_owners(p, g);
        return 0;
}

/* ---- the whole ------------------------------------------------------------ */

int partition_new(const layout *l, uint32_t n_owners, struct partition **ret)
{
        assert(n_owners > 0);
        CLEANUP(cleanup_partition_free) struct partition *p = calloc(1, sizeof(*p));
        size_t ranges = (size_t)l->n_groups * n_owners + 1;

        if (!p)
                return -ENOMEM;
        p->n_groups = l->n_groups;
        p->n_owners = n_owners;
        p->ranges = calloc(ranges, sizeof(*p->ranges));
        p->owners = calloc(ranges, sizeof(*p->owners));
        p->slices = calloc((size_t)l->n_groups + 1, sizeof(*p->slices));
        if (!p->ranges || !p->owners || !p->slices)
                return -ENOMEM;

        for (uint32_t g = 0, start = 0; g < l->n_groups; g++) {
                cut_group(p, l, g, start);
                start = (start + p->slices[g]) % n_owners;
        }
        int r = deal(p, l);
        if (r)
                return r;
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
        return *range_at(p, group, owner);
}

uint32_t partition_owner(const struct partition *p, uint32_t group, uint32_t i)
{
        assert(group < p->n_groups && i < p->slices[group]);
        return p->owners[(size_t)group * p->n_owners + i];
}

uint32_t partition_slice_parts(const struct layout_group *g, struct range slice, uint64_t most)
{
        return range_parts(slice.count, most / layout_group_bytes(g, 1));
}

uint32_t partition_most_parts(const struct partition *p, const layout *l, uint32_t group,
                              uint64_t most)
{
        struct range largest = { 0, 0 };

        for (uint32_t o = 0; o < p->n_owners; o++)
                if (range_at(p, group, o)->count > largest.count)
                        largest = *range_at(p, group, o);
        return partition_slice_parts(&l->groups[group], largest, most);
}

uint64_t partition_elements(const struct partition *p, uint32_t owner)
{
        uint64_t elements = 0;

        for (uint32_t g = 0; g < p->n_groups; g++)
                elements += partition_range(p, g, owner).count;
        return elements;
}
