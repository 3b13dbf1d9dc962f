/*
 * Opens a job on all nodes: asks each node what it knows.  The owners' answers say where the job
 * stands, or that it has to be created; see coordinator.h.
 */
#include "daemon/job/rules/coordinator_parts.h"

#include <string.h>

/* True if the node holds shards of the job. */
static bool is_holder(const struct coordinator *c, uint32_t node)
{
        return placement_owner_on(&c->step.placement, node) != NO_OWNER;
}

/* ---- the end of a job that cannot be created ------------------------------------------------ */

/* True if the node has created the job for this opening, or may have and not said so yet. */
static bool may_have_created(const struct coordinator *c, uint32_t node)
{
        return c->created[node] || (c->nodes[node] == NODE_ASKED && c->lacks[node]);
}

/* Ends the coordinator, and has nodes forget what this opening created. */
void coordinator_end(struct coordinator *c, int status, const char *text)
{
        bool opening = !c->settled || c->clash.status;

        for (uint32_t n = 0; n < c->job.n_nodes && opening; n++)
                if (may_have_created(c, n))
                        act_node(c, COORDINATOR_DISCARD, n);
        c->dead = true;
        joins_end(c, status, text);
        act(c, (struct coordinator_action){ .kind = COORDINATOR_CLOSED });
}

void open_clash(struct coordinator *c)
{
        bool forming = !c->step.started, created = false;

        if (c->dead || !c->clash.status)
                return;
        for (uint32_t n = 0; forming && n < c->job.n_nodes; n++) {
                if (c->nodes[n] == NODE_ASKED)
                        return;
                created = created || c->created[n];
        }
        if (created)
                coordinator_end(c, c->clash.status, c->clash.text);
        else
                joins_clash(c);
        c->clash.status = ZERO_OK;
}

void open_hinder(struct coordinator *c, int status, uint32_t node, const char *why)
{
        c->hinders = node;
        fault_set(&c->fault, status,
                  "node %s: %.300s; restore the job from a checkpoint, or drop it (zeroctl drop)",
                  c->job.nodes[node], why);
        act_node(c, COORDINATOR_HINDERED, node);
        joins_admit(c);
}

void open_gone(struct coordinator *c, uint32_t node)
{
        if (!c->unusable.status) {
                open_hinder(c, ZERO_ECONFLICT, node, "its state of the job is gone");
                return;
        }
        c->hinders = c->unusable_on;
        c->fault = c->unusable;
        act_node(c, COORDINATOR_HINDERED, c->hinders);
        joins_admit(c);
}

/* ---- what nodes tell ----------------------------------------------------------------- */

int state_told(struct coordinator *c, uint32_t node, const struct told_state *s,
               struct fault *fault)
{
        uint32_t holder = coordinator_holder(c, node, s->place.owner, s->place.copy);

        step_heard(&c->step, s->attempt);
        c->fresh[node] = c->fresh[node] && s->standing->fresh;
        if (s->place.epoch < c->step.placement.epoch) {
                node_set_add(&c->stale, node);
                return old_placements_hear(c->old_placements, node, &s->place, s->standing, s->puts,
                                           fault);
        }
        if (s->place.epoch > c->step.placement.epoch)
                return fault_set(fault, ZERO_EPROTO, "it has a state of a later owner list");
        if (holder == NO_HOLDER)
                return fault_set(fault, ZERO_EPROTO,
                                 "it has shards that the owner list gives to another node");
        c->standings[holder] = &c->standing_storage[holder];
        *c->standings[holder] = *s->standing;
        c->puts[holder] = s->puts;
        return 0;
}

/* False: the answer cannot be used.  The job is hindered, and the node counts as not asked. */
static bool node_told(struct coordinator *c, const struct coordinator_event *e)
{
        struct fault fault;
        uint32_t node = e->node;
        int r = 0;

        c->nodes[node] = NODE_KNOWN;
        c->created[node] = c->created[node] || e->created; /* the node may have been asked twice */
        c->lacks[node] = !e->known;
        c->fresh[node] = true;
        if (c->unusable_on == node)
                c->unusable.status = ZERO_OK;
        step_heard(&c->step, e->attempt);
        old_placements_retell(c->old_placements, node);
        if (!e->known)
                return true;
        for (uint32_t i = 0; i < e->n_states && !r; i++)
                r = state_told(c, node, &e->states[i], &fault);
        if (!r && e->status)
                r = fault_set(&fault, e->status, "%s", e->text);
        if (!r)
                return true;
        open_forget(c, node);
        open_hinder(c, r, node, fault.text);
        return false;
}

