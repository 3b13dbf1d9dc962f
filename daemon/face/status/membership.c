/*
 * The owner list, and the progress of jobs that move to its owners.
 *
 * Each node reports the jobs that it coordinates, and names the jobs whose states of an earlier
 * list it still has.  A move is over when every node of the list runs with that list, and no node
 * that is up has states of an earlier list.
 */
#include "daemon/face/status/status.h"

#include <string.h>
#include <sys/statvfs.h>

#include "daemon/cluster/coordinator/coordinator.h"
#include "daemon/cluster/membership/membership.h"
#include "daemon/cluster/reshard/reshard.h"
#include "proto/cleanup.h"

/* ---- the owner list ---- */

static void report_mirrors(struct arena *arena, const struct engine *x, const struct placement *p,
                           struct status_membership *ret)
{
        for (uint32_t h = p->n_owners; h < placement_holders(p); h++) {
                struct status_mirror *m = LIST_ADD(arena, &ret->mirrors);

                if (!m)
                        return;
                m->owner = node_name(x, p->node[holder_owner(p, h)]);
                m->node = node_name(x, holder_node(p, h));
        }
}

static void report_members(struct arena *arena, const struct engine *x, node_set owners,
                           struct status_membership *ret)
{
        for (uint32_t n = 0; n < x->cluster->n_nodes; n++) {
                struct status_member *m = LIST_ADD(arena, &ret->nodes);

                if (!m)
                        return;
                m->node = node_name(x, n);
                m->self = n == x->cluster->self;
                m->up = m->self || node_set_has(x->linked, n);
                m->owner = node_set_has(owners, n);
        }
}

void report_membership(struct arena *arena, const struct engine *x, struct status_membership *ret)
{
        const struct placement *chosen = membership_chosen(x), *undecided = membership_undecided(x);
        node_set others = x->linked & ~node_set_of(x->cluster->self);

        *ret = (struct status_membership){
                .epoch = chosen->epoch,
                .votes_needed = paxos_quorum(x->cluster->n_nodes, NODE_SET_NONE),
                .votes_reachable = 1 + node_set_count(others),
                .voter = membership_votes(x),
        };
        ret->majority = ret->votes_reachable >= ret->votes_needed;
        report_owners(arena, x, chosen, &ret->owners);
        report_mirrors(arena, x, chosen, ret);
        report_members(arena, x, placement_nodes(chosen), ret);
        if (undecided)
                report_owners(arena, x, undecided, &ret->undecided);
        else
                ret->undecided.n = RECORD_NONE;
}

/* ---- moves, as one node knows them ---- */

struct moves {
        struct arena *arena;
        struct status_moves_here *here;
};

static struct status_awaited *report_awaited(struct arena *arena, const char *who, const char *what)
{
        struct status_awaited *ret = arena_new(arena, sizeof *ret);

        if (ret)
                *ret = (struct status_awaited){ arena_copy(arena, who), arena_copy(arena, what) };
        return ret;
}

static void add_move(void *arg, const char *job, const struct move *m, const struct wait_line *wait,
                     const char *trouble)
{
        const struct moves *moves = arg;
        struct arena *arena = moves->arena;
        struct status_job_move *j = LIST_ADD(arena, &moves->here->moves);

        if (!j)
                return;
        j->move = arena_new(arena, sizeof *j->move);
        if (j->move)
                report_move(m, j->move);
        j->job = arena_copy(arena, job);
        if (wait->who[0])
                j->waiting = report_awaited(arena, wait->who, wait->what);
        if (trouble[0])
                j->trouble = arena_copy(arena, trouble);
}

static uint64_t room_free(const struct engine *x)
{
        uint64_t used = store_used(x->store), quota = store_quota(x->store);
        struct statvfs fs;

        if (x->states_away || statvfs(x->conf->state_dir, &fs))
                return RECORD_NULL;
        uint64_t left = fs.f_bavail * fs.f_frsize, allowed = quota > used ? quota - used : 0;

        return quota && allowed < left ? allowed : left;
}

