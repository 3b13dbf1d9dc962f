/*
 * The coordinator: the daemon's own step machine and recovery, driven as daemon/coordinator's
 * coordinator.c, opening.c and joining.c drive them.
 */
#include <string.h>

#include "machine.h"

/* ---- what it says ---- */

static void decision_send(struct world *w, uint32_t node)
{
        const struct coordinator *c = &w->c;

        if (c->decided_attempt == 0)
                return;
        send(w, COORDINATOR, node,
             (struct message){ .type = DECISION,
                               .attempt = c->decided_attempt,
                               .version = c->version,
                               .decision = c->decision,
                               .skipped = c->skipped });
}

bool coordinator_startable(const struct world *w)
{
        return w->c.settled && step_startable(machine_load(w));
}

static void join_answer(struct world *w, uint32_t i, u8 status)
{
        struct coordinator *c = &w->c;
        struct join j = c->joins[i];

        send(w, COORDINATOR, j.node,
             (struct message){ .type = JOIN_ANSWER,
                               .proc = j.proc,
                               .incarnation = j.incarnation,
                               .status = status });
        c->n_joins--;
        memmove(&c->joins[i], &c->joins[i + 1], (c->n_joins - i) * sizeof j);
        c->joins[c->n_joins] = (struct join){ 0 };
}

static void joins_started(struct world *w)
{
        for (uint32_t i = 0; i < w->c.n_joins;)
                if (w->c.joins[i].admitted)
                        join_answer(w, i, 0);
                else
                        i++;
}

void coordinator_advance(struct world *w)
{
        struct coordinator *c = &w->c;
        struct message m = { .type = START };

        if (!coordinator_startable(w))
                return;
        step_start(machine_load(w));
        machine_store(w);
        m.version = c->version;
        m.attempt = c->attempt;
        m.scale = c->scale;
        memcpy(m.place, c->node_of_rank, RANKS);
        if (c->decided_attempt) {
                m.last = c->decided_attempt;
                m.decision = c->decision;
                m.skipped = c->skipped;
        }
        send_all(w, COORDINATOR, m);
        joins_started(w);
}

/* ---- opening ---- */

static void open_ask(struct world *w, uint32_t node, bool create)
{
        if (send(w, COORDINATOR, node, (struct message){ .type = OPEN, .flag = create }))
                w->c.nodes[node] = NODE_ASKED;
}

static struct standing standing_of(const struct stand *m)
{
        struct standing s = { .version = m->version,
                              .decided_attempt = m->decided_attempt,
                              .decision = *decision_at(m->decision),
                              .skipped = m->skipped,
                              .done = m->done,
                              .prepared_attempt = m->prepared_attempt };

        s.vote = *vote_at(m->vote);
        s.params = machine_params(m->scale);
        return s;
}

static void open_adopt(struct world *w, const struct recovery *r)
{
        step_adopt(machine_load(w), r);
        w->c.settled = 1;
        machine_store(w);
        if (r->decided_attempt)
                truth_decide(w, (u8)r->decided_attempt, w->c.version, w->c.decision);
        REQUIRE(w->c.version == w->truth[0].version && w->c.decided_attempt == w->truth[0].attempt,
                "the job is taken up at version %u", w->c.version);
}

/* What is known of holders; NULL: it has no state. */
static const struct standing *const *standings_load(const struct world *w)
{
        static struct standing standings[HOLDERS];
        static const struct standing *pointers[HOLDERS];

        for (uint32_t h = 0; h < placement_holders(&view); h++) {
                standings[h] = standing_of(&w->c.standings[h]);
                pointers[h] = w->c.standings[h].attempt ? &standings[h] : NULL;
        }
        return pointers;
}

static void open_recover(struct world *w)
{
        const struct standing *const *standings = standings_load(w);
        uint32_t odd;
        struct recovery r;
        struct fault fault;

        if (recover_lost(standings, &view) != NO_OWNER)
                violate("an owner's state is gone");
        else if (recover(standings, &view, &r, &odd, &fault))
                violate("holder %u: %s", odd, fault.text);
        else
                open_adopt(w, &r);
}

/* A holder as it stands, against the others; one that lacks its state is not done. */
static void holder_open(struct world *w, uint32_t holder)
{
        struct step *s = machine_load(w);
        const struct recovery now = step_stands(s);
        const struct standing standing = standing_of(&w->c.standings[holder]);
        struct fault fault = { 0 };
        bool there = w->c.standings[holder].attempt != 0, behind = false;

        if (there && recover_one(&standing, &now, &behind, &fault)) {
                violate("holder %u: %s", holder, fault.text);
                return;
        }
        s->done[holder] = there && !behind && standing.done;
        machine_store(w);
}