void open_answered(struct coordinator *c, const struct coordinator_event *e)
{
        if (node_told(c, e))
                open_settle(c);
        open_clash(c);
}

/* The node has a state file that it does not use: it lacks its state, but the job is not new. */
static void open_unusable(struct coordinator *c, const struct coordinator_event *e)
{
        node_told(c, &(struct coordinator_event){ .node = e->node });
        c->unusable_on = e->node;
        fault_set(&c->unusable, e->status, "node %s: %.400s", c->job.nodes[e->node], e->text);
        open_settle(c);
}

void open_failed(struct coordinator *c, const struct coordinator_event *e)
{
        struct fault fault;

        if (e->status == ZERO_EPEER) {
                c->nodes[e->node] = NODE_UNASKED; /* asked again when it is up */
        } else if (e->status == ZERO_EIO && !c->lacks[e->node]) {
                open_unusable(c, e);
        } else if (c->settled) {
                open_hinder(c, e->status, e->node, e->text);
        } else {
                if (e->status != ZERO_EDEADLINE) /* then this opening has created nothing there */
                        c->nodes[e->node] = NODE_UNASKED;
                fault_set(&fault, e->status, "node %s: %.300s", c->job.nodes[e->node], e->text);
                coordinator_end(c, fault.status, fault.text);
        }
        open_clash(c);
}

static void open_send(struct coordinator *c, uint32_t node, bool create)
{
        c->nodes[node] = NODE_ASKED;
        c->lacks[node] = create;
        c->rounds[node] = c->round;
        act(c,
            (struct coordinator_action){ .kind = COORDINATOR_ASK, .node = node, .flag = create });
}

void open_ask(struct coordinator *c, uint32_t node)
{
        open_send(c, node, false);
}

void open_ask_again(struct coordinator *c)
{
        for (uint32_t n = 0; n < c->job.n_nodes; n++)
                if (c->nodes[n] == NODE_AGAIN)
                        open_send(c, n, c->lacks[n]);
}

void open_forget(struct coordinator *c, uint32_t node)
{
        c->nodes[node] = NODE_UNASKED;
        c->round++;
        for (uint32_t h = 0; h < placement_holders(&c->step.placement); h++)
                if (holder_node(&c->step.placement, h) == node)
                        c->standings[h] = NULL;
        old_placement_forget_node(c, node);
}

void open_done(struct coordinator *c, uint32_t holder, uint64_t attempt)
{
        struct standing *s = holder == NO_HOLDER ? NULL : c->standings[holder];

        if (s && c->settled && attempt == c->step.decided_attempt) { /* it may have been behind */
                s->version = c->step.version;
                s->decided_attempt = attempt;
                s->decision = c->step.decision;
                s->skipped = c->step.skipped;
                s->prepared_attempt = 0;
        }
        if (s && s->decided_attempt == attempt)
                s->done = true;
        if (c->settled)
                step_done(&c->step, holder, attempt);
}

/* ---- where the job stands ------------------------------------------------------------ */

/* Compares a holder's standing with the others'. */
static int holder_open(struct coordinator *c, uint32_t holder, struct fault *fault)
{
        const struct recovery now = step_stands(&c->step);
        const struct standing *s = c->standings[holder];
        bool behind;

        if (recover_one(s, &now, &behind, fault))
                return fault->status;
        c->step.done[holder] = !behind && s->done;
        return 0;
}

/* Compares what the node has, and tells it the last decision in case the node missed it. */
static bool holders_fit(struct coordinator *c, uint32_t node)
{
        struct fault fault;
        int r = 0;

        for (uint32_t h = 0; h < placement_holders(&c->step.placement) && !r; h++)
                if (holder_node(&c->step.placement, h) == node && c->standings[h])
                        r = holder_open(c, h, &fault);
        if (r)
                open_hinder(c, ZERO_ECONFLICT, node, fault.text);
        else if (c->step.decided_attempt)
                act_node(c, COORDINATOR_TELL_DECISION, node);
        return r == 0;
}

