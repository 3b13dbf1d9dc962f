/*
 * Puts a layout together from what ranks bring.
 *
 * Rule: the result depends on ranks, stages and parts alone, never on who came first.
 */
#include "proto/layout.h"

#include <errno.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"
#include "proto/text.h"

DEFINE_CLEANUP(layout *, layout_free)

/* Groups that all ranks bring together: bounds time and memory. */
enum { BROUGHT_MAX = 4 << 20 };

/* A group of the whole, as the first rank brings it. */
struct found {
        const char *name; /* first: the tree compares pointers to names */
        const layout *layout;
        uint32_t group, rank, n_ranks;
        uint32_t *ranks; /* ascending, in composition.ranks */
};

struct composition {
        const struct layout_part *parts;
        uint32_t world_size, n_brought, n_found;
        uint32_t *order;     /* ranks by stage */
        uint32_t *first;     /* [rank]: its first group in `brought` */
        uint32_t *brought;   /* [n_brought]: index in `found` */
        struct found *found; /* in the order of the whole */
        uint32_t *ranks;     /* [n_brought] */
        void *names;         /* tree of `found` */
};

static void keep(void *found)
{
}

static void composition_deinit(struct composition *c)
{
        tdestroy(c->names, keep);
        free(c->order);
        free(c->first);
        free(c->brought);
        free(c->found);
        free(c->ranks);
}