void report_moves_here(struct arena *arena, struct engine *x, struct status_moves_here *ret)
{
        struct moves moves = { arena, ret };

        *ret = (struct status_moves_here){ .room = arena_new(arena, sizeof *ret->room) };
        if (ret->room)
                *ret->room = (struct status_room){ node_name(x, x->cluster->self),
                                                   store_used(x->store), room_free(x) };
        moves_each(x, add_move, &moves);
        list_for_each (&x->jobs, item) {
                const struct job *job = CONTAINER_OF(item, struct job, link);

                if (!list_empty(&job->old_replicas))
                        texts_add(arena, &ret->old_placements, arena_copy(arena, job->name));
        }
        if (x->taken_back.epoch)
                ret->taken_back = arena_new(arena, sizeof *ret->taken_back);
        if (ret->taken_back)
                *ret->taken_back =
                        (struct status_taken_back){ x->taken_back.epoch,
                                                    arena_copy(arena, x->taken_back.why) };
}

/* ---- moves, as all nodes told ---- */

static void add_told(struct arena *arena, const struct status_moves_here *told,
                     struct status_moves *ret)
{
        for (uint32_t i = 0; i < told->moves.n; i++) {
                struct status_job_move *j =
                        told->moves.items[i].job ? LIST_ADD(arena, &ret->jobs) : NULL;

                if (j)
                        *j = told->moves.items[i];
        }
}

static bool is_told(const struct status_moves *moves, const char *job)
{
        for (uint32_t i = 0; i < moves->jobs.n; i++)
                if (strcmp(moves->jobs.items[i].job, job) == 0)
                        return true;
        return false;
}

/* A job that no coordinator reports, although a node has states of it from an earlier list. */
static void add_old_placement(struct arena *arena, const char *job, uint64_t epoch,
                              struct status_moves *ret)
{
        struct status_move *move = arena_new(arena, sizeof *move);
        struct status_job_move *j = move ? LIST_ADD(arena, &ret->jobs) : NULL;

        if (!j)
                return;
        *move = (struct status_move){ .from_epoch = RECORD_NULL, .to_epoch = epoch };
        *j = (struct status_job_move){ .job = job, .move = move };
        j->waiting = report_awaited(arena, "its coordinator", "to take up the move");
}

/* What a node that has not answered has to do: it is an owner, or may still have old states. */
static const char *node_waits(const struct engine *x, uint32_t node)
{
        bool owner = node_set_has(placement_nodes(membership_chosen(x)), node);

        if (node_set_has(x->up, node))
                return "its answer";
        if (node_set_has(x->linked, node))
                return "to restart with the owners that were chosen";
        return owner ? "to come up" : NULL;
}

static void add_waiting(struct arena *arena, const struct engine *x, uint32_t node,
                        const struct status_moves_here *told, struct status_moves *ret)
{
        const char *what = told ? NULL : node_waits(x, node);
        struct status_awaited *waiting;

        if (node == x->cluster->self && x->placement.epoch != ret->epoch)
                what = "to restart with the owners that were chosen";
        waiting = what ? LIST_ADD(arena, &ret->waiting) : NULL;
        if (!waiting)
                return;
        waiting->who = arena_text(arena, "node %.60s", node_name(x, node));
        waiting->what = what;
}

void report_moves(struct arena *arena, const struct engine *x,
                  const struct status_moves_here *const *told, struct status_moves *ret)
{
        uint32_t n_nodes = x->cluster->n_nodes;

        *ret = (struct status_moves){ .epoch = membership_chosen(x)->epoch };
        for (uint32_t n = 0; n < n_nodes; n++)
                if (told[n])
                        add_told(arena, told[n], ret);
        for (uint32_t n = 0; n < n_nodes; n++)
                for (uint32_t i = 0; told[n] && i < told[n]->old_placements.n; i++)
                        if (!is_told(ret, told[n]->old_placements.items[i]))
                                add_old_placement(arena, told[n]->old_placements.items[i],
                                                  x->placement.epoch, ret);
        for (uint32_t n = 0; n < n_nodes; n++) {
                struct status_taken_back *t =
                        told[n] && told[n]->taken_back ? LIST_ADD(arena, &ret->taken_back) : NULL;

                struct status_room *room =
                        told[n] && told[n]->room ? LIST_ADD(arena, &ret->rooms) : NULL;

                if (t)
                        *t = *told[n]->taken_back;
                if (room)
                        *room = *told[n]->room;
                if (!told[n])
                        texts_add(arena, &ret->unheard, node_name(x, n));
                add_waiting(arena, x, n, told[n], ret);
        }
        ret->over = ret->jobs.n == 0 && ret->waiting.n == 0;
}