/* Recovers where the job stands from at least one copy of each owner's states, in the placement in
 * force or in the old one. */
static void open_recover(struct coordinator *c)
{
        const struct placement *placement =
                c->whole ? &c->step.placement : &c->old_placement->placement;
        struct recovery r;
        struct fault fault;
        uint32_t odd = 0;
        int status;

        if (c->whole)
                status = recover((const struct standing *const *)c->standings, placement, &r, &odd,
                                 &fault);
        else
                status = old_placement_recover(c->old_placement, &r, &odd, &fault);
        if (status) {
                open_hinder(c, fault.status, holder_node(placement, odd), fault.text);
                return;
        }
        step_adopt(&c->step, &r);
        c->settled = true;
        act(c, (struct coordinator_action){ .kind = COORDINATOR_STANDS });
}

/*
 * Drops what an opening left that did not come to its end.  Some nodes have parts of the job on
 * which no rank has ever worked, and the others lack theirs.  The parts stay a while, in case a
 * rank comes for them.
 */
static void open_forsake(struct coordinator *c)
{
        if (!c->return_until_ms)
                c->return_until_ms = c->now_ms + RETURN_MS;
        if (c->now_ms < c->return_until_ms || !list_empty(&c->joins))
                return;
        for (uint32_t n = 0; n < c->job.n_nodes; n++)
                c->created[n] = c->nodes[n] == NODE_KNOWN && !c->lacks[n] && c->fresh[n];
        coordinator_end(c, ZERO_ENOJOB, "the job was never complete");
}

/* Creates the job on all owners, or, if no rank has ever worked on it, on those that lack it. */
static void open_create(struct coordinator *c)
{
        int32_t lost =
                recover_lost((const struct standing *const *)c->standings, &c->step.placement);
        bool some = false, fresh = true;

        for (uint32_t o = 0; o < c->step.placement.n_owners; o++) {
                uint32_t node = c->step.placement.node[o];

                if (c->lacks[node])
                        continue;
                some = true;
                fresh = fresh && c->fresh[node];
        }
        if ((some && !fresh) || c->unusable.status) {
                open_gone(c, c->step.placement.node[lost]);
        } else if (!c->may_create && some) {
                open_forsake(c);
        } else if (!c->may_create) {
                coordinator_end(c, ZERO_ENOJOB,
                                "the job is gone: it was dropped, or its "
                                "state was lost on all nodes");
        } else {
                for (uint32_t n = 0; n < c->job.n_nodes; n++)
                        if (is_holder(c, n) && c->lacks[n])
                                open_send(c, n, true);
                        else if (c->nodes[n] == NODE_KNOWN && !c->lacks[n])
                                c->created[n] = c->fresh[n]; /* an earlier opening made it */
        }
}

static bool holders_known(const struct coordinator *c)
{
        for (uint32_t o = 0; o < c->step.placement.n_owners; o++)
                if (c->nodes[c->step.placement.node[o]] != NODE_KNOWN)
                        return false;
        return true;
}

/* The nodes that have not told what they have. */
static node_set others_unknown(const struct coordinator *c)
{
        node_set unknown = { 0 };

        for (uint32_t n = 0; n < c->job.n_nodes; n++)
                if (c->nodes[n] != NODE_KNOWN)
                        node_set_add(&unknown, n);
        return unknown;
}

/*
 * A job that would be created does not wait for nodes that were declared dead.  A job that would go
 * back to earlier states does, because some of it is known to be lost.
 */
static node_set find_untold(const struct coordinator *c, enum opening_choice choice,
                            const struct old_placement *old_placement)
{
        node_set unknown = others_unknown(c), dead = c->step.placement.dead;

        if (choice == OPENING_MOVES)
                return unknown & lists_untold(&c->step.placement,
                                              old_placement->placement.epoch + 1, ~unknown);
        if (choice == OPENING_MAKES)
                return unknown & ~dead & lists_untold(&c->step.placement, 0, ~unknown | dead);
        return (node_set){ 0 };
}

