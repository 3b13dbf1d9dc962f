/*
 * Ranks join a job: they wait until it is known where the job stands, take their seats, and are
 * answered when the job has started, or at once where a running attempt waits for them.
 *
 * The world size changes between two steps: ranks that come with another one wait until those of
 * the old world have left, which then may come back with the new one.  No state moves for it.
 */
#include "daemon/checkpoint/checkpoint.h"
#include "daemon/coordinator/coordinator.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"
#include "proto/cleanup.h"

/* ---- answers ------------------------------------------------------------------------ */

static void join_end(struct coordinator *c, struct join *j, int status, const char *text)
{
        Zero__LinkMessage m = coordinator_to(c);

        m.call = j->call;
        answer(c->x, j->node, &m, status, text);
        list_remove(&j->link);
        free(j);
}

void joins_end(struct coordinator *c, int status, const char *text)
{
        while (!list_empty(&c->joins))
                join_end(c, CONTAINER_OF(c->joins.next, struct join, link), status, text);
}

void joins_started(struct coordinator *c)
{
        list_for_each (&c->joins, item) {
                struct join *j = CONTAINER_OF(item, struct join, link);

                if (j->admitted)
                        join_end(c, j, ZERO_OK, "");
        }
}

void join_forget(struct coordinator *c, uint32_t node, uint64_t session)
{
        list_for_each (&c->joins, item) {
                struct join *j = CONTAINER_OF(item, struct join, link);

                if (j->node != node || j->session != session)
                        continue;
                join_end(c, j, ZERO_ECLOSED, "the rank's session has ended");
                return;
        }
}

void joins_forget_node(struct coordinator *c, uint32_t node)
{
        list_for_each (&c->joins, item) {
                struct join *j = CONTAINER_OF(item, struct join, link);

                if (j->node == node)
                        join_end(c, j, ZERO_EPEER, "");
        }
}

/* ---- taking seats ------------------------------------------------------------------------ */

/* The rank is there again, in the attempt that runs: all nodes hear of it. */
static void tell_back(struct coordinator *c, uint32_t rank)
{
        Zero__LinkMessage m = coordinator_to(c);
        Zero__Part part = ZERO__PART__INIT;

        part.rank = rank;
        part.told = part.back = true;
        m.body_case = ZERO__LINK_MESSAGE__BODY_PART;
        m.part = &part;
        send_all(c->x, &m);
        log_info_for(c->uid, "job %s: rank %u is back", c->name, rank);
}

/* A later incarnation on another node takes the rank from a session that has not ended. */
static void fence_elsewhere(struct coordinator *c, const struct join *j)
{
        Zero__LinkMessage m = coordinator_to(c);
        Zero__Part part = ZERO__PART__INIT;
        uint32_t node;

        if (j->rank >= c->step.world_size || c->step.seats[j->rank] != SEAT_HERE ||
            c->step.node_of_rank[j->rank] == j->node ||
            j->incarnation <= c->sitters[j->rank].incarnation)
                return;
        node = c->step.node_of_rank[j->rank];
        part.rank = j->rank;
        part.told = part.fenced = true;
        part.session = c->sitters[j->rank].session;
        m.body_case = ZERO__LINK_MESSAGE__BODY_PART;
        m.part = &part;
        fabric_send(c->x->fabric, node, &m);
        join_forget(c, node, part.session);
        step_part(&c->step, j->rank, false);
}

static bool is_taken(const struct coordinator *c, uint32_t rank)
{
        return rank < c->step.world_size && c->step.seats[rank] == SEAT_HERE;
}

static void join_admit(struct coordinator *c, struct join *j)
{
        enum step_action action;
        struct fault fault;
        bool others;
        int r;

        fence_elsewhere(c, j);
        others = step_seated(&c->step); /* else who wanted it has gone */
        if (is_taken(c, j->rank))
                r = fault_set(&fault, ZERO_ERANK,
                              "rank %u is taken by process %u on node %s; a higher incarnation "
                              "would take it over",
                              j->rank, c->sitters[j->rank].pid,
                              node_name(c->x, c->step.node_of_rank[j->rank]));
        else
                r = step_join(&c->step, j->rank, j->node, &action, &fault);
        if (r) {
                join_end(c, j, r, fault.text);
                return;
        }
        c->complete = c->unwanted = 0;
        c->sitters[j->rank] = (struct sitter){ .incarnation = j->incarnation,
                                               .pid = j->pid,
                                               .session = j->session };
        j->admitted = true;
        c->step.fail_on_lost = (others && c->step.fail_on_lost) || j->fail_on_lost;
        if (action != STEP_REJOIN)
                return;
        tell_back(c, j->rank);
        join_end(c, j, ZERO_OK, "");
}

