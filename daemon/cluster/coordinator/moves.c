/*
 * How far a job's shards have moved: how many of their bytes lie where the placement in force wants
 * them, and who holds up the rest.
 */
#include "daemon/cluster/reshard/reshard.h"

#include <stdlib.h>

#include "daemon/cluster/coordinator/coordinator.h"
#include "proto/cleanup.h"

static void count_shares(struct coordinated *c)
{
        uint32_t n = c->state.step.placement.n_owners;
        uint64_t *shares = calloc(n, sizeof *shares);
        struct partition *p = NULL;

        if (shares && partition_new(c->layout, n, &p) == 0) {
                for (uint32_t o = 0; o < n; o++)
                        shares[o] = plan_owner_bytes(c->layout, p, o);
                c->shares = STEAL(shares);
        }
        partition_free(p);
        free(shares);
}

/* ---- how far ------------------------------------------------------------------------------ */

static void holder_add(const struct coordinated *c, uint32_t holder, struct move *m)
{
        uint64_t share = c->shares ? c->shares[holder_owner(&c->state.step.placement, holder)] : 0;
        uint64_t bytes = 0, total, moved;

        if (c->fills[holder])
                fill_progress(c->fills[holder], &bytes, &total, &moved);
        else if (c->state.settled && !coordinator_holder_lacks(&c->state, holder))
                bytes = share;
        m->bytes += bytes < share ? bytes : share;
        m->total += share;
}

/* The epoch of the states being moved, or, while that is unknown, of the newest states. */
static bool old_placement_epoch(const struct coordinated *c, uint64_t *ret)
{
        uint64_t newest = 0;
        bool some = false;

        for (uint32_t i = 0; i < OLD_PLACEMENT_MAX; i++) {
                const struct placement *p = &c->state.old_placements[i].placement;

                some = some || p->n_owners;
                newest = p->n_owners && p->epoch > newest ? p->epoch : newest;
        }
        if (some)
                *ret = c->state.old_placement ? c->state.old_placement->placement.epoch : newest;
        return some;
}

/* The job is complete, and the holder only gets back what it lost. */
static bool is_restored(const struct coordinated *c, uint32_t holder)
{
        uint32_t node = holder_node(&c->state.step.placement, holder);

        return c->fills[holder] ||
               (!c->state.standings[holder] && c->state.nodes[node] == NODE_KNOWN);
}

bool coordinated_moves(struct coordinated *c, struct move *ret)
{
        const struct placement *placement = &c->state.step.placement;
        struct move m = { .from = placement->epoch, .to = placement->epoch };
        bool moves = !c->state.whole && old_placement_epoch(c, &m.from);

        if (!moves && !c->state.whole)
                return false;
        if (!c->shares)
                count_shares(c);
        for (uint32_t h = 0; h < placement_holders(placement); h++) {
                if (c->state.whole && !is_restored(c, h))
                        continue;
                holder_add(c, h, &m);
                moves = true;
        }
        if (moves)
                *ret = m;
        return moves;
}

/* ---- who keeps the move waiting ------------------------------------------------------------ */

static void wait_for(const struct coordinated *c, uint32_t node, const char *what,
                     struct wait_line *ret)
{
        snprintf(ret->who, sizeof ret->who, "node %.60s", node_name(c->x, node));
        snprintf(ret->what, sizeof ret->what, "%s", what);
}

/* The nodes that are up do not have all of the job. */
static void rest_waits(const struct coordinated *c, struct wait_line *ret)
{
        uint32_t n_nodes = c->x->cluster->n_nodes;
        bool untold = node_set_any(c->state.untold);
        size_t at = 0;

        for (uint32_t n = 0; n < n_nodes && at < sizeof ret->who; n++)
                if (untold ? node_set_has(c->state.untold, n) : c->state.nodes[n] == NODE_UNASKED)
                        at += (size_t)snprintf(ret->who + at, sizeof ret->who - at, "%s%s",
                                               at ? ", " : "node ", node_name(c->x, n));
        if (at) {
                snprintf(ret->what, sizeof ret->what, "%s",
                         untold ? coordinated_untold(c)
                                : "to come up: the rest of the job is there");
                return;
        }
        snprintf(ret->who, sizeof ret->who, "a person");
        snprintf(ret->what, sizeof ret->what,
                 "no node has the rest of the job: restore the job from a checkpoint, or drop it "
                 "(zeroctl drop)");
}

/* Nobody knows yet where the job stands, or a decided step has to be carried out first. */
static bool standing_waits(const struct coordinated *c, struct wait_line *ret)
{
        for (uint32_t n = 0; n < c->x->cluster->n_nodes; n++)
                if (c->state.nodes[n] == NODE_ASKED || c->state.nodes[n] == NODE_AGAIN) {
                        wait_for(c, n, "to say what it has of the job", ret);
                        return true;
                } else if (c->state.settled && !c->state.whole &&
                           node_set_has(c->state.old_placement->settling, n)) {
                        wait_for(c, n, "to carry out the last step", ret);
                        return true;
                }
        if (!c->state.settled)
                rest_waits(c, ret);
        return !c->state.settled;
}

static void coordinator_waits(const struct coordinated *c, struct wait_line *ret)
{
        const struct placement *placement = &c->state.step.placement;

        *ret = (struct wait_line){ .since_ms = engine_now(c->x) };
        if (c->state.fault.status) {
                snprintf(ret->who, sizeof ret->who, "a person");
                snprintf(ret->what, sizeof ret->what, "%.150s", c->state.fault.text);
                return;
        }
        if (c->state.refused.status) {
                snprintf(ret->who, sizeof ret->who, "the earlier owners");
                snprintf(ret->what, sizeof ret->what, "to come back: %.100s",
                         c->state.refused.text);
                return;
        }
        for (uint32_t h = 0; h < placement_holders(placement); h++) {
                uint32_t node = holder_node(placement, h);

                if (c->state.nodes[node] != NODE_UNASKED)
                        continue;
                wait_for(c, node, "to come up", ret);
                return;
        }
        if (standing_waits(c, ret))
                return;
        for (uint32_t h = 0; h < placement_holders(placement); h++)
                if (c->fills[h])
                        wait_for(c, holder_node(placement, h), "to get its shards", ret);
}

void moves_each(struct engine *x, move_each *each, void *arg)
{
        list_for_each (&x->coordinators, item) {
                struct coordinated *c = CONTAINER_OF(item, struct coordinated, link);
                struct wait_line wait;
                struct move m;

                if (!coordinated_moves(c, &m))
                        continue;
                coordinator_waits(c, &wait);
                each(arg, c->name, &m, &wait, c->state.fault.status ? c->state.fault.text : "");
        }
}
