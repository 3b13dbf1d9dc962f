/* Drives rules/paxos.h over the links; see membership.h. */
#include "daemon/cluster/membership/membership.h"

#include <assert.h>
#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>

#include "daemon/cluster/checkpoint/checkpoint.h"
#include "daemon/floor/base/log.h"
#include "proto/cleanup.h"

enum { RETRY_MS = 1500, PAUSE_MS = 50, PAUSE_MORE_MS = 400, COMPLETE_MS = 3000 };

static void membership_next(struct membership *v);

/* ---- what is known ---- */

static void list_owners(const struct engine *x, const struct placement *p, char *text, size_t n)
{
        size_t at = 0;

        text[0] = 0;
        for (uint32_t o = 0; o < p->n_owners && at < n; o++)
                at += (size_t)snprintf(text + at, n - at, "%s%s", o ? " " : "",
                                       node_name(x, p->node[o]));
}

const struct placement *membership_chosen(const struct engine *x)
{
        return &x->membership->durable.chosen;
}

const struct placement *membership_undecided(const struct engine *x)
{
        const struct paxos *r = &x->membership->r;

        return paxos_undecided(r) ? &r->record.value : NULL;
}

bool membership_votes(const struct engine *x)
{
        return x->membership->r.record.voter;
}

bool membership_changing(const struct engine *x)
{
        const struct membership *v = x->membership;

        return v && (v->change || v->r.phase != PAXOS_IDLE || paxos_undecided(&v->r));
}

/* Says if the placement can change now: ZERO_OK, or why not.  Two things hinder it: a job that is
 * being restored, and a disk or driver that holds up work for which the restart would wait.
 * Checkpoints, looks and work that the kernel ends by itself do not: users cause them at will. */
static int membership_hindered(const struct engine *x, struct fault *fault)
{
        if (loadings_any(x))
                return fault_set(fault, ZERO_EBUSY, "a job is being restored on node %s: try again",
                                 node_name(x, x->cluster->self));
        for (enum lane lane = 0; lane < LANES; lane++) {
                struct lane_load load = blocking_load(x->blocking, lane);

                if (lane != LANE_CHECKPOINTS && lane != LANE_LOOKS && lane != LANE_PLACES &&
                    load.stop != LANE_AWAITED && load.oldest_ms > LANE_LATE_MS)
                        return fault_set(fault, ZERO_EBUSY,
                                         "node %s waits %s: try again when its disk or driver has "
                                         "answered",
                                         node_name(x, x->cluster->self), load.oldest);
        }
        return 0;
}

static node_set reachable(const struct engine *x)
{
        return x->linked | node_set_of(x->cluster->self);
}

/* The nodes whose votes are missing.  While this node writes its own vote, that is this node. */
static node_set still_to_vote(const struct membership *v, node_set dead)
{
        if (v->writing || v->r.phase == PAXOS_IDLE)
                return node_set_of(v->x->cluster->self);
        return paxos_voters(&v->r, dead) & ~v->r.votes;
}

void membership_describe(const struct engine *x, node_set dead, struct wait_line *ret)
{
        node_set away = paxos_voters(&x->membership->r, dead) & ~reachable(x);
        node_set who = node_set_any(away) ? away : still_to_vote(x->membership, dead);
        uint32_t n = node_set_count(reachable(x) & ~dead), at = 0;

        for (uint32_t i = 0; i < x->cluster->n_nodes && at < sizeof ret->who; i++)
                if (node_set_has(who, i))
                        at += (uint32_t)snprintf(ret->who + at, sizeof ret->who - at, "%s%s",
                                                 at ? ", " : "node ", node_name(x, i));
        if (!node_set_any(away)) {
                snprintf(ret->what, sizeof ret->what, "to write a vote to membership_dir");
                return;
        }
        snprintf(ret->what, sizeof ret->what,
                 "%u of %u nodes can vote, %u must: start them, or see takeover in zeroctl(1)%s", n,
                 x->cluster->n_nodes, paxos_quorum(x->cluster->n_nodes, dead),
                 x->membership->r.record.voter
                         ? ""
                         : " (this node has no record of votes: it must hear from all others)");
}

/* ---- adopting ---- */

static bool is_in_force(const struct engine *x, const struct placement *p)
{
        return p->epoch == x->placement.epoch && placement_same_owners(p, &x->placement);
}

static void membership_tell(const struct engine *x, const struct placement *p)
{
        char owners[1024];

        list_owners(x, p, owners, sizeof owners);
        log_info("epoch %llu: the owners are %s", (unsigned long long)p->epoch, owners);
}

/* ---- a client's change ---- */

static void change_end(struct membership *v, int status, const char *text)
{
        struct membership_change *c = STEAL(v->change);

        if (c)
                c->done(c, status, text);
}

