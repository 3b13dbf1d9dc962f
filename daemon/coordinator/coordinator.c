/*
 * The jobs that this node coordinates: their coordinators come and go with them, with nodes and
 * with ranks; what is to be done is in the files beside this one (coordinator.h).
 */
#include "daemon/coordinator/coordinator.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/crash.h"
#include "daemon/base/log.h"
#include "proto/cleanup.h"

struct coordinator *coordinator_find(const struct exchange *x, const char *name)
{
        list_for_each (&x->coordinators, item) {
                struct coordinator *c = CONTAINER_OF(item, struct coordinator, link);

                if (strcmp(c->name, name) == 0)
                        return c;
        }
        return NULL;
}

const struct step *coordinator_step(const struct exchange *x, const char *job)
{
        const struct coordinator *c = coordinator_find(x, job);

        return c ? &c->step : NULL;
}

static void coordinator_free(struct coordinator *c)
{
        for (uint32_t h = 0; c->standings && h < placement_holders(&c->step.view); h++)
                free(c->standings[h]);
        for (uint32_t r = 0; c->handed && r < c->step.world_size; r++)
                kept_clear(&c->handed[r]);
        free(c->standings);
        free(c->shares);
        formers_free(c->formers);
        free(c->handed);
        free(c->sitters);
        step_deinit(&c->step);
        layout_free(c->layout);
        if (c->message)
                zero__layout__free_unpacked(c->message, NULL);
        free(c);
}

void coordinator_unref(struct coordinator *c)
{
        if (--c->references == 0)
                coordinator_free(c);
}

static double first_loss_scale(const layout *l)
{
        for (uint32_t g = 0; g < l->n_groups; g++)
                if (l->groups[g].dtype == ZERO_FP16)
                        return 65536;
        return 1;
}

static bool coordinator_alloc(struct coordinator *c, uint32_t world_size)
{
        c->standings = calloc(placement_holders(&c->x->view), sizeof *c->standings);
        c->handed = calloc(world_size, sizeof *c->handed);
        c->sitters = calloc(world_size, sizeof *c->sitters);
        return c->standings && c->handed && c->sitters &&
               step_init(&c->step, world_size, c->x->cluster->n_nodes, &c->x->view) == 0 &&
               layout_to_message(c->layout, &c->message) == 0;
}

struct coordinator *coordinator_new(struct exchange *x, const char *name, uint32_t uid,
                                    uint32_t world_size, uint32_t reduce_dtype, layout *l)
{
        struct coordinator *c = calloc(1, sizeof *c);

        if (!c) {
                layout_free(l);
                return NULL;
        }
        c->x = x;
        c->references = 1;
        c->layout = l;
        c->uid = uid;
        c->reduce_dtype = reduce_dtype;
        snprintf(c->name, sizeof c->name, "%s", name);
        list_init(&c->joins);
        if (!coordinator_alloc(c, world_size)) {
                coordinator_free(c);
                return NULL;
        }
        c->step.loss_scale = first_loss_scale(l);
        for (uint32_t n = 0; n < x->cluster->n_nodes; n++)
                step_links(&c->step, n, x->cut[n]);
        list_insert(&x->coordinators, &c->link);
        for (uint32_t n = 0; n < x->cluster->n_nodes; n++)
                open_ask(c, n);
        return c;
}

void coordinator_close(struct coordinator *c, int status, const char *text)
{
        c->dead = true;
        for (uint32_t h = 0; h < placement_holders(&c->step.view); h++)
                if (c->fills[h])
                        fill_cancel(c->fills[h]);
        joins_end(c, status, text);
        list_remove(&c->link);
        coordinator_unref(c);
}

/* Of a job that an earlier process left: asks all nodes where they stand. */
static void coordinator_resume(struct job *job)
{
        struct coordinator *c;
        layout *l = NULL;

        if (job->coordinator != job->x->cluster->self || coordinator_find(job->x, job->name))
                return;
        c = layout_copy(job->layout, &l) ? NULL
                                         : coordinator_new(job->x, job->name, job->uid,
                                                           job->world_size, job->reduce_dtype, l);
        if (c)
                c->return_until_ms = exchange_now(job->x) + RETURN_MS;
        else
                log_error("job %s: out of memory: it is taken up when a rank attaches", job->name);
}

