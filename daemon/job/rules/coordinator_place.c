/*
 * Brings a job's states to where the placement in force wants them; see coordinator.h.
 *
 * If the states of the placement in force are complete, they say where the job stands.  Then only
 * some holders are filled, from their other copy: those that have lost their state, or have missed
 * a client's put.
 *
 * Otherwise states of an earlier placement say it (coordinator.old_placement).  First nodes carry
 * out on these what was decided (COORDINATOR_SETTLE).  Then every holder of the placement in force
 * is filled from them.  After the last one the old states are deleted (COORDINATOR_PLACED).
 *
 * No step starts meanwhile: a node with a holder that lacks its state is not open.
 */
#include "daemon/job/rules/coordinator_parts.h"

/* ---- old states settle ------------------------------------------------------------------- */

void old_placement_forget_node(struct coordinator *c, uint32_t node)
{
        const struct recovery now = step_stands(&c->step);

        old_placements_forget_node(c->old_placements, node);
        node_set_remove(&c->stale, node);
        if (c->settled && !c->whole && !old_placement_covers(c->old_placement, &now))
                c->settled = false; /* without another old placement, the job waits for the node */
}

void settle_answered(struct coordinator *c, const struct coordinator_event *e)
{
        struct old_placement *f = c->old_placement;

        if (!f || e->epoch != f->placement.epoch || !node_set_has(f->settling, e->node))
                return;
        node_set_remove(&f->settling, e->node);
        if (e->status == ZERO_OK)
                node_set_add(&f->settled, e->node);
        else if (e->status != ZERO_EPEER)
                open_hinder(c, e->status, e->node, e->text);
        placing_advance(c);
}

/* Asks nodes to settle their old states; true: all have settled. */
static bool old_placement_settle(struct coordinator *c)
{
        const struct recovery now = step_stands(&c->step);
        node_set nodes = old_placement_unsettled(c->old_placement, &now);

        c->old_placement->settling |= nodes;
        for (; node_set_any(nodes); node_set_remove(&nodes, node_set_first(nodes)))
                act_node(c, COORDINATOR_SETTLE, node_set_first(nodes));
        return old_placement_settled(c->old_placement, &now);
}

/* ---- a node refuses its part --------------------------------------------------------- */

/* True if no further try would help. */
static bool is_final(int status)
{
        return status == ZERO_ENOMEM || status == ZERO_ESHM || status == ZERO_EQUOTA ||
               status == ZERO_EIO || status == ZERO_EPERM || status == ZERO_ELAYOUT;
}

/*
 * True if the change can be taken back.  The old list must come right before the list in force, and
 * all its nodes must be up and have their states.  The change back is never taken back itself,
 * because the old list comes two epochs before it.
 */
static bool may_go_back(const struct coordinator *c)
{
        const struct old_placement *f = c->old_placement;

        if (c->whole || !f || f->placement.epoch + 1 != c->step.placement.epoch)
                return false;
        for (uint32_t o = 0; o < f->placement.n_owners; o++)
                if (f->placement.node[o] >= c->job.n_nodes ||
                    !node_set_has(c->up, f->placement.node[o]))
                        return false;
        return true;
}

static void refuse(struct coordinator *c, int status, uint32_t node, const char *why)
{
        if (may_go_back(c)) {
                fault_set(&c->refused, status, "node %s does not take its shards of job %s: %.250s",
                          c->job.nodes[node], c->job.name, why);
                act(c, (struct coordinator_action){ .kind = COORDINATOR_TAKE_BACK, .flag = true });
                return;
        }
        c->hinders = node;
        fault_set(&c->fault, status,
                  "node %s does not take its shards (give it what it lacks and start its "
                  "daemon again): %.250s",
                  c->job.nodes[node], why);
        act_node(c, COORDINATOR_HINDERED, node);
        joins_admit(c);
}

/* ---- fills --------------------------------------------------------------------------- */