static void change_over(struct membership *v)
{
        const struct placement *chosen = &v->r.record.chosen;
        char text[1200], owners[1024];

        if (paxos_won(&v->r)) {
                change_end(v, ZERO_OK, "");
                return;
        }
        list_owners(v->x, chosen, owners, sizeof owners);
        snprintf(text, sizeof text,
                 "another change came first: in epoch %llu the owners are %s; ask again if you "
                 "still want your change",
                 (unsigned long long)chosen->epoch, owners);
        change_end(v, ZERO_ECONFLICT, text);
}

static void change_refused(struct membership *v, uint32_t node, int status, const char *text)
{
        char whole[700];

        if (v->r.phase == PAXOS_IDLE)
                return;
        snprintf(whole, sizeof whole, "node %s: %s", node_name(v->x, node), text);
        paxos_give_up(&v->r);
        if (!v->change)
                log_debug("cannot complete a change that began earlier: %s", whole);
        change_end(v, status, whole);
}

/* ---- one event after the other ---- */

static void split_found(struct membership *v, uint32_t node)
{
        struct engine *x = v->x;

        if (!v->split_told[node])
                log_error("node %s has other owners for epoch %llu: each side was told that the "
                          "other is dead. Stop the daemons of the side that you give up, move its "
                          "files in membership_dir away, and start them again: they learn from the "
                          "others",
                          node_name(x, node), (unsigned long long)v->r.record.chosen.epoch);
        v->split_told[node] = true;
        fabric_cut(x->fabric, node, "it has other owners for the same epoch: see the log");
}

static void membership_pause(struct membership *v, uint32_t actions)
{
        uint64_t now = engine_now(v->x);

        if (actions & PAXOS_BEATEN)
                v->retry_ms = now + PAUSE_MS + randombytes_uniform(PAUSE_MORE_MS);
        else if (actions & PAXOS_ASK)
                v->retry_ms = now + RETRY_MS + randombytes_uniform(PAUSE_MORE_MS);
}

/* Carries out the actions of an event whose record is durable. */
static void membership_speak(struct membership *v, uint32_t actions, uint32_t from)
{
        struct engine *x = v->x;

        if (actions & PAXOS_CHOSEN)
                membership_tell(x, &v->r.record.chosen);
        if (actions & PAXOS_ANSWER)
                membership_send(x, from, &v->r.answer, NULL);
        for (uint32_t n = 0; actions & PAXOS_ASK && n < x->cluster->n_nodes; n++)
                if (node_set_has(v->r.to, n))
                        membership_send(x, n, &v->r.ask, NULL);
        membership_pause(v, actions);
        if (actions & PAXOS_OVER)
                change_over(v);
        if (actions & PAXOS_SPLIT)
                split_found(v, from);
        if (v->r.record.chosen.epoch < x->placement.epoch || is_in_force(x, &v->r.record.chosen))
                return;
        if (v->change)
                change_over(v);
        x->node->placement_chosen(x->node_arg);
}

static void membership_write(struct blocking_work *disk)
{
        struct membership *v = CONTAINER_OF(disk, struct membership, disk);

        v->written = ballots_write(v->ballots, &v->record);
}

/* Takes the event back after a failed write: nobody has heard of it. */
static void membership_unwritten(struct membership *v)
{
        char text[300];

        snprintf(text, sizeof text, "this node's vote cannot be written to %s: %s",
                 v->x->conf->membership_dir, strerror(-v->written));
        log_error("%s", text);
        v->r.record = v->durable;
        paxos_give_up(&v->r);
        change_end(v, ZERO_EIO, text);
}

static void membership_written(struct blocking_work *disk)
{
        struct membership *v = CONTAINER_OF(disk, struct membership, disk);

        v->writing = false;
        if (v->written) {
                membership_unwritten(v);
        } else {
                v->durable = v->r.record;
                membership_speak(v, v->actions, v->from);
        }
        membership_next(v);
}

static void membership_act(struct membership *v, uint32_t actions, uint32_t from)
{
        assert(!v->writing);
        if (!(actions & PAXOS_WRITE)) {
                membership_speak(v, actions, from);
                return;
        }
        v->actions = actions;
        v->from = from;
        v->writing = true;
        record_to_ballots(&v->r.record, &v->record);
        v->disk = (struct blocking_work){ .run = membership_write,
                                          .done = membership_written,
                                          .what = "to write membership_dir" };
        blocking_submit(v->x->blocking, LANE_VOTES, &v->disk);
}

/* ---- other nodes ---- */