static void owner_open(struct world *w, uint32_t node)
{
        for (uint32_t c = 0; c < view.copies; c++)
                holder_open(w, holder_on(node, c));
        w->c.nodes[node] = NODE_OPENED;
        step_node_open(machine_load(w), node);
        machine_store(w);
        decision_send(w, node);
}

static void open_nodes(struct world *w)
{
        for (uint32_t n = 0; n < bounds.n_nodes; n++) {
                if (w->c.nodes[n] != NODE_KNOWN)
                        continue;
                if (is_owner(n)) {
                        owner_open(w, n);
                } else if (w->c.lacks >> n & 1) {
                        open_ask(w, n, true);
                } else {
                        w->c.nodes[n] = NODE_OPENED;
                        step_node_open(machine_load(w), n);
                        machine_store(w);
                        decision_send(w, n);
                }
        }
}

static void joins_admit(struct world *w);

static void fill_answered(struct world *w, uint32_t node, const struct message *m)
{
        uint32_t holder = holder_on(node, m->copy);

        if (!w->c.settled)
                return; /* it is asked again */
        w->c.filling &= (u8) ~(1u << holder);
        w->c.standings[holder] = m->stands[m->copy];
        step_heard(machine_load(w), m->stands[m->copy].attempt);
        machine_store(w);
        holder_open(w, holder);
}

static void open_settle(struct world *w)
{
        if (!w->c.settled) {
                for (uint32_t n = 0; n < bounds.n_nodes; n++)
                        if (is_owner(n) && w->c.nodes[n] != NODE_KNOWN)
                                return;
                open_recover(w);
        }
        if (w->c.settled) {
                open_nodes(w);
                fill_advance(w);
                joins_admit(w);
        }
}

static void open_answered(struct world *w, uint32_t node, const struct message *m)
{
        struct coordinator *c = &w->c;

        c->nodes[node] = NODE_KNOWN;
        c->lacks = (u8)((c->lacks & ~(1u << node)) | (uint32_t)!m->flag << node);
        step_heard(machine_load(w), m->attempt);
        machine_store(w);
        if (is_owner(node)) {
                for (uint32_t i = 0; i < view.copies; i++) {
                        c->standings[holder_on(node, i)] = m->stands[i];
                        step_heard(machine_load(w), m->stands[i].attempt);
                        machine_store(w);
                }
        }
        open_settle(w);
}

static void open_done(struct world *w, uint32_t holder, u8 attempt)
{
        struct coordinator *c = &w->c;

        if (c->settled) {
                step_done(machine_load(w), holder, attempt);
                machine_store(w);
                fill_advance(w);
        } else if (c->standings[holder].attempt &&
                   c->standings[holder].decided_attempt == attempt) {
                c->standings[holder].done = 1;
        }
}

/* ---- joining ---- */

static void join_forget(struct world *w, uint32_t node, uint32_t rank)
{
        for (uint32_t i = 0; i < w->c.n_joins; i++) {
                const struct join *j = &w->c.joins[i];

                if (j->node != node || j->rank != rank)
                        continue;
                join_answer(w, i, ZERO_ECLOSED);
                return;
        }
}

static void fence_elsewhere(struct world *w, const struct join *j)
{
        struct coordinator *c = &w->c;
        u8 node = c->node_of_rank[j->rank], rank = j->rank;

        if (c->seats[rank] != SEAT_HERE || node == j->node ||
            j->incarnation <= c->incarnations[rank])
                return;
        send(w, COORDINATOR, node, (struct message){ .type = PART_TOLD, .rank = rank, .flag = 1 });
        join_forget(w, node, rank);
        step_part(machine_load(w), rank, false);
        machine_store(w);
}

static void join_admit(struct world *w, u8 proc)
{
        struct coordinator *c = &w->c;
        enum step_action action;
        uint32_t i = 0;
        int r;

        while (c->joins[i].proc != proc)
                i++;
        fence_elsewhere(w, &(struct join){ c->joins[i].node, proc, c->joins[i].rank,
                                           c->joins[i].incarnation, 0 });
        for (i = 0; c->joins[i].proc != proc;)
                i++;
        r = step_join(machine_load(w), c->joins[i].rank, c->joins[i].node, &action, NULL);
        machine_store(w);
        if (r) {
                join_answer(w, i, (u8)r);
                return;
        }
        c->incarnations[c->joins[i].rank] = c->joins[i].incarnation;
        c->joins[i].admitted = 1;
        if (action == STEP_REJOIN)
                join_answer(w, i, 0);
}

static void joins_admit(struct world *w)
{
        for (uint32_t i = 0; i < w->c.n_joins;) {
                u8 proc = w->c.joins[i].proc;

                if (w->c.joins[i].admitted) {
                        i++;
                        continue;
                }
                join_admit(w, proc);
                i = 0;
        }
        coordinator_advance(w);
}

