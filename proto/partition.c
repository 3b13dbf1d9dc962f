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

/* How many elements both ranges have. */
static uint64_t range_overlap(struct range a, struct range b)
{
        uint64_t from = a.first > b.first ? a.first : b.first;
        uint64_t a_end = a.first + a.count, b_end = b.first + b.count;
        uint64_t to = a_end < b_end ? a_end : b_end;

        return to > from ? to - from : 0;
}

static struct range *range_at(const struct partition *p, uint32_t group, uint32_t owner)
{
        return &p->ranges[(size_t)group * p->n_owners + owner];
}

/* A cut, or the nearer edge of the whole tensor that it would cut.  *at: a tensor before the cut;
 * it goes on to the cut's, because each cut of a group is behind the one before. */
static uint64_t edge(const layout *l, const struct layout_group *g, uint32_t *at, uint64_t cut)
{
        for (; *at < g->n_tensors; (*at)++) {
                const struct layout_tensor *t = &l->tensors[g->first_tensor + *at];
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
        uint32_t k = slice_count(g, p->n_owners), n = 0, at = 0;
        bool whole = layout_group_whole(l, group);

        for (uint32_t i = 1; i <= k; i++) {
                uint64_t cut = units * i / k * LAYOUT_ALIGN,
                         end = whole ? edge(l, g, &at, cut) : cut;

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

enum {
        EXCHANGES = 1 << 22
}; /* groups that are looked at for exchanges: a hostile layout has many */

struct slice {
        struct range range;
        uint32_t group;
        uint64_t weight;
};

/* Slices that have no owner yet, and what owners have. */
struct deal {
        struct partition *p;
        const layout *l;
        struct slice *slices;
        uint64_t *weights; /* [group * n_owners + owner] of the owner's slice */
        uint64_t *loads;   /* [owner] sum of its weights */
};

/* A trained element has moments and a gradient beside its master weight: 16 bytes with Adam, where
 * a frozen one has 4.  *at: as in edge(). */
static uint64_t weight(const layout *l, const struct layout_group *g, uint32_t *at,
                       struct range range)
{
        uint64_t trained = 0, end = range.first + range.count;

        for (; *at < g->n_tensors; (*at)++) {
                const struct layout_tensor *t = &l->tensors[g->first_tensor + *at];
                struct range own = { t->offset, layout_tensor_room(t) };

                trained += t->frozen ? 0 : range_overlap(own, range);
                if (own.first + own.count > end)
                        break;
        }
        return range.count + 3 * trained;
}

static int compare_slices(const void *a, const void *b)
{
        const struct slice *x = a, *y = b;

        if (x->weight != y->weight)
                return x->weight > y->weight ? -1 : 1;
        if (x->group != y->group)
                return x->group < y->group ? -1 : 1;
        return x->range.first < y->range.first ? -1 : 1;
}

static void give(struct deal *d, uint32_t group, uint32_t owner, struct range range, uint64_t w)
{
        *range_at(d->p, group, owner) = range;
        d->weights[(size_t)group * d->p->n_owners + owner] = w;
        d->loads[owner] += w;
}

/* Takes the slices of groups with whole tensors from their owners; the rest of them is in loads. */
static uint32_t take_slices(struct deal *d)
{
        uint32_t n = 0;

        for (uint32_t g = 0; g < d->p->n_groups; g++) {
                bool whole = layout_group_whole(d->l, g);

                for (uint32_t i = 0, at = 0; i < d->p->slices[g]; i++) {
                        uint32_t o = partition_owner(d->p, g, i);
                        struct range r = *range_at(d->p, g, o);
                        uint64_t w = weight(d->l, &d->l->groups[g], &at, r);

                        *range_at(d->p, g, o) = (struct range){ 0, 0 };
                        if (whole)
                                d->slices[n++] = (struct slice){ r, g, w };
                        else
                                give(d, g, o, r, w);
                }
        }
        return n;
}

/* Gives a slice to the owner that has least, of those without one of its group. */
static void give_slice(struct deal *d, const struct slice *s)
{
        uint32_t n = d->p->n_owners, to = n;

        for (uint32_t o = 0; o < n; o++)
                if (!range_at(d->p, s->group, o)->count && (to == n || d->loads[o] < d->loads[to]))
                        to = o;
        give(d, s->group, to, s->range, s->weight);
}

/* Two owners exchange their slices of the group that bring them nearest; false: none does. */
static bool exchange(struct deal *d, uint32_t high, uint32_t low)
{
        uint64_t gap = d->loads[high] - d->loads[low], best = 0;
        uint32_t group = 0, n = d->p->n_owners;

        for (uint32_t g = 0; g < d->p->n_groups; g++) {
                const uint64_t *w = d->weights + (size_t)g * n;
                uint64_t less = w[high] > w[low] ? w[high] - w[low] : 0;
                uint64_t gain = less < gap ? (less < gap - less ? less : gap - less) : 0;

                if (gain > best) {
                        best = gain;
                        group = g;
                }
        }
        if (best == 0)
                return false;
        struct range a = *range_at(d->p, group, high), b = *range_at(d->p, group, low);
        uint64_t *w = d->weights + (size_t)group * n, was_high = w[high], was_low = w[low];

        d->loads[high] -= was_high;
        d->loads[low] -= was_low;
        give(d, group, high, b, was_low);
        give(d, group, low, a, was_high);
        return true;
}

static void even_out(struct deal *d)
{
        uint32_t n = d->p->n_owners;
        bool goes_on = true;

        for (uint64_t i = 0; goes_on && i < 64 * n && i * d->p->n_groups < EXCHANGES; i++) {
                uint32_t high = 0, low = 0;

                for (uint32_t o = 1; o < n; o++) {
                        high = d->loads[o] > d->loads[high] ? o : high;
                        low = d->loads[o] < d->loads[low] ? o : low;
                }
                goes_on = exchange(d, high, low);
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
        size_t most = 0;

        for (uint32_t g = 0; g < p->n_groups; g++)
                most += layout_group_whole(l, g) ? p->slices[g] : 0;
        if (most == 0)
                return 0;
        CLEANUP(cleanup_free) struct slice *slices = calloc(most, sizeof(*slices));
        CLEANUP(cleanup_free)
        uint64_t *weights = calloc((size_t)p->n_groups * p->n_owners, sizeof(*weights));
        CLEANUP(cleanup_free) uint64_t *loads = calloc(p->n_owners, sizeof(*loads));
        struct deal d = { p, l, slices, weights, loads };

        if (!slices || !weights || !loads)
                return -ENOMEM;
        uint32_t n = take_slices(&d);

        qsort(slices, n, sizeof(*slices), compare_slices);
        for (uint32_t i = 0; i < n; i++)
                give_slice(&d, &slices[i]);
        even_out(&d);
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

uint64_t partition_trainable(const layout *l, uint32_t group, struct range range)
{
        const struct layout_group *g = &l->groups[group];
        uint64_t n = 0;

        for (uint32_t i = 0; i < g->n_tensors; i++) {
                const struct layout_tensor *t = &l->tensors[g->first_tensor + i];

                if (!t->frozen)
                        n += range_overlap((struct range){ t->offset, layout_tensor_room(t) },
                                           range);
        }
        return n;
}