/* Refuses a placement that is not chosen yet if something hinders the change. */
static bool membership_refuse(struct membership *v, uint32_t node, const struct paxos_message *m)
{
        struct engine *x = v->x;
        struct fault fault = { 0 };

        if (m->kind != PAXOS_PREPARE && m->kind != PAXOS_ACCEPT)
                return false;
        for (uint32_t n = 0; n < x->cluster->n_nodes && !fault.status; n++)
                if (node_set_has(m->dead & x->linked, n))
                        fault_set(&fault, ZERO_ECONFLICT,
                                  "the change declares node %s dead, but the node's daemon answers "
                                  "here",
                                  node_name(x, n));
        if (!fault.status && !membership_hindered(x, &fault))
                return false;
        paxos_up(&v->r);
        v->r.answer.ballot = m->ballot; /* the refused ballot */
        membership_send(x, node, &v->r.answer, &fault);
        return true;
}

static void membership_hear(struct membership *v, uint32_t node, const struct paxos_message *m)
{
        if (membership_refuse(v, node, m))
                return;
        membership_act(v, paxos_hear(&v->r, node, m), node);
}

/* Handles the messages that came during a write, until one needs another write. */
static void membership_next(struct membership *v)
{
        for (uint32_t n = 0; n < v->x->cluster->n_nodes && !v->writing; n++) {
                struct membership_waiting *w = &v->waiting[n];

                if (!w->there)
                        continue;
                w->there = false;
                membership_hear(v, n, &w->m);
        }
}

void membership_message(struct engine *x, uint32_t node, const Zero__LinkMessage *m)
{
        struct membership *v = x->membership;
        struct paxos_message heard;

        if (!v)
                return;
        if (node == x->cluster->self || membership_receive(x, node, m->vote, &heard)) {
                fabric_cut(x->fabric, node,
                           "its vote is malformed, made under another node's ballot, or declares "
                           "this node dead");
                return;
        }
        if (m->status && heard.ballot == v->r.ballot)
                change_refused(v, node, (int)m->status, m->text);
        v->waiting[node] = (struct membership_waiting){ .there = true, .m = heard };
        membership_next(v);
}

void membership_up(struct engine *x, uint32_t node)
{
        struct membership *v = x->membership;
        struct paxos_message state = { .kind = PAXOS_STATE };

        if (!v)
                return;
        state.record = v->durable;
        membership_send(x, node, &state, NULL);
}

/* ---- proposing ---- */

static void membership_propose(struct membership *v, const struct placement *wanted, node_set dead)
{
        uint32_t actions = 0;

        if (paxos_propose(&v->r, wanted, dead, &actions, NULL) == 0)
                membership_act(v, actions, v->x->cluster->self);
}

static void change_begin(struct membership *v)
{
        struct membership_change *c = v->change;

        if (c->wanted.epoch != v->r.record.chosen.epoch) { /* planned for another placement */
                v->r.wanted = c->wanted;
                change_over(v);
                return;
        }
        membership_propose(v, &c->wanted, c->dead);
}

/* True if enough nodes for a decision are up. */
static bool votes_there(const struct membership *v, node_set dead)
{
        return node_set_count(reachable(v->x) & ~dead) >=
               paxos_quorum(v->x->cluster->n_nodes, dead);
}

static bool complete_due(const struct membership *v)
{
        return paxos_undecided(&v->r) && engine_now(v->x) >= v->complete_ms &&
               membership_hindered(v->x, NULL) == 0 && votes_there(v, NODE_SET_NONE);
}

static void membership_complete(struct membership *v)
{
        const struct placement value = v->r.record.value;

        v->complete_ms = engine_now(v->x) + COMPLETE_MS + randombytes_uniform(COMPLETE_MS);
        membership_propose(v, &value, NODE_SET_NONE);
}

/* Begins the change back once no client's change is in progress. */
static void membership_back_tick(struct engine *x)
{
        struct membership *v = x->membership;

        if (v->back.wished && !v->change && membership_change(x, &v->back.change, NULL))
                v->back.wished = false;
}

static void membership_tick(struct engine *x)
{
        struct membership *v = x->membership;

        if (!v || v->writing || x->stopping)
                return;
        membership_back_tick(x);
        if (v->r.phase != PAXOS_IDLE) {
                if (engine_now(x) >= v->retry_ms && votes_there(v, v->r.dead))
                        membership_act(v, paxos_retry(&v->r), x->cluster->self);
        } else if (v->change) {
                change_begin(v);
        } else if (complete_due(v)) {
                membership_complete(v);
        }
}

int membership_change(struct engine *x, struct membership_change *change, struct fault *fault)
{
        struct membership *v = x->membership;
        int r;

        if (v->change)
                return fault_set(fault, ZERO_EBUSY, "another change of the owners is in progress");
        r = membership_hindered(x, fault);
        if (r)
                return r;
        v->change = change;
        return 0;
}

void membership_forget(struct engine *x, const struct membership_change *change)
{
        struct membership *v = x->membership;

        if (v->change != change)
                return;
        v->change = NULL;
        paxos_give_up(&v->r);
        v->complete_ms = engine_now(x) + COMPLETE_MS;
}