void fill_ended(struct coordinator *c, const struct coordinator_event *e)
{
        uint32_t node = holder_node(&c->step.placement, e->holder);
        struct fault fault;

        c->filling[e->holder] = false;
        c->round++; /* puts may have missed the holder without a state, or changed its source */
        if (c->nodes[node] != NODE_KNOWN) {
                ; /* the node is asked again when it returns */
        } else if (e->status == ZERO_OK && state_told(c, node, &e->states[0], &fault)) {
                open_hinder(c, fault.status, node, fault.text);
        } else if (e->status == ZERO_OK) {
                c->lacks[node] = false;
                act(c, (struct coordinator_action){ .kind = COORDINATOR_FILL_OVER,
                                                    .holder = e->holder });
                open_settle(c);
        } else if (e->status == ZERO_EPEER || e->status == ZERO_EBUSY ||
                   e->status == ZERO_EABORTED ||
                   e->status == ZERO_ENOJOB) { /* for example, a source lost its state */
                fault_set(&c->note, e->status, "%s", e->text);
                act(c, (struct coordinator_action){ .kind = COORDINATOR_FILL_AGAIN,
                                                    .holder = e->holder });
        } else if (is_final(e->status) && !c->whole) {
                refuse(c, e->status, node, e->text);
        } else {
                open_hinder(c, e->status, node, e->text);
        }
}

static void fill_ask(struct coordinator *c, uint32_t holder)
{
        step_heard(&c->step, c->step.attempt);
        c->filling[holder] = true;
        act(c, (struct coordinator_action){
                       .kind = COORDINATOR_FILL, .holder = holder, .attempt = c->step.heard + 1 });
}

static uint32_t twin_of(const struct placement *p, uint32_t holder)
{
        return holder_of(p, holder_owner(p, holder), 1 - holder_copy(p, holder));
}

/* Names the sources of a holder's fill.  After a move puts count anew: both copies are filled with
 * the same fingerprint. */
void coordinator_sources(const struct coordinator *c, uint32_t holder,
                         struct coordinator_sources *ret)
{
        const struct recovery now = step_stands(&c->step);
        uint32_t twin;

        if (c->whole) {
                twin = twin_of(&c->step.placement, holder);
                *ret = (struct coordinator_sources){ .from = &c->step.placement,
                                                     .puts = c->puts,
                                                     .puts_then = c->puts[twin] };
                ret->readable[twin] = true;
                return;
        }
        *ret = (struct coordinator_sources){ .from = &c->old_placement->placement,
                                             .puts = c->old_placement->puts };
        for (uint32_t h = 0; h < placement_holders(ret->from); h++)
                ret->readable[h] = old_placement_gives(c->old_placement, h, &now);
}

/* True if the twin is up and has nothing left to carry out. */
static bool twin_ready(const struct coordinator *c, uint32_t twin)
{
        const struct recovery now = step_stands(&c->step);

        return c->nodes[holder_node(&c->step.placement, twin)] >= NODE_KNOWN &&
               twin_gives(c->standings[twin], &now, c->step.done[twin]);
}

/* True if no other copy of the holder's shards is there, or will come.  A copy that is being filled
 * may be complete already: its COORDINATOR_FILLED will say if it is. */
static bool is_gone(const struct coordinator *c, uint32_t holder)
{
        uint32_t twin;

        if (c->step.placement.copies < 2)
                return true;
        twin = twin_of(&c->step.placement, holder);
        return !c->standings[twin] && !c->filling[twin] &&
               c->nodes[holder_node(&c->step.placement, twin)] >= NODE_KNOWN;
}

/* ---- what is still to be done -------------------------------------------------------- */

bool coordinator_holder_lacks(const struct coordinator *c, uint32_t holder)
{
        const struct recovery now = step_stands(&c->step);

        return holder_lacks(c->standings[holder], &now, c->whole);
}

/* The other copy, if both copies are known; otherwise NO_HOLDER. */
static uint32_t known_twin(const struct coordinator *c, uint32_t holder)
{
        uint32_t twin =
                c->step.placement.copies < 2 ? NO_HOLDER : twin_of(&c->step.placement, holder);

        return twin != NO_HOLDER && c->standings[holder] && c->standings[twin]
                       ? twin
                       : (uint32_t)NO_HOLDER;
}