struct join *join_of_other_world(const struct coordinator *c)
{
        list_for_each ((struct list *)&c->joins, item) {
                struct join *j = CONTAINER_OF(item, struct join, link);

                if (j->world_size != c->step.world_size)
                        return j;
        }
        return NULL;
}

/*
 * The old world has gone: the ranks that waited for that make the new one.  Those who lost their
 * node, or their coordinator, have some time to come back first.
 */
static void world_change(struct coordinator *c)
{
        struct join *first = join_of_other_world(c);

        if (!first || step_occupied(&c->step) || exchange_now(c->x) < c->return_until_ms)
                return;
        log_info_for(c->uid, "job %s: the world size changes from %u to %u", c->name,
                     c->step.world_size, first->world_size);
        if (coordinator_resize(c, first->world_size))
                join_end(c, first, ZERO_ENOMEM, "out of memory");
}

void joins_admit(struct coordinator *c)
{
        if (c->fault.status) {
                joins_end(c, c->fault.status, c->fault.text);
                return;
        }
        if (!c->settled || c->clash.status)
                return;
        world_change(c);
        list_for_each (&c->joins, item) {
                struct join *j = CONTAINER_OF(item, struct join, link);

                if (!j->admitted && j->world_size == c->step.world_size)
                        join_admit(c, j);
        }
        coordinator_advance(c);
}

/* ---- joins come in ----------------------------------------------------------------------- */

/* Groups that name their ranks need them all. */
static int resize_check(const struct coordinator *c, uint32_t world_size, struct fault *fault)
{
        for (uint32_t g = 0; g < c->layout->n_groups; g++)
                for (uint32_t i = 0; i < c->layout->groups[g].n_ranks; i++)
                        if (c->layout->groups[g].ranks[i] >= world_size)
                                return fault_set(fault, ZERO_ECONFLICT,
                                                 "group '%s' names rank %u: the world size of job "
                                                 "'%s' cannot become %u",
                                                 c->layout->groups[g].name,
                                                 c->layout->groups[g].ranks[i], c->name,
                                                 world_size);
        return 0;
}

/*
 * Another world size than that of a job which runs may wait for it; ranks that come together agree.
 * Who waits keeps no rank of the world that runs from its place.
 */
static int world_check(const struct coordinator *c, uint32_t world_size, struct fault *fault)
{
        const struct join *other = join_of_other_world(c);
        uint32_t coming = other ? other->world_size : c->step.world_size;
        bool occupied = step_occupied(&c->step);
        bool runs = occupied || exchange_now(c->x) < c->return_until_ms;

        if (world_size == coming || (world_size == c->step.world_size && runs))
                return 0;
        if (!list_empty(&c->joins) || (occupied && c->step.epoch == 0))
                return fault_set(fault, ZERO_ECONFLICT,
                                 "world size %u here, %u so far in job '%s' (zeroctl drop ends it)",
                                 world_size, coming, c->name);
        return resize_check(c, world_size, fault);
}

static int layouts_agree(const struct coordinator *c, uint32_t rank, const layout *l,
                         struct fault *fault)
{
        char text[300];

        if (layout_equal(l, c->layout, text, sizeof text))
                return 0;
        if (c->step.epoch == 0 && !list_empty(&c->joins))
                return fault_set(
                        fault, ZERO_ELAYOUT,
                        "the layout of rank %u differs from that of rank %u, which came to "
                        "job '%s' before: %s",
                        rank, CONTAINER_OF(c->joins.next, struct join, link)->rank, c->name, text);
        return fault_set(fault, ZERO_ELAYOUT,
                         "the layout of rank %u differs from job '%s' (zeroctl drop ends it): %s",
                         rank, c->name, text);
}

