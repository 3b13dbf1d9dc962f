/*
 * Bringing a job's states to where the placement in force has them.
 *
 * Where the job stands was told by the states of the placement in force, or, if those are not
 * whole, of the one before (coordinator.former).  In the second case nodes first carry out on
 * them what was decided (Settle); then every holder of the placement in force is filled from
 * them, and when all are, the old ones are deleted (Placed).  In the first case only holders
 * that have lost their state, or missed a client's put, are filled, from their twins.
 * No step starts meanwhile: a node with a holder that lacks its state is not open.
 */
#include "daemon/coordinator/coordinator.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/base/crash.h"
#include "daemon/base/log.h"
#include "proto/cleanup.h"

/* A question or a fill whose answer is to come. */
struct asked {
        struct coordinator *c;
        uint32_t of;    /* node, or holder */
        uint64_t epoch; /* of the answer's states */
};

static struct asked *asked_new(struct coordinator *c, uint32_t of, uint64_t epoch)
{
        struct asked *a = malloc(sizeof *a);

        if (!a)
                abort(); /* some bytes: nothing sensible is left to do */
        *a = (struct asked){ c, of, epoch };
        c->references++;
        return a;
}

/* ---- what nodes hold of the placement before ---------------------------------------------- */

int former_known(struct coordinator *c, uint32_t node, const Zero__Standing *m,
                 const struct standing *standing, struct fault *fault)
{
        const struct state_place of = { m->placement, m->n_owners, m->owner, m->copy };

        c->stale |= 1ull << node;
        return formers_hear(c->formers, node, &of, standing, m->puts, fault);
}

void former_forget_node(struct coordinator *c, uint32_t node)
{
        const struct recovery now = step_stands(&c->step);

        formers_forget_node(c->formers, node);
        c->stale &= ~(1ull << node);
        if (c->settled && !c->whole && !former_covers(c->former, &now))
                c->settled = false; /* another one may be there; else the node is waited for */
}

/* ---- Settle ---------------------------------------------------------------------------------- */

static void settle_answered(void *arg, int status, const char *text, const Zero__LinkMessage *m)
{
        struct asked *a = arg;
        struct coordinator *c = a->c;
        uint64_t node = 1ull << a->of;

        if (!c->dead && c->former && a->epoch == c->former->place.epoch &&
            c->former->settling & node) {
                c->former->settling &= ~node;
                if (status == ZERO_OK)
                        c->former->settled |= node;
                else if (status != ZERO_EPEER)
                        open_hinder(c, status, a->of, text);
                placing_advance(c);
        }
        coordinator_unref(c);
        free(a);
}

static void settle_ask(struct coordinator *c, uint32_t node)
{
        Zero__LinkMessage m = coordinator_to(c);
        Zero__Settle settle = ZERO__SETTLE__INIT;
        Zero__Decision last = ZERO__DECISION__INIT;

        settle.placement = c->former->place.epoch;
        if (c->step.decided_attempt) {
                decision_fill(c, &last);
                settle.last = &last;
        }
        m.body_case = ZERO__LINK_MESSAGE__BODY_SETTLE;
        m.settle = &settle;
        c->former->settling |= 1ull << node;
        call_send(c->x, node, &m, CALL_MS, settle_answered,
                  asked_new(c, node, c->former->place.epoch));
}

/* True: they stand where the job does. */
static bool former_settle(struct coordinator *c)
{
        const struct recovery now = step_stands(&c->step);
        uint64_t nodes = former_unsettled(c->former, &now);

        for (uint32_t n = 0; n < c->x->cluster->n_nodes; n++)
                if (nodes >> n & 1)
                        settle_ask(c, n);
        return former_settled(c->former, &now);
}

/* ---- a node refuses its part ------------------------------------------------------------- */

/* No further try would change that. */
static bool is_final(int status)
{
        return status == ZERO_ENOMEM || status == ZERO_ESHM || status == ZERO_EQUOTA ||
               status == ZERO_EIO || status == ZERO_EPERM || status == ZERO_ELAYOUT;
}

/*
 * The list that the one in force came after, and all of whose nodes are there with what they had.
 * So what was taken back is not taken back again: of the job nothing is left of the list between.
 */
static bool may_go_back(const struct coordinator *c)
{
        const struct former *f = c->former;

        if (c->whole || !f || f->place.epoch + 1 != c->step.view.epoch)
                return false;
        for (uint32_t o = 0; o < f->place.n_owners; o++)
                if (f->place.node[o] >= c->x->cluster->n_nodes ||
                    !(c->x->up >> f->place.node[o] & 1))
                        return false;
        return true;
}

static void go_back(struct coordinator *c)
{
        if (may_go_back(c))
                view_take_back(c->x, &c->former->place, c->refused.text);
        else
                c->refused.status = 0; /* it is tried again */
}

