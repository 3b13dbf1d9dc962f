/*
 * Ranks that work on different groups: each brings its part, and the job's coordinator puts the
 * layout together when it has all parts.  The ranks then attach with the whole layout, as others
 * do.
 *
 * Nothing here outlives the calls of the ranks: the whole layout is the job's from its first join
 * on, and a rank that brings its part later gets that layout.
 */
#include "daemon/cluster/coordinator/coordinator.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/compute/optimizer/optimizer.h"
#include "daemon/floor/base/log.h"
#include "proto/cleanup.h"

/* A rank that waits for the others. */
struct bringer {
        struct shared_layout *part; /* NULL: the rank has not come */
        uint32_t stage, node;
        uint64_t call;
};

struct composing {
        struct list link; /* engine.composings */
        struct engine *x;
        char name[ZERO_NAME_MAX + 1];
        uint32_t uid, world_size, n; /* n: ranks that have come */
        uint32_t told;               /* n when the nodes were last told */
        struct bringer *bringers;    /* [rank] */
};

/* Bytes of a reply beside its layout. */
enum { REPLY_BYTES = 1024 };

/* whole: NULL with a status. */
static void composed_answer(struct engine *x, uint32_t node, const char *job, uint64_t call,
                            const struct fault *fault, Zero__Layout *whole)
{
        Zero__LinkMessage m = job_message(job);
        Zero__Composed composed = ZERO__COMPOSED__INIT;

        m.answer = call;
        m.status = (uint32_t)fault->status;
        m.text = (char *)fault->text;
        if (!fault->status) {
                composed.layout = whole;
                m.body_case = ZERO__LINK_MESSAGE__BODY_COMPOSED;
                m.composed = &composed;
        }
        fabric_send(x->fabric, node, &m);
}

static void bringer_answer(struct composing *c, uint32_t rank, const struct fault *fault,
                           Zero__Layout *whole)
{
        struct bringer *b = &c->bringers[rank];

        composed_answer(c->x, b->node, c->name, b->call, fault, whole);
        layouts_unref(STEAL(b->part));
        c->n--;
}

/* No rank waits for it any more. */
static void composing_free(struct composing *c)
{
        list_remove(&c->link);
        free(c->bringers);
        free(c);
}

static void composing_end(struct composing *c, const struct fault *fault, Zero__Layout *whole)
{
        for (uint32_t r = 0; r < c->world_size; r++)
                if (c->bringers[r].part)
                        bringer_answer(c, r, fault, whole);
        composing_free(c);
}

static struct composing *composing_find(const struct engine *x, const char *name)
{
        list_for_each (&x->composings, item) {
                struct composing *c = CONTAINER_OF(item, struct composing, link);

                if (strcmp(c->name, name) == 0)
                        return c;
        }
        return NULL;
}