/*
 * Ranks that attach together bring one layout: as they do not, none of them can go on, and each
 * hears why.  Ranks that were in the job before are none of them.
 */
void joins_clash(struct coordinator *c)
{
        list_for_each (&c->joins, item) {
                struct join *j = CONTAINER_OF(item, struct join, link);

                if (j->resume)
                        continue;
                if (j->admitted)
                        step_part(&c->step, j->rank, true);
                join_end(c, j, c->clash.status, c->clash.text);
        }
}

/* A job that exists takes only ranks that mean the same job. */
static int join_check(struct coordinator *c, const Zero__Join *join, const layout *l,
                      struct fault *fault)
{
        int r;

        if (c->uid != join->uid && join->uid != 0)
                return fault_set(fault, ZERO_EPERM, "job '%s' belongs to user %u", c->name, c->uid);
        if (c->reduce_dtype != join->reduce_dtype)
                return fault_set(
                        fault, ZERO_ECONFLICT, "reduce_dtype %s here, %s so far in job '%s'",
                        dtype_name(join->reduce_dtype), dtype_name(c->reduce_dtype), c->name);
        r = layouts_agree(c, join->rank, l, fault);
        return r ? r : world_check(c, join->world_size, fault);
}

static int join_coordinator(struct exchange *x, const char *name, const Zero__Join *join,
                            struct coordinator **ret, struct fault *fault)
{
        struct coordinator *c = coordinator_find(x, name);
        layout *l = NULL;
        int r;

        /* else it, or the job that it makes, would be taken away when the restore takes over */
        if (restore_runs(x, name))
                return fault_set(fault, ZERO_EBUSY,
                                 "a restore of job '%s' is under way: attach when it is done",
                                 name);
        r = layout_from_message(join->layout, &l, fault);
        if (r)
                return r;
        if (c) {
                r = join_check(c, join, l, fault);
                layout_free(l);
        } else {
                c = coordinator_new(x, name, join->uid, join->world_size, join->reduce_dtype, l);
                r = c ? 0 : fault_set(fault, ZERO_ENOMEM, "out of memory");
        }
        if (!r)
                *ret = c;
        return r;
}

void coordinator_join(struct exchange *x, uint32_t node, const Zero__LinkMessage *m)
{
        const Zero__Join *join = m->join;
        struct coordinator *c = NULL;
        struct fault fault;
        struct join *j;
        bool clashes;
        int r;

        if (!job_name_valid(m->job) || join->world_size < 1 || join->world_size > ZERO_RANK_MAX ||
            !join->layout || !dtype_valid(join->reduce_dtype)) {
                answer(x, node, m, ZERO_EPROTO, "malformed join");
                return;
        }
        c = coordinator_find(x, m->job);
        if (c && join->rank == RANK_ABSENT && c->nodes[node] == NODE_UNASKED)
                open_ask(c, node); /* it had no memory for its state, and has now */
        r = join_coordinator(x, m->job, join, &c, &fault);
        clashes = r == ZERO_ELAYOUT && join->rank != RANK_ABSENT && !join->resume;
        if (r == 0 && join->rank == RANK_ABSENT) { /* a node tells that it has states of the job */
                c->claimed = true;
                open_settle(c);
                answer(x, node, m, ZERO_OK, "");
                return;
        }
        j = r && !clashes ? NULL : calloc(1, sizeof *j);
        if (!j) {
                answer(x, node, m, r ? r : ZERO_ENOMEM, r ? fault.text : "out of memory");
                return;
        }
        *j = (struct join){ .node = node,
                            .rank = join->rank,
                            .world_size = join->world_size,
                            .incarnation = join->incarnation,
                            .session = join->session,
                            .pid = join->pid,
                            .since_ms = exchange_now(x),
                            .resume = join->resume,
                            .fail_on_lost = join->fail_on_lost,
                            .call = m->call };
        if (clashes) {
                c = coordinator_find(x, m->job);
                c->clash = fault;
        }
        list_insert(&c->joins, &j->link);
        if (clashes) {
                open_clash(c);
                return;
        }
        c->may_create = c->may_create || !join->resume;
        if (c->settled || c->fault.status)
                joins_admit(c);
        else
                open_settle(c);
}