static void refuse(struct coordinator *c, int status, uint32_t node, const char *why)
{
        if (!may_go_back(c)) {
                fault_set(&c->fault, status,
                          "node %s does not take its shards (give it what it lacks and start its "
                          "daemon again): %.250s",
                          node_name(c->x, node), why);
                log_error_for(c->uid, "job %s: %s", c->name, c->fault.text);
                joins_admit(c);
                return;
        }
        fault_set(&c->refused, status, "node %s does not take its shards of job %s: %.250s",
                  node_name(c->x, node), c->name, why);
        log_error("%s; the owners before, of epoch %llu, come back", c->refused.text,
                  (unsigned long long)c->former->place.epoch);
        go_back(c);
}

/* ---- fills -------------------------------------------------------------------------------------
 */

static void fill_ended(void *arg, int status, const char *text, const Zero__Standing *standing)
{
        struct asked *a = arg;
        struct coordinator *c = a->c;
        uint32_t node = holder_node(&c->step.view, a->of);
        struct fault fault;

        c->fills[a->of] = NULL;
        c->round++; /* puts may have missed what lacked its state, or have changed what gave it */
        if (c->dead || c->nodes[node] != NODE_KNOWN) {
                ; /* asked again when it has come anew */
        } else if (status == ZERO_OK && standing_known(c, node, standing, &fault)) {
                open_hinder(c, fault.status, node, fault.text);
        } else if (status == ZERO_OK) {
                c->lacks[node] = false;
                log_info_for(c->uid, "job %s: the shards of owner %u are on node %s again", c->name,
                             holder_owner(&c->step.view, a->of), node_name(c->x, node));
                open_settle(c);
        } else if (status == ZERO_EPEER || status == ZERO_EBUSY || status == ZERO_EABORTED ||
                   status == ZERO_ENOJOB) { /* a source that lost what it had, say */
                log_warning("job %s: node %s did not get its shards: %s; trying again", c->name,
                            node_name(c->x, node), text);
        } else if (is_final(status) && !c->whole) {
                refuse(c, status, node, text);
        } else {
                open_hinder(c, status, node, text);
        }
        coordinator_unref(c);
        free(a);
}

static void fill_ask(struct coordinator *c, uint32_t holder, const struct placement *from,
                     const bool *readable, const uint64_t *source_puts, uint64_t puts)
{
        Zero__Decision last = ZERO__DECISION__INIT;
        struct fill_order order = { .job = c->name,
                                    .uid = c->uid,
                                    .world_size = c->step.world_size,
                                    .reduce_dtype = c->reduce_dtype,
                                    .layout = c->message,
                                    .from = from,
                                    .to = &c->step.view,
                                    .holder = holder,
                                    .version = c->step.version,
                                    .puts = puts,
                                    .readable = readable,
                                    .source_puts = source_puts };
        struct asked *a = asked_new(c, holder, from->epoch);

        step_heard(&c->step, c->step.attempt);
        order.attempt = c->step.heard + 1;
        if (c->step.decided_attempt) {
                decision_fill(c, &last);
                order.last = &last;
        }
        c->fills[holder] = fill_start(c->x, &order, fill_ended, a);
        if (c->fills[holder])
                return;
        coordinator_unref(c); /* again at the next tick */
        free(a);
}

/* Puts count from anew: both copies are filled with the same number. */
static void fill_from_former(struct coordinator *c, uint32_t holder)
{
        const struct recovery now = step_stands(&c->step);
        const struct former *f = c->former;
        bool readable[HOLDER_MAX] = { false };

        for (uint32_t h = 0; h < placement_holders(&f->place); h++)
                readable[h] = former_gives(f, h, &now);
        fill_ask(c, holder, &f->place, readable, f->puts, 0);
}

static uint32_t twin_of(const struct placement *p, uint32_t holder)
{
        return holder_of(p, holder_owner(p, holder), 1 - holder_copy(p, holder));
}

/* It is there, and has nothing to carry out any more. */
static bool twin_ready(const struct coordinator *c, uint32_t twin)
{
        const struct recovery now = step_stands(&c->step);

        return c->nodes[holder_node(&c->step.view, twin)] >= NODE_KNOWN &&
               twin_gives(c->standings[twin], &now, c->step.done[twin]);
}

/* No other copy of a lacking holder's shards is there, or will come. */
static bool is_gone(const struct coordinator *c, uint32_t holder)
{
        uint32_t twin;

        if (c->step.view.copies < 2)
                return true;
        twin = twin_of(&c->step.view, holder);
        return !c->standings[twin] && c->nodes[holder_node(&c->step.view, twin)] >= NODE_KNOWN;
}