int coordinator_resize(struct coordinator *c, uint32_t world_size)
{
        struct kept *handed = calloc(world_size, sizeof *handed);
        struct sitter *sitters = calloc(world_size, sizeof *sitters);
        uint32_t before = c->step.world_size;

        if (!handed || !sitters || step_resize(&c->step, world_size)) {
                free(handed);
                free(sitters);
                return -ENOMEM;
        }
        for (uint32_t r = 0; r < before; r++)
                kept_clear(&c->handed[r]);
        free(c->sitters);
        free(c->handed);
        c->handed = handed;
        c->sitters = sitters;
        return 0;
}

Zero__LinkMessage coordinator_to(const struct coordinator *c)
{
        Zero__LinkMessage m = ZERO__LINK_MESSAGE__INIT;

        m.job = (char *)c->name;
        m.epoch = c->step.epoch;
        return m;
}

uint32_t coordinator_holder(const struct coordinator *c, uint32_t node, uint32_t owner,
                            uint32_t copy)
{
        const struct placement *view = &c->step.view;
        uint32_t holder = holder_of(view, owner, copy);

        return owner < view->n_owners && copy < view->copies && holder_node(view, holder) == node
                       ? holder
                       : (uint32_t)NO_HOLDER;
}

/* ---- ranks leave -------------------------------------------------------------------- */

static void tell_part(struct coordinator *c, uint32_t rank, bool orderly)
{
        Zero__LinkMessage m = coordinator_to(c);
        Zero__Part part = ZERO__PART__INIT;

        part.rank = rank;
        part.orderly = orderly;
        part.told = true;
        part.fails = !orderly && c->step.fail_on_lost;
        m.body_case = ZERO__LINK_MESSAGE__BODY_PART;
        m.part = &part;
        send_all(c->x, &m);
}

/* False: the rank is not there. */
static bool seat_part(struct coordinator *c, uint32_t node, uint32_t rank, bool orderly)
{
        if (c->step.node_of_rank[rank] != node || c->step.seats[rank] != SEAT_HERE)
                return false;
        step_part(&c->step, rank, orderly);
        tell_part(c, rank, orderly);
        if (!orderly)
                log_warning_for(c->uid, "job %s: rank %u on %s was lost", c->name, rank,
                                node_name(c->x, node));
        return true;
}

/* All ranks have left: the job is finished if each of them has completed it. */
static void job_finish(struct coordinator *c)
{
        Zero__LinkMessage m = coordinator_to(c);
        Zero__Part part = ZERO__PART__INIT;
        char name[ZERO_NAME_MAX + 1];

        if (c->complete < c->step.world_size)
                return;
        log_info_for(c->uid, "job %s: finished after step %llu%s", c->name,
                     (unsigned long long)c->step.version,
                     c->unwanted == c->complete ? "; it is dropped, as its ranks asked" : "");
        if (c->unwanted == c->complete) {
                snprintf(name, sizeof name, "%s", c->name); /* c goes with the job */
                drop_order(c->x, name, c->x->cluster->self, 0, NULL);
                return;
        }
        part.told = true;
        part.finish = ZERO__FINISH__COMPLETE;
        m.body_case = ZERO__LINK_MESSAGE__BODY_PART;
        m.part = &part;
        send_all(c->x, &m);
}

/* A session that claimed a rank without getting it takes nothing with it. */
static void coordinator_part(struct coordinator *c, uint32_t node, const Zero__Part *part)
{
        join_forget(c, node, part->session);
        if (part->rank >= c->step.world_size || c->sitters[part->rank].session != part->session)
                return;
        if (seat_part(c, node, part->rank, part->orderly) && part->orderly && part->finish) {
                c->complete++;
                c->unwanted += part->finish == ZERO__FINISH__UNWANTED;
        }
        if (step_occupied(&c->step))
                return;
        if (list_empty(&c->joins))
                job_finish(c);
        else
                joins_admit(c); /* those of another world size may have waited for this */
}