static int compare_names(const void *a, const void *b)
{
        return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int composition_init(struct composition *c, struct fault *fault)
{
        uint64_t n = 0;

        c->first = calloc(c->world_size, sizeof(*c->first));
        c->order = calloc(c->world_size, sizeof(*c->order));
        if (!c->first || !c->order)
                return -ENOMEM;
        for (uint32_t r = 0; r < c->world_size; r++) {
                c->first[r] = (uint32_t)n;
                n += c->parts[r].layout->n_groups;
                if (n > BROUGHT_MAX)
                        return fault_set(fault, ZERO_EQUOTA,
                                         "the ranks bring more than %d groups together",
                                         BROUGHT_MAX);
        }
        c->n_brought = (uint32_t)n;
        c->brought = calloc(n, sizeof(*c->brought));
        c->found = calloc(n, sizeof(*c->found));
        c->ranks = calloc(n, sizeof(*c->ranks));
        return c->brought && c->found && c->ranks ? 0 : -ENOMEM;
}

/* Ranks by stage; those of one stage ascend. */
static void order_ranks(struct composition *c)
{
        uint32_t n = 0;
        int64_t done = -1; /* all stages up to here are in order */

        while (n < c->world_size) {
                int64_t next = INT64_MAX;

                for (uint32_t r = 0; r < c->world_size; r++)
                        if (c->parts[r].stage > done && c->parts[r].stage < next)
                                next = c->parts[r].stage;
                for (uint32_t r = 0; r < c->world_size; r++)
                        if (c->parts[r].stage == next)
                                c->order[n++] = r;
                done = next;
        }
}

static int differ(const struct found *f, uint32_t rank, const char *text, struct fault *fault)
{
        return fault_set(fault, ZERO_ELAYOUT, "ranks %u and %u bring group %s differently: %s",
                         f->rank, rank, text_quote(f->name).text, text);
}

/* Finds a group of a part, or adds it. */
static int find_group(struct composition *c, uint32_t rank, uint32_t group, struct fault *fault)
{
        const layout *l = c->parts[rank].layout;
        struct found *next = &c->found[c->n_found], *f;
        struct found **node;
        char text[300];

        *next = (struct found){
                .name = l->groups[group].name, .layout = l, .group = group, .rank = rank
        };
        node = tsearch(next, &c->names, compare_names);
        if (!node)
                return -ENOMEM;
        f = *node;
        c->n_found += f == next;
        if (l->groups[group].n_ranks)
                return fault_set(
                        fault, ZERO_EINVAL,
                        "group %s of rank %u lists ranks: leave the list out, the group has "
                        "the ranks that bring it",
                        text_quote(f->name).text, rank);
        if ((f->layout != l || f->group != group) &&
            !layout_group_equal(f->layout, f->group, l, group, text, sizeof(text)))
                return differ(f, rank, text, fault);
        f->n_ranks++;
        c->brought[c->first[rank] + group] = (uint32_t)(f - c->found);
        return 0;
}

static int find_groups(struct composition *c, struct fault *fault)
{
        int r = 0;

        order_ranks(c);
        for (uint32_t i = 0; i < c->world_size; i++) {
                uint32_t rank = c->order[i], n = c->parts[rank].layout->n_groups;

                for (uint32_t g = 0; g < n && r == 0; g++)
                        r = find_group(c, rank, g, fault);
        }
        return r;
}

/* Who brings each group. */
static void list_ranks(struct composition *c)
{
        uint32_t *next = c->ranks;

        for (uint32_t i = 0; i < c->n_found; i++) {
                c->found[i].ranks = next;
                next += c->found[i].n_ranks;
                c->found[i].n_ranks = 0;
        }
        for (uint32_t rank = 0; rank < c->world_size; rank++)
                for (uint32_t g = 0; g < c->parts[rank].layout->n_groups; g++) {
                        struct found *f = &c->found[c->brought[c->first[rank] + g]];

                        f->ranks[f->n_ranks++] = rank;
                }
}

static int add_found(const struct composition *c, const struct found *f, layout *whole,
                     struct fault *fault)
{
        const struct layout_group *from = &f->layout->groups[f->group];
        bool all = f->n_ranks == c->world_size;
        uint32_t group, index;
        int r = layout_add_group(whole, from->name, from->dtype, all ? NULL : f->ranks,
                                 all ? 0 : f->n_ranks, from->divisor, &group, fault);

        if (r == 0)
                r = layout_set_optimizer(whole, group, layout_optimizer(from).text, fault);
        if (r == 0)
                r = layout_set_eager(whole, group, from->eager, fault);
        for (uint32_t t = 0; t < from->n_tensors && r == 0; t++) {
                struct layout_tensor tensor = f->layout->tensors[from->first_tensor + t];

                tensor.group = group;
                r = layout_add_tensor(whole, &tensor, &index, fault);
        }
        return r;
}

/* All parts name one base, or none. */
static int add_base(const struct composition *c, layout *whole, struct fault *fault)
{
        const layout *first = c->parts[0].layout;

        for (uint32_t rank = 1; rank < c->world_size; rank++) {
                const layout *part = c->parts[rank].layout;

                if (part->has_base != first->has_base ||
                    memcmp(part->base, first->base, sizeof(part->base)) != 0)
                        return fault_set(fault, ZERO_ELAYOUT,
                                         "ranks 0 and %u bring parts on different bases: all "
                                         "ranks name the same files",
                                         rank);
        }
        if (first->has_base)
                layout_set_base(whole, first->base);
        return 0;
}

int layout_compose(const struct layout_part *parts, uint32_t world_size, layout **ret,
                   struct fault *fault)
{
        CLEANUP(composition_deinit)
        struct composition c = { .parts = parts, .world_size = world_size };
        CLEANUP(cleanup_layout_free) layout *whole = NULL;
        struct fault why;
        int r = composition_init(&c, fault);

        if (r == 0)
                r = find_groups(&c, fault);
        if (r == 0)
                r = layout_new(&whole);
        if (r)
                return r;
        list_ranks(&c);
        for (uint32_t i = 0; i < c.n_found && r == 0; i++)
                r = add_found(&c, &c.found[i], whole, fault);
        if (r == 0)
                r = add_base(&c, whole, fault);
        if (r)
                return r;
        r = layout_check(whole, &why);
        if (r > 0)
                r = fault_set(fault, ZERO_ELAYOUT,
                              "%s: a tensor of several stages is in one group, which all its ranks "
                              "bring alike",
                              why.text);
        if (r)
                return r;
        *ret = STEAL(whole);
        return 0;
}

/* ---- a part of a whole ------------------------------------------------- */

struct named {
        const char *name;
        uint32_t group;
};

bool layout_has_part(const layout *whole, const layout *part, uint32_t rank, char *text,
                     size_t size)
{
        CLEANUP(cleanup_free) struct named *own = calloc(whole->n_groups + 1, sizeof(*own));
        uint32_t n = 0;

        snprintf(text, size, "out of memory");
        if (!own)
                return false;
        for (uint32_t g = 0; g < whole->n_groups; g++)
                if (layout_group_has_rank(&whole->groups[g], rank))
                        own[n++] = (struct named){ whole->groups[g].name, g };
        qsort(own, n, sizeof(*own), compare_names);
        for (uint32_t g = 0; g < part->n_groups; g++) {
                const struct named key = { part->groups[g].name, 0 };
                const struct named *found = bsearch(&key, own, n, sizeof(*own), compare_names);

                if (!found) {
                        snprintf(text, size, "group %s is not one of rank %u there",
                                 text_quote(key.name).text, rank);
                        return false;
                }
                if (!layout_group_equal(part, g, whole, found->group, text, size))
                        return false;
        }
        if (n != part->n_groups)
                snprintf(text, size, "%u groups here, %u of rank %u there", part->n_groups, n,
                         rank);
        return n == part->n_groups;
}