/*
 * True: the job waits for nodes that have not told what they have.  Those that hold nothing in the
 * list in force may have newer states than the known ones.  The job does not wait forever, because
 * such a node may hang.
 *
 * A node that is not linked is restarting or dead, so it gets less time.  It gets full time if
 * there are lists between the old one and the one in force (gap).  Another node that knew of such a
 * list may have lost its memory.  For nodes that alone may have the newest state (untold), the job
 * waits without end.
 */
static bool others_wait(struct coordinator *c, bool gap)
{
        node_set unknown = others_unknown(c);
        bool first = c->others_until_ms == 0, waited = false;

        if (first)
                c->others_until_ms = c->now_ms + OTHERS_MS;
        for (uint32_t n = 0; n < c->job.n_nodes; n++) {
                bool patient = gap || node_set_has(c->linked, n);
                uint64_t until = c->others_until_ms - (patient ? 0 : OTHERS_MS - AWAY_MS);

                waited = waited || (node_set_has(unknown, n) && c->now_ms < until);
        }
        for (uint32_t n = 0; n < c->job.n_nodes; n++) {
                if (!node_set_has(unknown, n) || (waited ? !first : node_set_has(c->missed, n)))
                        continue;
                act(c, (struct coordinator_action){
                               .kind = COORDINATOR_UNKNOWN, .node = n, .flag = waited });
                if (!waited)
                        node_set_add(&c->missed, n);
        }
        return waited || node_set_any(c->untold);
}

/* Chooses the states on which the job stands, after all nodes of the placement in force have
 * answered. */
static void open_choose(struct coordinator *c)
{
        struct old_placement *old_placement = NULL;
        enum opening_choice choice =
                opening_choose((const struct standing *const *)c->standings, &c->step.placement,
                               c->old_placements, ~others_unknown(c), &old_placement);
        bool first = choice == OPENING_MAKES &&
                     c->step.placement.epoch == 0; /* no other node can have the job */
        bool gap = choice == OPENING_MOVES &&
                   old_placement->placement.epoch + 1 < c->step.placement.epoch;

        c->untold = find_untold(c, choice, old_placement);
        c->may_be_there = choice == OPENING_MAKES;
        if (choice != OPENING_STANDS && !first && others_wait(c, gap))
                return;
        c->others_until_ms = 0;
        c->missed = (node_set){ 0 };
        c->old_placement = old_placement;
        switch (choice) {
        case OPENING_STANDS:
        case OPENING_MOVES:
                c->whole = choice == OPENING_STANDS;
                open_recover(c);
                break;
        case OPENING_MAKES:
                open_create(c);
                break;
        case OPENING_WAITS:
                break;
        }
}

/* True if the node may delete its earlier states.  It may not if somebody has worked on those and
 * nobody on the states in force. */
static bool earlier_may_go(const struct coordinator *c, uint32_t node)
{
        bool fresh = !c->step.started;

        for (uint32_t h = 0; h < placement_holders(&c->step.placement); h++)
                fresh = fresh && (!c->standings[h] || c->standings[h]->fresh);
        return c->fresh[node] || !fresh;
}

static void node_open(struct coordinator *c, uint32_t node)
{
        c->nodes[node] = NODE_OPEN;
        if (step_node_has_ranks(&c->step, node))
                c->return_until_ms = c->now_ms + RETURN_MS;
        step_node_open(&c->step, node);
        if (node_set_has(c->stale, node) && earlier_may_go(c, node))
                placed_tell(c, node);
}

/* Opens the nodes that have answered since. */
static void open_nodes(struct coordinator *c)
{
        for (uint32_t n = 0; n < c->job.n_nodes && !c->fault.status; n++) {
                if (c->nodes[n] != NODE_KNOWN)
                        continue;
                if (!is_holder(c, n) && c->lacks[n])
                        open_send(c, n, true);
                else if (holders_fit(c, n) && !placing_lacks(c, n))
                        node_open(c, n);
        }
}

void open_settle(struct coordinator *c)
{
        c->fault.status = 0; /* the node that was in the way may have returned */
        if (!c->settled && holders_known(c))
                open_choose(c);
        if (!c->dead && c->settled && c->whole)
                open_nodes(c);
        if (!c->dead && c->settled) {
                placing_advance(c);
                joins_admit(c);
        }
}