/* ---- events ---------------------------------------------------------------------------------- */

/* A job that nobody wants any more, and of which it was never known whether there is one. */
static bool is_idle(const struct coordinator *c)
{
        return !c->settled && !c->claimed && list_empty(&c->joins) && !job_find(c->x, c->name);
}

static void coordinator_tick(struct exchange *x)
{
        list_for_each (&x->coordinators, item) {
                struct coordinator *c = CONTAINER_OF(item, struct coordinator, link);

                if (is_idle(c)) {
                        coordinator_close(c, ZERO_ECLOSED, "");
                        continue;
                }
                c->references++; /* it may be closed here */
                open_tick(c);
                if (c->settled)
                        joins_admit(c);
                placing_advance(c);
                if (!c->dead)
                        coordinator_tell(c);
                coordinator_unref(c);
        }
}

void coordinator_message(struct exchange *x, uint32_t node, const Zero__LinkMessage *m)
{
        struct coordinator *c;

        if (m->body_case == ZERO__LINK_MESSAGE__BODY_JOIN) {
                coordinator_join(x, node, m);
                return;
        }
        c = coordinator_find(x, m->job);
        if (!c) {
                answer(x, node, m, ZERO_ENOJOB, "the job's coordinator does not know it");
                return;
        }
        switch (m->body_case) {
        case ZERO__LINK_MESSAGE__BODY_PART:
                coordinator_part(c, node, m->part);
                break;
        case ZERO__LINK_MESSAGE__BODY_READY:
                coordinator_ready(c, node, m);
                break;
        case ZERO__LINK_MESSAGE__BODY_PREPARED:
                coordinator_vote(c, node, m->prepared);
                break;
        case ZERO__LINK_MESSAGE__BODY_DONE:
                open_done(c, coordinator_holder(c, node, m->done->owner, m->done->copy),
                          m->done->attempt);
                coordinator_advance(c);
                break;
        case ZERO__LINK_MESSAGE__BODY_PROGRESS:
                coordinator_report(c, node, m->progress);
                break;
        default:
                break;
        }
}

static void coordinator_up(struct exchange *x, uint32_t node)
{
        list_for_each (&x->coordinators, item) {
                struct coordinator *c = CONTAINER_OF(item, struct coordinator, link);

                if (c->nodes[node] == NODE_UNASKED)
                        open_ask(c, node);
        }
}

/*
 * Its ranks are lost, and so are the joins that it sent.  Its sessions may live on: no other world
 * takes their place.
 */
static void coordinator_down(struct exchange *x, uint32_t node, const char *why)
{
        list_for_each (&x->coordinators, item) {
                struct coordinator *c = CONTAINER_OF(item, struct coordinator, link);

                for (uint32_t r = 0; r < c->step.world_size; r++) {
                        if (c->step.seats[r] == SEAT_HERE && c->step.node_of_rank[r] == node)
                                c->sitters[r].cut_off_ms = exchange_now(x);
                        seat_part(c, node, r, false);
                }
                step_node_lost(&c->step, node);
                open_forget(c, node);
                c->reports[node] = (struct report){ 0 };
                joins_forget_node(c, node);
        }
}

static void coordinator_drop(struct exchange *x, const char *job)
{
        struct coordinator *c = coordinator_find(x, job);

        if (c)
                coordinator_close(c, ZERO_ENOJOB, "the job was dropped");
}

void coordinators_free(struct exchange *x)
{
        list_for_each (&x->coordinators, item) {
                coordinator_close(CONTAINER_OF(item, struct coordinator, link), ZERO_ECLOSED,
                                  "the daemon stops");
        }
}

void coordinators_cut(struct exchange *x, uint32_t node, uint64_t cut)
{
        list_for_each (&x->coordinators, item) {
                struct coordinator *c = CONTAINER_OF(item, struct coordinator, link);

                step_links(&c->step, node, cut);
                coordinator_advance(c);
        }
}

const struct module coordinator_module = { .progress = coordinator_tick,
                                           .node_up = coordinator_up,
                                           .node_down = coordinator_down,
                                           .job_stands = coordinator_resume,
                                           .name_dropped = coordinator_drop };