/* ---- taking a change back ---- */

/* The change back is chosen or has failed.  The node keeps the first reason, for clients that ask
 * what became of their change. */
static void back_done(struct membership_change *change, int status, const char *text)
{
        struct membership_back *b = CONTAINER_OF(change, struct membership_back, change);

        b->wished = false; /* while the node refuses, the job's coordinator asks again */
        if (status == ZERO_OK)
                b->x->taken_back = b->note;
        else
                log_warning("cannot take the change of owners back yet: %s", text);
}

void membership_take_back(struct engine *x, const struct placement *before, const char *why)
{
        struct membership *v = x->membership;

        if (!v || v->back.wished || v->durable.chosen.epoch != x->placement.epoch)
                return;
        v->back = (struct membership_back){ .x = x,
                                            .wished = true,
                                            .note = { .epoch = x->placement.epoch } };
        snprintf(v->back.note.why, sizeof v->back.note.why, "%s", why);
        placement_init(&v->back.change.wanted, x->placement.epoch, before->node, before->n_owners,
                       x->cluster->mirror);
        v->back.change.done = back_done;
}

void membership_back_forget(struct engine *x)
{
        if (x->membership && x->membership->back.wished)
                membership_forget(x, &x->membership->back.change);
}

/* ---- start and stop ---- */

static int is_some(const char *file, void *arg)
{
        return 1;
}

struct misfit {
        const struct engine *x;
        struct fault *fault;
};

/* Returns an error if the state was cut for another number of owners than the configuration has. */
static int is_misfit(const char *file, void *arg)
{
        const struct misfit *m = arg;
        struct state_identity id;

        if (state_file_look(m->x->store, file, &id, m->fault) || id.epoch ||
            id.n_owners == m->x->placement.n_owners)
                return 0;
        return fault_set(m->fault, ZERO_EINVAL,
                         "state file %s is cut for %u owners, and `owners` says %u: set `owners` "
                         "on every node to what it was then, and add nodes with zeroctl add-node",
                         file, id.n_owners, m->x->placement.n_owners);
}

static int record_read(struct engine *x, struct ballots **ret, struct ballots_record *ret_record,
                       bool *ret_found, struct fault *fault)
{
        const struct cluster *cluster = x->cluster;
        uint8_t clusters[ZERO_NODE_MAX][BALLOTS_CLUSTER];
        struct ballots_place place = { .directory = x->conf->membership_dir,
                                       .node = node_name(x, cluster->self),
                                       .clusters = clusters,
                                       .states = store_each(x->store, is_some, NULL) != 0 };
        int r;

        for (uint32_t n = cluster->n_nodes; n > 1; n--)
                cluster_hash(cluster, n, clusters[place.n_clusters++]);
        r = place.n_clusters ? ballots_open(&place, ret, ret_record, ret_found, fault) : 0;
        if (!r && !*ret_found)
                r = store_each(x->store, is_misfit, &(struct misfit){ x, fault });
        return r < 0 ? 0 : r; /* a file that cannot be read is no misfit */
}

int membership_start(struct engine *x, struct fault *fault)
{
        struct paxos_record record;
        struct ballots_record b = { 0 };
        struct membership *v = calloc(1, sizeof *v);
        bool found = false;
        int r;

        if (!v)
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        v->x = x;
        x->membership = v;
        r = record_read(x, &v->ballots, &b, &found, fault);
        if (!r && found && !record_from_ballots(x, &b, &record))
                r = fault_set(fault, ZERO_EIO,
                              "the file of votes in %s has owners or ballots that this cluster "
                              "cannot have: start with the `peers` that it was written with, or "
                              "move it away and start while all other nodes are up",
                              x->conf->membership_dir);
        if (r)
                return r;
        paxos_init(&v->r, x->cluster->n_nodes, x->cluster->self, &x->placement,
                   found ? &record : NULL);
        v->durable = v->r.record;
        if (!is_in_force(x, &v->r.record.chosen)) {
                x->placement = v->r.record.chosen;
                membership_tell(x, &x->placement);
        }
        return drained_start(x, fault);
}

static bool membership_idle(const struct engine *x)
{
        return !x->membership || (!x->membership->writing && drained_idle(x));
}

void membership_free(struct engine *x)
{
        struct membership *v = STEAL(x->membership);

        if (!v)
                return;
        assert(!v->writing && !v->change);
        ballots_close(v->ballots);
        drained_free(v);
        free(v);
}

static int membership_admit(struct engine *x, const char *name, uint32_t uid, uint64_t *n_jobs,
                            struct fault *fault)
{
        if (membership_changing(x))
                return fault_set(fault, ZERO_EBUSY, "the owners are being changed: try again");
        return 0;
}

const struct module membership_module = { .tick = membership_tick,
                                          .idle = membership_idle,
                                          .job_admit = membership_admit };