static void fill_from_twin(struct coordinator *c, uint32_t holder)
{
        bool readable[HOLDER_MAX] = { false };
        uint32_t twin;

        if (is_gone(c, holder)) {
                open_hinder(c, ZERO_ECONFLICT, holder_node(&c->step.view, holder),
                            "its state of the job is gone");
                return;
        }
        twin = twin_of(&c->step.view, holder);
        if (!twin_ready(c, twin))
                return;
        readable[twin] = true;
        fill_ask(c, holder, &c->step.view, readable, c->puts, c->puts[twin]);
}

/* ---- what is still to be done ---------------------------------------------------------------- */

bool placing_is_lacking(const struct coordinator *c, uint32_t holder)
{
        const struct recovery now = step_stands(&c->step);

        return holder_lacks(c->standings[holder], &now, c->whole);
}

/* NO_HOLDER: there is no other copy that is known, or the holder's own is not. */
static uint32_t known_twin(const struct coordinator *c, uint32_t holder)
{
        uint32_t twin = c->step.view.copies < 2 ? NO_HOLDER : twin_of(&c->step.view, holder);

        return twin != NO_HOLDER && c->standings[holder] && c->standings[twin]
                       ? twin
                       : (uint32_t)NO_HOLDER;
}

/* It has answered in this round: what was told before may be long past, as puts may have come. */
static bool is_fresh(const struct coordinator *c, uint32_t holder)
{
        uint32_t node = holder_node(&c->step.view, holder);

        return c->nodes[node] >= NODE_KNOWN && c->rounds[node] == c->round;
}

static void ask_anew(struct coordinator *c, uint32_t holder)
{
        uint32_t node = holder_node(&c->step.view, holder);

        if (c->nodes[node] < NODE_KNOWN || is_fresh(c, holder))
                return;
        step_node_shut(&c->step, node);
        open_ask(c, node);
}

/* The other copy, where there is one, is known to have the same puts of clients. */
static bool is_like_twin(const struct coordinator *c, uint32_t holder)
{
        uint32_t twin = known_twin(c, holder);

        return twin == NO_HOLDER ||
               (is_fresh(c, holder) && is_fresh(c, twin) && c->puts[holder] == c->puts[twin]);
}

/*
 * Of two copies, one has missed a put: the mirror is made anew.  They are compared when one of
 * their nodes is to be opened.
 */
static bool is_outdated(struct coordinator *c, uint32_t holder)
{
        uint32_t twin = known_twin(c, holder);

        if (is_like_twin(c, holder) || (c->nodes[holder_node(&c->step.view, holder)] == NODE_OPEN &&
                                        c->nodes[holder_node(&c->step.view, twin)] == NODE_OPEN))
                return false;
        ask_anew(c, holder);
        ask_anew(c, twin);
        return is_fresh(c, holder) && is_fresh(c, twin) && holder_copy(&c->step.view, holder) == 1;
}

bool placing_lacks(const struct coordinator *c, uint32_t node)
{
        for (uint32_t h = 0; h < placement_holders(&c->step.view); h++)
                if (holder_node(&c->step.view, h) == node &&
                    (placing_is_lacking(c, h) || (c->whole && !is_like_twin(c, h))))
                        return true;
        return false;
}

static bool some_lack(const struct coordinator *c)
{
        for (uint32_t h = 0; h < placement_holders(&c->step.view); h++)
                if (placing_is_lacking(c, h))
                        return true;
        return false;
}

static void fill_lacking(struct coordinator *c)
{
        for (uint32_t h = 0; h < placement_holders(&c->step.view); h++) {
                if (c->fills[h])
                        continue;
                if (!placing_is_lacking(c, h) && !(c->whole && is_outdated(c, h)))
                        continue;
                if (c->nodes[holder_node(&c->step.view, h)] != NODE_KNOWN)
                        continue;
                if (c->whole)
                        fill_from_twin(c, h);
                else
                        fill_from_former(c, h);
        }
}

void placed_tell(struct coordinator *c, uint32_t node)
{
        Zero__LinkMessage m = coordinator_to(c);
        Zero__Placed placed = ZERO__PLACED__INIT;

        placed.placement = c->step.view.epoch;
        m.body_case = ZERO__LINK_MESSAGE__BODY_PLACED;
        m.placed = &placed;
        fabric_send(c->x->fabric, node, &m);
        c->stale &= ~(1ull << node);
}

void placing_advance(struct coordinator *c)
{
        if (!c->settled || c->fault.status)
                return;
        if (c->refused.status) {
                go_back(c);
        } else if (c->whole) {
                fill_lacking(c);
        } else if (!some_lack(c)) { /* also where those that they were filled from are gone */
                c->whole = true;
                crash_point(CRASH_MOVE_WHOLE);
                log_info_for(c->uid, "job %s: all its shards are where owner list %llu has them",
                             c->name, (unsigned long long)c->step.view.epoch);
                coordinator_tell(c); /* that it moves no more */
                open_settle(c);
        } else if (former_settle(c)) {
                fill_lacking(c);
        }
}