static struct composing *composing_new(struct engine *x, const char *name,
                                       const Zero__ComposePart *m)
{
        struct composing *c = calloc(1, sizeof *c);

        if (!c)
                return NULL;
        c->bringers = calloc(m->world_size, sizeof *c->bringers);
        if (!c->bringers) {
                free(c);
                return NULL;
        }
        c->x = x;
        snprintf(c->name, sizeof c->name, "%s", name);
        c->uid = m->uid;
        c->world_size = m->world_size;
        list_insert(&x->composings, &c->link);
        return c;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static int compose(const struct composing *c, Zero__Layout **ret, struct fault *fault)
{
        struct layout_part *parts = calloc(c->world_size, sizeof *parts);
        layout *whole = NULL;
        int r;

        if (!parts)
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        for (uint32_t i = 0; i < c->world_size; i++)
                parts[i] =
                        (struct layout_part){ c->bringers[i].part->layout, c->bringers[i].stage };
        r = layout_compose(parts, c->world_size, &whole, fault);
        if (!r)
                r = layout_to_message(whole, ret);
        if (r < 0)
                r = fault_set(fault, ZERO_ENOMEM, "out of memory");
        layout_free(whole);
        free(parts);
        return r;
}

static void composing_complete(struct composing *c)
{
        Zero__Layout *whole = NULL;
        struct fault fault = { 0 };

        if (!compose(c, &whole, &fault) &&
            zero__layout__get_packed_size(whole) + REPLY_BYTES > LINK_MESSAGE_MAX)
                fault_set(&fault, ZERO_EQUOTA,
                          "the layout of all ranks is larger than %d MiB: form fewer groups",
                          LINK_MESSAGE_MAX >> 20);
        composing_end(c, &fault, whole);
        if (whole)
                zero__layout__free_unpacked(whole, NULL);
}

/* The job is there: its layout is the whole. */
static int job_part(const struct coordinated *job, uint32_t uid, uint32_t rank, const layout *part,
                    struct fault *fault)
{
        char text[300];

        if (uid != 0 && uid != job->uid)
                return fault_set(fault, ZERO_EPERM, "job '%s' belongs to user %u", job->name,
                                 job->uid);
        if (layout_has_part(job->layout, part, rank, text, sizeof text))
                return 0;
        return fault_set(fault, ZERO_ELAYOUT,
                         "the part of rank %u differs from job '%s' (zeroctl drop ends it): %s",
                         rank, job->name, text);
}

void composing_job(struct coordinated *job)
{
        struct composing *c = composing_find(job->x, job->name);

        if (!c)
                return;
        for (uint32_t r = 0; r < c->world_size; r++) {
                struct fault fault = { 0 };

                if (!c->bringers[r].part)
                        continue;
                job_part(job, c->uid, r, c->bringers[r].part->layout, &fault);
                bringer_answer(c, r, &fault, job->shared->message);
        }
        composing_free(c);
}

/* ---- ranks ----------------------------------------------------------------------------------- */

/* Ranks of the node, from the first to the last, have gone without an answer. */
static void bringers_leave(struct composing *c, uint32_t node, uint32_t first, uint32_t last)
{
        for (uint32_t r = first; r <= last && r < c->world_size; r++) {
                if (!c->bringers[r].part || c->bringers[r].node != node)
                        continue;
                layouts_unref(STEAL(c->bringers[r].part));
                c->n--;
        }
        if (c->n == 0)
                composing_free(c);
}

void composings_down(struct engine *x, uint32_t node)
{
        list_for_each (&x->composings, item)
                bringers_leave(CONTAINER_OF(item, struct composing, link), node, 0, UINT32_MAX);
}

void composings_free(struct engine *x)
{
        struct fault fault;

        fault_set(&fault, ZERO_ECLOSED, "the daemon stops");
        list_for_each (&x->composings, item)
                composing_end(CONTAINER_OF(item, struct composing, link), &fault, NULL);
}

/* Whether the rank may be one of those that wait. */
static int composing_check(const struct composing *c, const Zero__ComposePart *m,
                           struct fault *fault)
{
        if (m->uid != 0 && c->uid != m->uid)
                return fault_set(fault, ZERO_EPERM, "the ranks of job '%s' belong to user %u",
                                 c->name, c->uid);
        if (c->world_size != m->world_size)
                return fault_set(fault, ZERO_ERANK,
                                 "rank %u has a world size of %u; ranks that wait for it in job "
                                 "'%s' have %u",
                                 m->rank, m->world_size, c->name, c->world_size);
        return 0;
}

static int composing_add(struct engine *x, uint32_t node, const Zero__LinkMessage *m, layout *l,
                         struct fault *fault)
{
        const Zero__ComposePart *p = m->compose_part;
        struct composing *c = composing_find(x, m->job);
        int r = c ? composing_check(c, p, fault) : 0;
        struct shared_layout *part = NULL;

        if (r)
                layout_free(l);
        else
                r = layouts_add(x, p->uid, l, &part, fault);
        if (r)
                return r;
        c = c ? c : composing_new(x, m->job, p);
        if (!c) {
                layouts_unref(part);
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        }
        if (c->bringers[p->rank].part) {
                struct fault taken;

                fault_set(&taken, ZERO_ERANK, "another process of rank %u brings its part",
                          p->rank);
                bringer_answer(c, p->rank, &taken, NULL);
        }
        c->bringers[p->rank] = (struct bringer){ part, p->stage, node, m->call };
        log_debug("job %s: rank %u has brought its part of the layout", c->name, p->rank);
        if (++c->n == c->world_size)
                composing_complete(c);
        return 0;
}

static int part_message_check(const Zero__LinkMessage *m, struct fault *fault)
{
        const Zero__ComposePart *p = m->compose_part;

        if (!job_name_valid(m->job) || p->world_size < 1 || p->world_size > ZERO_RANK_MAX ||
            p->rank >= p->world_size)
                return fault_set(fault, ZERO_EPROTO, "the part of a layout is malformed");
        return 0;
}

void composing_message(struct engine *x, uint32_t node, const Zero__LinkMessage *m)
{
        const Zero__ComposePart *p = m->compose_part;
        struct coordinated *job = coordinated_find(x, m->job);
        struct composing *c = composing_find(x, m->job);
        struct fault fault = { 0 };
        layout *l = NULL;

        if (part_message_check(m, &fault) == 0 && !p->layout) {
                if (c)
                        bringers_leave(c, node, p->rank, p->rank);
                return;
        }
        if (!fault.status)
                optimizer_layout(p->layout, &l, &fault);
        if (!fault.status && !job && composing_add(x, node, m, l, &fault) == 0)
                return;
        if (!fault.status)
                job_part(job, p->uid, p->rank, l, &fault);
        if (job)
                layout_free(l);
        composed_answer(x, node, m->job, m->call, &fault, job ? job->shared->message : NULL);
}

/* ---- who is late ----------------------------------------------------------------------------- */

/* The first rank that has not come, and how many others. */
static void composing_waits(const struct composing *c, Zero__ComposeWaits *ret, char *who,
                            size_t who_size, char *what, size_t what_size)
{
        uint32_t first = 0, others = c->world_size - c->n - 1;

        while (c->bringers[first].part)
                first++;
        if (others)
                snprintf(who, who_size, "rank %u and %u others", first, others);
        else
                snprintf(who, who_size, "rank %u", first);
        snprintf(what, what_size, "to bring its part of the layout (%u of %u ranks have)", c->n,
                 c->world_size);
        ret->who = who;
        ret->what = what;
}

void composings_tell(struct engine *x)
{
        list_for_each (&x->composings, item) {
                struct composing *c = CONTAINER_OF(item, struct composing, link);
                Zero__LinkMessage m = job_message(c->name);
                Zero__ComposeWaits waits = ZERO__COMPOSE_WAITS__INIT;
                char who[64], what[100];
                node_set nodes = NODE_SET_NONE;

                if (c->told == c->n)
                        continue;
                c->told = c->n;
                composing_waits(c, &waits, who, sizeof who, what, sizeof what);
                m.body_case = ZERO__LINK_MESSAGE__BODY_COMPOSE_WAITS;
                m.compose_waits = &waits;
                for (uint32_t r = 0; r < c->world_size; r++)
                        if (c->bringers[r].part)
                                node_set_add(&nodes, c->bringers[r].node);
                for (uint32_t n = 0; n < x->cluster->n_nodes; n++)
                        if (node_set_has(nodes, n))
                                fabric_send(x->fabric, n, &m);
        }
}
