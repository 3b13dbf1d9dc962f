/*
 * Ranks join and leave a job, and attempts start; see coordinator.h.
 *
 * The world size may change between two steps.  Ranks that come with another size wait until the
 * ranks of the old world have left.  Those may come back with the new size.  No state moves for
 * that.
 */
#include "daemon/job/rules/coordinator_parts.h"

#include <stdlib.h>

#include "proto/cleanup.h"
#include "proto/sure.h"

/* ---- what all parts need ---------------------------------------------------------------- */

uint32_t coordinator_holder(const struct coordinator *c, uint32_t node, uint32_t owner,
                            uint32_t copy)
{
        const struct placement *placement = &c->step.placement;
        uint32_t holder = holder_of(placement, owner, copy);

        return owner < placement->n_owners && copy < placement->copies &&
                               holder_node(placement, holder) == node
                       ? holder
                       : (uint32_t)NO_HOLDER;
}

void act(struct coordinator *c, struct coordinator_action action)
{
        struct coordinator_actions *a = c->actions;

        if (a->n == a->capacity) {
                a->capacity = a->capacity ? 2 * a->capacity : 32;
                a->items = sure_realloc(a->items, a->capacity * sizeof *a->items);
        }
        a->items[a->n++] = action;
}

/* ---- joins end -------------------------------------------------------------------------- */

static struct join *join_at(struct list *item)
{
        return CONTAINER_OF(item, struct join, link);
}

void join_end(struct coordinator *c, struct join *j, int status, const char *text)
{
        list_remove(&j->link);
        fault_set(&j->fault, status, "%s", text);
        act(c, (struct coordinator_action){ .kind = COORDINATOR_JOIN_END, .join = j });
}

void joins_end(struct coordinator *c, int status, const char *text)
{
        while (!list_empty(&c->joins))
                join_end(c, join_at(c->joins.next), status, text);
}

static void joins_started(struct coordinator *c)
{
        list_for_each (&c->joins, item) {
                if (join_at(item)->admitted)
                        join_end(c, join_at(item), ZERO_OK, "");
        }
}

/* Ends the join of a session that ended while it attached; false: there is no such join. */
static bool join_forget(struct coordinator *c, uint32_t node, uint64_t session)
{
        list_for_each (&c->joins, item) {
                struct join *j = join_at(item);

                if (j->node != node || j->session != session)
                        continue;
                join_end(c, j, ZERO_ECLOSED, "the rank's session has ended");
                return true;
        }
        return false;
}

void joins_forget_node(struct coordinator *c, uint32_t node)
{
        list_for_each (&c->joins, item) {
                if (join_at(item)->node == node)
                        join_end(c, join_at(item), ZERO_EPEER, "");
        }
}

/*
 * Ranks that attach together must bring one layout.  These do not, so each of them is refused and
 * told why.  Ranks that were in the job before are not concerned.
 */
void joins_clash(struct coordinator *c)
{
        list_for_each (&c->joins, item) {
                struct join *j = join_at(item);

                if (j->resume)
                        continue;
                if (j->admitted)
                        step_part(&c->step, j->rank, true);
                join_end(c, j, c->clash.status, c->clash.text);
        }
}

/* ---- attempts start ------------------------------------------------------------------------ */

void coordinator_advance(struct coordinator *c)
{
        if (!c->settled || c->fault.status || !step_startable(&c->step))
                return;
        step_start(&c->step);
        act(c, (struct coordinator_action){ .kind = COORDINATOR_START });
        joins_started(c);
}

/* ---- slots are taken ------------------------------------------------------------------------ */

static bool is_taken(const struct coordinator *c, uint32_t rank)
{
        return rank < c->step.world_size && c->step.rank_slots[rank] == RANK_SLOT_HERE;
}

/* A later incarnation on another node takes the rank from a session that has not ended. */
static void fence_elsewhere(struct coordinator *c, const struct join *j)
{
        uint32_t node;
        uint64_t session;

        if (!is_taken(c, j->rank) || c->step.node_of_rank[j->rank] == j->node ||
            j->incarnation <= c->sitters[j->rank].incarnation)
                return;
        node = c->step.node_of_rank[j->rank];
        session = c->sitters[j->rank].session;
        act(c, (struct coordinator_action){ .kind = COORDINATOR_TELL_FENCED,
                                            .node = node,
                                            .rank = j->rank,
                                            .session = session });
        join_forget(c, node, session);
        step_part(&c->step, j->rank, false);
}

static void join_admit(struct coordinator *c, struct join *j)
{
        enum step_action action;
        struct fault fault;
        bool others;
        int r;

        fence_elsewhere(c, j);
        others = step_any_here(&c->step); /* if not, fail_on_lost starts anew */
        if (is_taken(c, j->rank))
                r = fault_set(&fault, ZERO_ERANK,
                              "rank %u is taken by process %u on node %s; a higher incarnation "
                              "would take it over",
                              j->rank, c->sitters[j->rank].pid,
                              c->job.nodes[c->step.node_of_rank[j->rank]]);
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
        act(c, (struct coordinator_action){ .kind = COORDINATOR_TELL_BACK, .rank = j->rank });
        join_end(c, j, ZERO_OK, "");
}