/* True if the node has answered in this round.  Puts may have outdated what it said before. */
static bool is_fresh(const struct coordinator *c, uint32_t holder)
{
        uint32_t node = holder_node(&c->step.placement, holder);

        return c->nodes[node] >= NODE_KNOWN && c->rounds[node] == c->round;
}

static void ask_anew(struct coordinator *c, uint32_t holder)
{
        uint32_t node = holder_node(&c->step.placement, holder);

        if (c->nodes[node] < NODE_KNOWN || is_fresh(c, holder))
                return;
        step_node_shut(&c->step, node);
        open_ask(c, node);
}

/* Fills a holder from its twin.  The fill names the puts that the twin has, and clients may have
 * put since the twin was opened, so the twin is asked anew. */
static void fill_from_twin(struct coordinator *c, uint32_t holder)
{
        uint32_t twin;

        if (is_gone(c, holder)) {
                open_gone(c, holder_node(&c->step.placement, holder));
                return;
        }
        twin = twin_of(&c->step.placement, holder);
        if (!twin_ready(c, twin))
                return;
        ask_anew(c, twin);
        if (is_fresh(c, twin))
                fill_ask(c, holder);
}

/* True if the other copy, if there is one, is known to have the same client puts. */
static bool is_like_twin(const struct coordinator *c, uint32_t holder)
{
        uint32_t twin = known_twin(c, holder);

        return twin == NO_HOLDER ||
               (is_fresh(c, holder) && is_fresh(c, twin) && c->puts[holder] == c->puts[twin]);
}

/*
 * True if the holder is a mirror and one of the two copies has missed a put: the mirror is filled
 * again.  The copies are compared when one of their nodes is opened.
 */
static bool is_outdated(struct coordinator *c, uint32_t holder)
{
        uint32_t twin = known_twin(c, holder);

        if (is_like_twin(c, holder) ||
            (c->nodes[holder_node(&c->step.placement, holder)] == NODE_OPEN &&
             c->nodes[holder_node(&c->step.placement, twin)] == NODE_OPEN))
                return false;
        ask_anew(c, holder);
        ask_anew(c, twin);
        return is_fresh(c, holder) && is_fresh(c, twin) &&
               holder_copy(&c->step.placement, holder) == 1;
}

bool placing_lacks(const struct coordinator *c, uint32_t node)
{
        for (uint32_t h = 0; h < placement_holders(&c->step.placement); h++)
                if (holder_node(&c->step.placement, h) == node &&
                    (coordinator_holder_lacks(c, h) || (c->whole && !is_like_twin(c, h))))
                        return true;
        return false;
}

static bool some_lack(const struct coordinator *c)
{
        for (uint32_t h = 0; h < placement_holders(&c->step.placement); h++)
                if (coordinator_holder_lacks(c, h))
                        return true;
        return false;
}

static void fill_lacking(struct coordinator *c)
{
        for (uint32_t h = 0; h < placement_holders(&c->step.placement); h++) {
                if (c->filling[h])
                        continue;
                if (!coordinator_holder_lacks(c, h) && !(c->whole && is_outdated(c, h)))
                        continue;
                if (c->nodes[holder_node(&c->step.placement, h)] != NODE_KNOWN)
                        continue;
                if (c->whole)
                        fill_from_twin(c, h);
                else
                        fill_ask(c, h);
        }
}

void placed_tell(struct coordinator *c, uint32_t node)
{
        node_set_remove(&c->stale, node);
        act_node(c, COORDINATOR_PLACED, node);
}

void placing_advance(struct coordinator *c)
{
        if (!c->settled || c->fault.status)
                return;
        if (c->refused.status && may_go_back(c)) {
                act(c, (struct coordinator_action){ .kind = COORDINATOR_TAKE_BACK });
        } else if (c->refused.status) {
                c->refused.status = ZERO_OK; /* will be tried again */
        } else if (c->whole) {
                fill_lacking(c);
        } else if (!some_lack(c)) { /* also if the sources are gone */
                c->whole = true;
                act(c, (struct coordinator_action){ .kind = COORDINATOR_WHOLE });
                open_settle(c);
        } else if (old_placement_settle(c)) {
                fill_lacking(c);
        }
}
