/*
 * The partition of every group over the owners; see partition.h for the rule.
 *
 * Invariants: the slices of a group are contiguous and cover it exactly.  In a layout without whole
 * tensors and without matrices, the numbers of slices of any two owners differ by at most one.
 */
#include "proto/partition.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "proto/cleanup.h"
#include "proto/dtype.h"
#include "proto/runs.h"

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

/* ---- what owners share ---------------------------------------------------- */

enum {
        EXCHANGES = 1 << 22
}; /* groups that are looked at for exchanges: a hostile layout has many */

/* Of a slice, or of all that an owner has.  Work counts in words, too: such that the layout has as
 * much of both.  All words are at most 2^58: 2^16 groups of 2^40 elements. */
struct load {
        uint64_t words, work;
};

struct slice {
        struct range range;
        uint32_t group, share; /* share: cut_group() */
        struct load load;
};

struct deal {
        struct partition *p;
        const layout *l;
        uint64_t words;         /* of the layout */
        unsigned __int128 work; /* of the layout, in operations; 0: it has no matrices */
        struct slice *slices;   /* that have no owner yet */
        uint32_t n_slices;
        struct load *held;   /* [group * n_owners + owner] of the owner's slice */
        struct load *owners; /* [owner] sum of its slices */
        uint64_t *ends;      /* of a group's shares, by cost: cut_group() */
        uint32_t n_ends;
        uint32_t *order; /* of owners */
};

static uint64_t peak(struct load a)
{
        return a.words > a.work ? a.words : a.work;
}

static uint64_t in_words(const struct deal *d, uint64_t work)
{
        return d->work ? (uint64_t)((unsigned __int128)work * d->words / d->work) : 0;
}

/* Whether cuts of the group must lie at edges, so that its slices differ. */
static bool has_edges(const layout *l, uint32_t group)
{
        const struct layout_group *g = &l->groups[group];

        for (uint32_t t = 0; t < g->n_tensors; t++)
                if (layout_matrices(&l->tensors[g->first_tensor + t]))
                        return true;
        return layout_group_whole(l, group);
}

static void count(struct deal *d)
{
        for (uint32_t g = 0; g < d->l->n_groups; g++) {
                struct run_walk w = { .l = d->l, .g = &d->l->groups[g] };

                for (struct run r; run_next(&w, &r);) {
                        d->words += r.pieces * r.words;
                        d->work += (unsigned __int128)r.pieces * r.work;
                }
        }
}

/* ---- cuts ------------------------------------------------------------------ */

/* What a piece costs of its group's share.  Without matrices a slice is a share of the elements,
 * as it has been in every release: state files depend on it. */
static uint64_t cost(const struct deal *d, const struct run *r)
{
        if (!d->work)
                return r->size / LAYOUT_ALIGN;
        return peak((struct load){ r->words, in_words(d, r->work) });
}

static uint64_t group_cost(const struct deal *d, uint32_t group)
{
        struct run_walk w = { .l = d->l, .g = &d->l->groups[group] };
        uint64_t sum = 0;

        for (struct run r; run_next(&w, &r);)
                sum += r.pieces * cost(d, &r);
        return sum;
}

/* A cut and all before it: elements, words, operations. */
struct cut {
        uint64_t end, words, work;
};

static void pass(struct cut *c, const struct run *r, uint64_t pieces)
{
        c->end += pieces * r->size;
        c->words += pieces * r->words;
        c->work += pieces * r->work;
}

/* Whether both sides of a cut are large enough: two cuts may move to one edge, or to near ones. */
static bool apart(const struct layout_group *g, uint64_t from, uint64_t end)
{
        uint64_t least = PARTITION_SLICE_MIN / layout_group_bytes(g, 1);

        return end >= from + least && g->elements - end >= least;
}

static struct slice between(const struct deal *d, uint32_t group, uint32_t share,
                            const struct cut *from, const struct cut *to)
{
        return (struct slice){ { from->end, to->end - from->end },
                               group,
                               share,
                               { to->words - from->words, in_words(d, to->work - from->work) } };
}

/*
 * Cuts a group into d->n_ends slices at most.  The i-th ends at the edge nearest to where the cost
 * of all before is d->ends[i], the last one with the group.  Returns their number.
 */
static uint32_t cut_group(const struct deal *d, uint32_t group, struct slice *ret)
{
        const struct layout_group *g = &d->l->groups[group];
        struct run_walk w = { .l = d->l, .g = g };
        struct cut from = { 0 }, at = { 0 };
        uint32_t n = 0, i = 0;
        uint64_t before = 0; /* cost */

        for (struct run r; run_next(&w, &r);) {
                uint64_t each = cost(d, &r), all = r.pieces * each;

                for (; i + 1 < d->n_ends && d->ends[i] - before < all; i++) {
                        uint64_t pieces = (d->ends[i] - before) / each;
                        uint64_t over = (d->ends[i] - before) % each;
                        struct cut to = at;

                        pass(&to, &r, pieces + (over > each - over));
                        if (!apart(g, from.end, to.end))
                                continue;
                        ret[n++] = between(d, group, i, &from, &to);
                        from = to;
                }
                pass(&at, &r, r.pieces);
                before += all;
        }
        if (d->n_ends)
                ret[n++] = between(d, group, d->n_ends - 1, &from, &at);
        return n;
}