struct join *coordinator_other_world(const struct coordinator *c)
{
        list_for_each ((struct list *)&c->joins, item) {
                if (join_at(item)->world_size != c->step.world_size)
                        return join_at(item);
        }
        return NULL;
}

/*
 * Changes the world size once the old world has gone, to that of the ranks that waited for it.
 * Ranks that lost their node or coordinator have some time to come back first.
 */
static void world_change(struct coordinator *c)
{
        struct join *first = coordinator_other_world(c);
        uint32_t before = c->step.world_size;
        struct sitter *sitters;

        if (!first || step_occupied(&c->step) || c->now_ms < c->return_until_ms)
                return;
        sitters = calloc(first->world_size, sizeof *sitters);
        if (!sitters || step_resize(&c->step, first->world_size)) {
                free(sitters);
                join_end(c, first, ZERO_ENOMEM, "out of memory");
                return;
        }
        free(c->sitters);
        c->sitters = sitters;
        act(c, (struct coordinator_action){ .kind = COORDINATOR_RESIZED, .rank = before });
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
                struct join *j = join_at(item);

                if (!j->admitted && j->world_size == c->step.world_size)
                        join_admit(c, j);
        }
        coordinator_advance(c);
}

/*
 * A rank may wait with another world size than a running job's, but ranks that wait must agree.  A
 * waiting rank keeps no rank of the running world out.
 */
int join_check(const struct coordinator *c, struct join *j)
{
        const struct join *other = coordinator_other_world(c);
        uint32_t coming = other ? other->world_size : c->step.world_size;
        bool occupied = step_occupied(&c->step);
        bool runs = occupied || c->now_ms < c->return_until_ms;

        if (j->world_size == coming || (j->world_size == c->step.world_size && runs))
                return 0;
        if (!list_empty(&c->joins) || (occupied && !c->step.started))
                return fault_set(&j->fault, ZERO_ECONFLICT,
                                 "the rank has world size %u, but others have %u in job '%s' "
                                 "(zeroctl drop ends the job)",
                                 j->world_size, coming, c->job.name);
        if (c->job.named_group && c->job.named_rank >= j->world_size)
                return fault_set(&j->fault, ZERO_ECONFLICT,
                                 "group '%s' names rank %u: the world size of job '%s' cannot "
                                 "become %u",
                                 c->job.named_group, c->job.named_rank, c->job.name, j->world_size);
        return 0;
}

/* ---- slots are left -------------------------------------------------------------------------- */

/* Empties a rank's slot; false: the rank has no session there.  fails: nobody waits for a successor
 * of a rank that leaves in order. */
static bool rank_slot_leave(struct coordinator *c, uint32_t node, uint32_t rank, bool orderly,
                            bool fails)
{
        if (c->step.node_of_rank[rank] != node || c->step.rank_slots[rank] != RANK_SLOT_HERE)
                return false;
        step_part(&c->step, rank, orderly);
        act(c, (struct coordinator_action){ .kind = COORDINATOR_TELL_LEFT,
                                            .node = node,
                                            .rank = rank,
                                            .flag = orderly,
                                            .fails = orderly ? fails : c->step.fail_on_lost });
        return true;
}

void rank_slots_down(struct coordinator *c, uint32_t node)
{
        for (uint32_t r = 0; r < c->step.world_size; r++) {
                if (c->step.rank_slots[r] == RANK_SLOT_HERE && c->step.node_of_rank[r] == node)
                        c->sitters[r].cut_off_ms = c->now_ms;
                rank_slot_leave(c, node, r, false, false);
        }
}

/* A session that did not get its rank changes nothing.  If a session gave up before it was in the
 * job, no call of other ranks fails: they wait for the rank as before.  It may give up while the
 * answer to its join is on the way, or while its driver makes its windows. */
void coordinator_leave(struct coordinator *c, const struct coordinator_event *e)
{
        bool joined = !join_forget(c, e->node, e->session) && !e->gave_up;

        if (e->rank >= c->step.world_size || c->sitters[e->rank].session != e->session)
                return;
        if (rank_slot_leave(c, e->node, e->rank, e->orderly, joined) && e->orderly && e->finish) {
                c->complete++;
                c->unwanted += e->finish == FINISH_UNWANTED;
        }
        if (step_occupied(&c->step))
                return;
        if (!list_empty(&c->joins))
                joins_admit(c); /* ranks of another world size may have waited for this */
        else if (c->complete >= c->step.world_size)
                act(c, (struct coordinator_action){ .kind = c->unwanted == c->complete
                                                                    ? COORDINATOR_UNWANTED
                                                                    : COORDINATOR_FINISHED });
}