static void coordinator_join(struct world *w, uint32_t node, const struct message *m)
{
        struct coordinator *c = &w->c;

        if (c->n_joins == PROCS) {
                violate("too many joins");
                return;
        }
        c->joins[c->n_joins++] = (struct join){
                .node = (u8)node, .proc = m->proc, .rank = m->rank, .incarnation = m->incarnation
        };
        if (c->settled)
                joins_admit(w);
        else
                open_settle(w);
}

static void coordinator_part(struct world *w, uint32_t node, u8 rank)
{
        struct coordinator *c = &w->c;

        join_forget(w, node, rank);
        if (c->node_of_rank[rank] != node || c->seats[rank] != SEAT_HERE)
                return;
        step_part(machine_load(w), rank, false);
        machine_store(w);
}

/* ---- steps ---- */

static void coordinator_ready(struct world *w, uint32_t node, const struct message *m)
{
        struct step *s = machine_load(w);
        const struct step_params params = machine_params(m->scale);
        enum step_action action = STEP_NOTHING;
        int r = step_ready(s, node, m->attempt, &params, m->rank, &action, NULL);

        machine_store(w);
        if (r)
                send(w, COORDINATOR, node,
                     (struct message){
                             .type = READY_REFUSED, .status = (u8)r, .attempt = m->attempt });
        if (action != STEP_PREPARE)
                return;
        for (uint32_t n = 0; n < bounds.n_nodes; n++)
                if (is_owner(n))
                        send(w, COORDINATOR, n,
                             (struct message){ .type = PREPARE,
                                               .attempt = w->c.attempt,
                                               .scale = w->c.params_scale });
}

static void coordinator_vote(struct world *w, uint32_t node, const struct message *m)
{
        struct step *s = machine_load(w);
        uint32_t holder = holder_on(node, m->copy);
        enum step_action action;

        step_vote(s, holder, m->attempt, vote_at(m->vote), &action);
        if (s->voted[holder] && !w->c.votes[holder])
                w->c.votes[holder] = m->vote;
        machine_store(w);
        REQUIRE(action != STEP_REFUSE, "a mirror has voted otherwise than its owner");
        if (action == STEP_NOTHING)
                return;
        truth_decide(w, w->c.decided_attempt, w->c.version, w->c.decision);
        truth_seats(w);
        for (uint32_t n = 0; n < bounds.n_nodes; n++)
                decision_send(w, n);
}

/* ---- events ---- */

void coordinator_new(struct world *w)
{
        struct coordinator *c = &w->c;

        memset(c, 0, sizeof *c);
        memset(c->node_of_rank, NOBODY, sizeof c->node_of_rank);
        memset(c->cut, (1 << bounds.n_nodes) - 1, bounds.n_nodes);
        c->scale = c->params_scale = 64;
        c->done = (u8)((1 << HOLDERS) - 1);
        open_ask(w, COORDINATOR, false);
}

void coordinator_up(struct world *w, uint32_t node)
{
        if (w->c.nodes[node] == NODE_UNASKED)
                open_ask(w, node, false);
}

void coordinator_down(struct world *w, uint32_t node)
{
        struct coordinator *c = &w->c;

        for (u8 r = 0; r < bounds.n_ranks; r++)
                coordinator_part(w, node, r);
        step_node_lost(machine_load(w), node);
        machine_store(w);
        c->nodes[node] = NODE_UNASKED;
        for (uint32_t i = 0; i < view.copies && is_owner(node); i++)
                c->standings[holder_on(node, i)] = (struct stand){ 0 };
        fill_forget(w, node, UINT64_MAX);
        for (uint32_t i = 0; i < c->n_joins;)
                if (c->joins[i].node == node)
                        join_answer(w, i, ZERO_EPEER);
                else
                        i++;
}

void coordinator_message(struct world *w, uint32_t from, const struct message *m)
{
        switch (m->type) {
        case JOIN:
                coordinator_join(w, from, m);
                break;
        case PART:
                coordinator_part(w, from, m->rank);
                break;
        case OPENED:
                open_answered(w, from, m);
                break;
        case READY:
                coordinator_ready(w, from, m);
                break;
        case PREPARED:
                coordinator_vote(w, from, m);
                break;
        case DONE:
                open_done(w, holder_on(from, m->copy), m->attempt);
                coordinator_advance(w);
                break;
        case FILLED:
                fill_answered(w, from, m);
                coordinator_advance(w);
                break;
        case LINKS:
                step_links(machine_load(w), from, m->flag);
                machine_store(w);
                fill_forget(w, from, m->flag);
                fill_advance(w);
                coordinator_advance(w);
                break;
        default:
                violate("the coordinator got message %u", m->type);
        }
}