/* Cuts a group into shares of the same cost. */
static uint32_t cut_evenly(struct deal *d, uint32_t group, struct slice *ret)
{
        uint32_t k = slice_count(&d->l->groups[group], d->p->n_owners);
        uint64_t all = group_cost(d, group);

        for (uint32_t i = 0; i < k; i++)
                d->ends[i] = all / k * (i + 1) + all % k * (i + 1) / k;
        d->n_ends = k;
        return cut_group(d, group, ret);
}

/* ---- dealing ---------------------------------------------------------------- */

static void give(struct deal *d, uint32_t group, uint32_t owner, struct range range,
                 struct load load)
{
        *range_at(d->p, group, owner) = range;
        d->held[(size_t)group * d->p->n_owners + owner] = load;
        d->owners[owner].words += load.words;
        d->owners[owner].work += load.work;
}

static int compare_slices(const void *a, const void *b)
{
        const struct slice *x = a, *y = b;

        if (peak(x->load) != peak(y->load))
                return peak(x->load) > peak(y->load) ? -1 : 1;
        if (x->group != y->group)
                return x->group < y->group ? -1 : 1;
        return x->range.first < y->range.first ? -1 : 1;
}

/* Gives a slice to the owner with least memory, of those without a slice of its group. */
static void give_slice(struct deal *d, const struct slice *s)
{
        uint32_t n = d->p->n_owners, to = n;

        for (uint32_t o = 0; o < n; o++)
                if (!range_at(d->p, s->group, o)->count &&
                    (to == n || d->owners[o].words < d->owners[to].words))
                        to = o;
        give(d, s->group, to, s->range, s->load);
}

/* How much nearer two loads with this gap come if `less` goes from the larger to the other: by the
 * sum of their squares. */
static __int128 nearer(uint64_t larger, uint64_t smaller, uint64_t has, uint64_t gets)
{
        __int128 less = (__int128)has - gets, gap = (__int128)larger - smaller;

        return less * (gap - less);
}

/* Two owners exchange their slices of the group that bring them nearest; false: none does. */
static bool exchange(struct deal *d, uint32_t high, uint32_t low)
{
        uint32_t group = 0, n = d->p->n_owners;
        struct load *h = &d->owners[high], *l = &d->owners[low];
        __int128 best = 0;

        for (uint32_t g = 0; g < d->p->n_groups; g++) {
                const struct load *of = d->held + (size_t)g * n;
                __int128 gain = nearer(h->words, l->words, of[high].words, of[low].words) +
                                nearer(h->work, l->work, of[high].work, of[low].work);

                if (gain > best) {
                        best = gain;
                        group = g;
                }
        }
        if (best == 0)
                return false;
        struct range a = *range_at(d->p, group, high), b = *range_at(d->p, group, low);
        struct load *of = d->held + (size_t)group * n, was_high = of[high], was_low = of[low];

        *h = (struct load){ h->words - was_high.words, h->work - was_high.work };
        *l = (struct load){ l->words - was_low.words, l->work - was_low.work };
        give(d, group, high, b, was_low);
        give(d, group, low, a, was_high);
        return true;
}

static void even_out(struct deal *d)
{
        uint32_t n = d->p->n_owners;
        uint64_t most =
                d->l->n_rows ? EXCHANGES / 8 : EXCHANGES; /* those of matrices take longer */
        bool goes_on = true;

        for (uint64_t i = 0; goes_on && i < 64 * n && i * d->p->n_groups < most; i++) {
                const struct load *of = d->owners;
                uint32_t high = 0, low = 0;

                for (uint32_t o = 1; o < n; o++)
                        high = peak(of[o]) > peak(of[high]) ? o : high;
                bool work = of[high].work > of[high].words;

                for (uint32_t o = 1; o < n; o++)
                        if (work ? of[o].work < of[low].work : of[o].words < of[low].words)
                                low = o;
                goes_on = exchange(d, high, low);
        }
}

/* ---- filling up -------------------------------------------------------------- */

/* Orders the owners by what they have, those with least first. */
static void order(struct deal *d)
{
        for (uint32_t o = 0; o < d->p->n_owners; o++) {
                uint32_t i = o;

                for (; i > 0 && d->owners[d->order[i - 1]].words > d->owners[o].words; i--)
                        d->order[i] = d->order[i - 1];
                d->order[i] = o;
        }
}

/* Divides a group that is cut freely such that the owners with least have the same then. */
static void fill(struct deal *d, uint32_t group)
{
        uint32_t k = slice_count(&d->l->groups[group], d->p->n_owners), n = 0;
        uint64_t all = group_cost(d, group), sum = all, level = 0;
        struct slice *slices = d->slices + d->n_slices;

        order(d);
        while (n < k && (n == 0 || d->owners[d->order[n]].words < level)) {
                sum += d->owners[d->order[n++]].words;
                level = sum / n;
        }
        sum = 0;
        for (uint32_t i = 0; i < n; i++)
                d->ends[i] = sum += level - d->owners[d->order[i]].words;
        d->n_ends = n;
        n = cut_group(d, group, slices);
        for (uint32_t i = 0; i < n; i++)
                give(d, group, d->order[slices[i].share], slices[i].range, slices[i].load);
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
        p->slices[group] = n;
}

/* ---- the whole ------------------------------------------------------------ */

/* Leaves slices of groups with edges to be dealt.  The others' owners take turns, unless they are
 * to fill up. */
static void cut_all(struct deal *d)
{
        uint32_t n = d->p->n_owners;

        for (uint32_t g = 0, start = 0; g < d->p->n_groups; g++) {
                struct slice *slices = d->slices + d->n_slices;
                bool edges = has_edges(d->l, g);

                if (!edges && d->work)
                        continue;
                uint32_t k = cut_evenly(d, g, slices);

                d->n_slices += edges ? k : 0;
                d->p->slices[g] = edges ? 0 : k;
                for (uint32_t i = 0; i < d->p->slices[g]; i++) {
                        uint32_t owner = (start + i) % n;

                        d->p->owners[(size_t)g * n + i] = owner;
                        give(d, g, owner, slices[i].range, slices[i].load);
                }
                start = (start + k) % n;
        }
}

static int deal_init(struct deal *d, struct partition *p, const layout *l)
{
        size_t most = p->n_owners; /* of a group that is cut freely */

        for (uint32_t g = 0; g < l->n_groups; g++)
                most += has_edges(l, g) ? slice_count(&l->groups[g], p->n_owners) : 0;
        *d = (struct deal){ .p = p, .l = l };
        d->slices = calloc(most, sizeof(*d->slices));
        d->held = calloc((size_t)p->n_groups * p->n_owners + 1, sizeof(*d->held));
        d->owners = calloc(p->n_owners, sizeof(*d->owners));
        d->ends = calloc(p->n_owners, sizeof(*d->ends));
        d->order = calloc(p->n_owners, sizeof(*d->order));
        return d->slices && d->held && d->owners && d->ends && d->order ? 0 : -ENOMEM;
}

static void deal_deinit(struct deal *d)
{
        free(d->slices);
        free(d->held);
        free(d->owners);
        free(d->ends);
        free(d->order);
}

static void deal(struct deal *d)
{
        count(d);
        cut_all(d);
        qsort(d->slices, d->n_slices, sizeof(*d->slices), compare_slices);
        for (uint32_t i = 0; i < d->n_slices; i++)
                give_slice(d, &d->slices[i]);
        if (!d->n_slices)
                return;
        even_out(d);
        for (uint32_t g = 0; g < d->p->n_groups; g++) {
                if (d->work && !has_edges(d->l, g))
                        fill(d, g);
                list_owners(d->p, g);
        }
}

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
        struct deal d;
        int r = deal_init(&d, p, l);

        if (r == 0) {
                deal(&d);
                *ret = STEAL(p);
        }
        deal_deinit(&d);
        return r;
}

struct range range_common(struct range a, struct range b)
{
        uint64_t first = a.first > b.first ? a.first : b.first;
        uint64_t a_end = a.first + a.count, b_end = b.first + b.count;
        uint64_t end = a_end < b_end ? a_end : b_end;

        return (struct range){ first, end > first ? end - first : 0 };
}

uint64_t range_overlap(struct range a, struct range b)
{
        return range_common(a, b).count;
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

uint32_t partition_slice_parts(const struct partition *p, const layout *l, uint32_t group,
                               struct range slice, uint64_t most)
{
        uint64_t elements = most / layout_group_bytes(&l->groups[group], 1);
        uint64_t quarter = elements / 4 > LAYOUT_ALIGN ? elements / 4 : LAYOUT_ALIGN;
        uint64_t fit = slice.count / quarter, wanted = GROUP_PARTS / p->slices[group];
        uint32_t needed = range_parts(slice.count, elements);

        if (wanted > fit)
                wanted = fit;
        return needed > wanted ? needed : (uint32_t)wanted;
}

uint32_t partition_most_parts(const struct partition *p, const layout *l, uint32_t group,
                              uint64_t most)
{
        struct range largest = { 0, 0 };

        for (uint32_t o = 0; o < p->n_owners; o++)
                if (range_at(p, group, o)->count > largest.count)
                        largest = *range_at(p, group, o);
        return partition_slice_parts(p, l, group, largest, most);
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
