/* A daemon's part of the job, and of its moves; see moves.h. */
#include "moves.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/job/rules/pieces.h"
#include "record.h"

/* ---- records --------------------------------------------------------------------------- */

/* Every step commits. */
static struct owner_record record_facts(const struct state *s)
{
        return (struct owner_record){ .version = s->version,
                                      .attempt = s->attempt,
                                      .phase = s->phase,
                                      .decided_attempt = s->decided,
                                      .commit = s->decided != 0 };
}

struct stand stand_of(const struct state *s)
{
        const struct owner_record facts = record_facts(s);
        const struct owner_stand stand = owner_stand(&facts);

        if (s->attempt == 0)
                return (struct stand){ 0 };
        return (struct stand){ .version = (u8)stand.version,
                               .attempt = (u8)stand.attempt,
                               .decided = s->decided,
                               .done = stand.done,
                               .prepared = (u8)stand.prepared_attempt };
}

static void record_change(struct state *s, const struct owner_action *a)
{
        const struct owner_record from = record_facts(s), *to = &a->record;

        record_check(&from, a);
        s->version = (u8)to->version;
        s->attempt = (u8)to->attempt;
        s->phase = (u8)to->phase;
        s->decided = (u8)to->decided_attempt;
}

static struct state *in_force(struct node *n)
{
        return n->states[n->epoch];
}

static bool has_any(const struct state *states)
{
        return states[0].attempt || states[1].attempt;
}

/* ---- what the node knows --------------------------------------------------------------------- */

static struct owner_replica replica_facts(const struct node *n, uint32_t epoch, uint32_t copy)
{
        const struct state *s = &n->states[epoch][copy];

        return (struct owner_replica){ .id = copy,
                                       .record = record_facts(s),
                                       .in_force = epoch == n->epoch,
                                       .updating = s->running };
}

/* The replicas of a placement. */
static struct owner owner_of(const struct node *n, uint32_t epoch)
{
        struct owner o = { .version = n->version, .attempt = n->attempt, .started = n->started };

        for (uint32_t c = 0; c < COPIES; c++)
                if (n->states[epoch][c].attempt)
                        o.replicas[o.n++] = replica_facts(n, epoch, c);
        return o;
}

static struct owner_actions replica_step(const struct node *n, uint32_t epoch, uint32_t copy,
                                         struct owner_event e)
{
        struct owner o = { .version = n->version, .attempt = n->attempt, .n = 1 };
        struct owner_actions actions;

        o.replicas[0] = replica_facts(n, epoch, copy);
        o.replicas[0].asked = n->preparing >> copy & 1;
        o.replicas[0].closing = o.replicas[0].summed = true;
        owner_step(&o, &e, &actions);
        return actions;
}

/* ---- start ------------------------------------------------------------------------------- */

/* job_take_up() */
static void take_up(struct node *n)
{
        struct owner_replica behind = { .in_force = false };
        struct owner_stand stand;

        n->has_job = 0;
        for (uint32_t e = 0; e <= n->epoch; e++) {
                const struct owner o = owner_of(n, e);

                for (uint32_t i = 0; i < o.n; i++)
                        if (!n->has_job || owner_behind(&o.replicas[i], &behind)) {
                                behind = o.replicas[i];
                                n->has_job = 1;
                        }
        }
        if (!n->has_job)
                return;
        stand = owner_stand(&behind.record);
        n->attempt = (u8)stand.attempt;
        n->version = (u8)stand.version;
}

void job_resume(struct world *w, uint32_t node)
{
        struct node *n = &w->nodes[node];

        for (uint32_t e = 0; e <= n->epoch; e++)
                for (uint32_t c = 0; c < COPIES; c++) {
                        const struct placement *was = &placements[e];
                        uint32_t h = holder_on(was, node, c);
                        const struct state_place of = { e, was->n_owners, h % was->n_owners, c };

                        if (n->states[e][c].attempt == 0)
                                continue;
                        REQUIRE(state_use(placement_of(w, node), node, &of) ==
                                        (e == n->epoch ? STATE_IN_FORCE : STATE_OLD_PLACEMENT),
                                "node %u does not use its state of epoch %u", node, e);
                        n->states[e][c].running = /* OWNER_UPDATE */
                                replica_step(n, e, c, (struct owner_event){ .kind = OWNER_GIVEN })
                                        .n != 0;
                }
        take_up(n);
}

/* ---- steps ----------------------------------------------------------------------------------- */

static void vote(struct world *w, uint32_t node, uint32_t copy)
{
        struct node *n = &w->nodes[node];
        const struct owner_actions actions =
                replica_step(n, n->epoch, copy, (struct owner_event){ .kind = OWNER_SUMMED });

        if (!actions.n)
                return;
        n->preparing &= (u8) ~(1 << copy); /* OWNER_VOTE */
        record_change(&in_force(n)[copy], &actions.items[0]);
        send(w, node, coordinator_of(w, node),
             (struct message){
                     .type = PREPARED, .copy = (u8)copy, .attempt = in_force(n)[copy].attempt });
}

static void carry_out(struct state *s, const struct owner_action *decide)
{
        record_change(s, decide);
        s->running = 1;
}

static void word_run(struct world *w, uint32_t node, const struct message *m,
                     const struct owner_action *a)
{
        struct node *n = &w->nodes[node];
        struct state *s = &in_force(n)[a->replica];

        switch (a->kind) {
        case OWNER_CLASH:
                violate("node %u, at version %u, attempt %u, is told of version %u, attempt %u, "
                        "which does not fit its records",
                        node, n->version, n->attempt, m->version, m->attempt);
                break;
        case OWNER_STAND:
                n->version = (u8)a->version;
                n->attempt = (u8)a->attempt;
                n->started |= m->type == START;
                break;
        case OWNER_ABORT:
                record_change(s, a);
                break;
        case OWNER_ASK:
                n->preparing |= (u8)(1 << a->replica);
                vote(w, node, a->replica);
                break;
        case OWNER_DECIDE:
                carry_out(s, a);
                break;
        case OWNER_BEGIN:
                n->preparing = 0;
                break;
        default:
                violate("node %u does %u at message %u", node, a->kind, m->type);
        }
}

static void word(struct world *w, uint32_t node, const struct message *m,
                 enum owner_event_kind kind)
{
        const struct owner o = owner_of(&w->nodes[node], w->nodes[node].epoch);
        const struct owner_event e = {
                .kind = kind, .version = m->version, .attempt = m->attempt, .commit = true
        };
        struct owner_actions actions;

        owner_step(&o, &e, &actions);
        for (uint32_t i = 0; i < actions.n; i++)
                word_run(w, node, m, &actions.items[i]);
}

/* ---- states of earlier placements ---------------------------------------------------------- */

static void old_placement_sweep(struct world *w, uint32_t node)
{
        struct node *n = &w->nodes[node];

        for (uint32_t e = 0; e < n->epoch; e++)
                for (uint32_t c = 0; c < COPIES; c++)
                        if (state_ends(placement_of(w, node), n->whole, e) &&
                            !n->states[e][c].running)
                                n->states[e][c] = (struct state){ 0 };
}

static bool old_placement_runs(const struct node *n)
{
        for (uint32_t e = 0; e < n->epoch; e++)
                if (n->states[e][0].running || n->states[e][1].running)
                        return true;
        return false;
}

static void settled(struct world *w, uint32_t node, u8 status)
{
        if (old_placement_runs(&w->nodes[node]) && !status) {
                w->nodes[node].settles = 1;
                return;
        }
        w->nodes[node].settles = 0;
        send(w, node, coordinator_of(w, node),
             (struct message){ .type = SETTLED, .status = status });
}

static void settle(struct node *n, u8 epoch, uint32_t copy, u8 last)
{
        const struct owner_actions actions = replica_step(
                n, epoch, copy,
                (struct owner_event){ .kind = OWNER_SETTLE, .attempt = last, .commit = true });
        struct state *s = &n->states[epoch][copy];

        if (!actions.n)
                return;
        if (actions.items[0].kind == OWNER_DECIDE)
                carry_out(s, &actions.items[0]);
        else /* OWNER_ABORT */
                record_change(s, &actions.items[0]);
}

/* Deletes states of a move that was broken off. */
static void drop_void(struct world *w, uint32_t node, u8 stands)
{
        for (uint32_t e = 0; e < PLACEMENTS; e++)
                for (uint32_t c = 0; c < COPIES; c++)
                        if (state_void(placement_of(w, node), stands, e) &&
                            !w->nodes[node].states[e][c].running)
                                w->nodes[node].states[e][c] = (struct state){ 0 };
}

static void job_settle(struct world *w, uint32_t node, const struct message *m)
{
        struct state *states = w->nodes[node].states[m->epoch];

        for (uint32_t c = 0; c < COPIES; c++)
                if (states[c].attempt)
                        settle(&w->nodes[node], m->epoch, c, m->last);
        if (has_any(states))
                drop_void(w, node, m->epoch);
        settled(w, node, has_any(states) ? ZERO_OK : ZERO_EABORTED);
}

void update_finish(struct world *w, uint32_t node, uint32_t epoch, uint32_t copy)
{
        struct node *n = &w->nodes[node];
        struct state *s = &n->states[epoch][copy];
        const struct owner_actions actions =
                replica_step(n, epoch, copy, (struct owner_event){ .kind = OWNER_UPDATED });

        s->running = 0;
        for (uint32_t i = 0; i < actions.n; i++) {
                if (actions.items[i].kind == OWNER_TELL_DONE) {
                        send(w, node, coordinator_of(w, node),
                             (struct message){
                                     .type = DONE, .copy = (u8)copy, .attempt = s->decided });
                        continue;
                }
                record_change(s, &actions.items[i]); /* OWNER_FINISH */
                s->made = s->decided;
                s->planes++;
        }
        if (epoch == n->epoch) {
                vote(w, node, copy);
                return;
        }
        if (n->settles && !old_placement_runs(n))
                settled(w, node, ZERO_OK);
        old_placement_sweep(w, node);
}

/* ---- filling ------------------------------------------------------------------------- */

static void filled(struct world *w, uint32_t node, uint32_t copy, u8 status)
{
        struct node *n = &w->nodes[node];
        struct message m = { .type = FILLED, .copy = (u8)copy, .status = status };

        n->fillings[copy] = (struct filling){ 0 };
        if (n->has_job == 2 && !n->fillings[0].active && !n->fillings[1].active)
                n->has_job = 0;
        if (status == ZERO_OK)
                m.stands[n->epoch][copy] = stand_of(&in_force(n)[copy]);
        send(w, node, coordinator_of(w, node), m);
}

void filling_lose(struct world *w, uint32_t node, uint32_t lost)
{
        struct node *n = &w->nodes[node];

        if (lost != coordinator_of(w, node))
                return;
        memset(n->fillings, 0, sizeof n->fillings);
        if (n->has_job == 2)
                n->has_job = 0;
}

static const struct partition *partition_of(uint32_t n_owners)
{
        static struct partition *partitions[NODES + 1];
        static layout *l;

        if (!l) {
                const uint64_t elements = 6 * PARTITION_SLICE_MIN;
                struct layout_tensor t = { .name = (char *)"t", .ndim = 1, .shape = { elements } };
                uint32_t index;

                if (layout_new(&l) ||
                    layout_add_group(l, "g", ZERO_FP32, NULL, 0, 1, &index, NULL) ||
                    layout_add_tensor(l, &t, &index, NULL))
                        abort();
        }
        if (!partitions[n_owners] && partition_new(l, n_owners, &partitions[n_owners]))
                abort();
        return partitions[n_owners];
}

/* Bits of the holders that a fill reads; 0: no holder has some of the shards. */
static u8 sources_of(const struct placement *from, u8 readable, const struct placement *to,
                     uint32_t holder)
{
        const struct shared_out was = { from, partition_of(from->n_owners) };
        const struct shared_out is = { to, partition_of(to->n_owners) };
        bool can[HOLDER_MAX] = { false };
        struct pieces *pieces;
        u8 sources = 0;

        for (uint32_t h = 0; h < HOLDERS; h++)
                can[h] = readable >> h & 1;
        if (pieces_new(&was, can, &is, holder, PARTITION_SLICE_MIN, &pieces))
                return 0;
        for (uint32_t i = 0; i < pieces->n; i++)
                sources |= (u8)(1 << pieces->items[i].source);
        pieces_free(pieces);
        return sources;
}

static void job_fill(struct world *w, uint32_t node, const struct message *m)
{
        struct node *n = &w->nodes[node];
        struct filling *f = &n->fillings[m->copy];
        const struct state *s = &in_force(n)[m->copy];
        const struct placement *placement = placement_of(w, node);
        uint32_t holder = holder_on(placement, node, m->copy);

        REQUIRE(!f->active, "node %u is filled twice at once", node);
        if (s->attempt && s->phase == OWNER_OPEN && s->version == m->version &&
            s->attempt == m->attempt && s->decided == m->last) {
                filled(w, node, m->copy, ZERO_OK);
                return;
        }
        *f = (struct filling){ .active = 1,
                               .from = m->epoch,
                               .sources = sources_of(&placements[m->epoch], m->readable, placement,
                                                     holder),
                               .version = m->version,
                               .attempt = m->attempt,
                               .last = m->last };
        if (!n->has_job)
                n->has_job = 2;
        if (!f->sources)
                filled(w, node, m->copy, ZERO_ECONFLICT);
}

/* As fill_source_find(): whether the state is the expected one and within reach. */
static u8 source_status(struct world *w, uint32_t node, const struct filling *f, uint32_t holder)
{
        uint32_t at = holder_node(&placements[f->from], holder);
        const struct state *s = state_at(w, f->from, holder);

        if (!linked(w, node, at))
                return ZERO_EPEER;
        if (!s->attempt || w->nodes[at].has_job != 1)
                return ZERO_ENOJOB;
        if (s->phase == OWNER_DECIDED || s->version != f->version || s->decided != f->last)
                return ZERO_EABORTED;
        return ZERO_OK;
}

static void filling_take(struct world *w, uint32_t node, struct filling *f, uint32_t holder)
{
        const struct state *s = state_at(w, f->from, holder);

        REQUIRE(s->planes == f->version, "node %u is filled at version %u with planes of %u", node,
                f->version, s->planes);
        REQUIRE(!f->pulled || f->made == s->made,
                "node %u is filled with version %u as attempt %u and attempt %u made it", node,
                f->version, f->made, s->made);
        f->made = s->made;
        f->sources &= (u8) ~(1 << holder);
        f->pulled |= (u8)(1 << holder);
}

/* From here on the draft is the state. */
static void filling_name(struct world *w, uint32_t node, uint32_t copy)
{
        struct node *n = &w->nodes[node];
        const struct filling *f = &n->fillings[copy];
        bool first = !has_any(in_force(n));

        in_force(n)[copy] = (struct state){ .version = f->version,
                                            .attempt = f->attempt,
                                            .decided = f->last,
                                            .planes = f->version,
                                            .made = f->made };
        n->preparing &= (u8) ~(1 << copy);
        n->has_job = 1;
        if (first)
                take_up(n);
        filled(w, node, copy, ZERO_OK);
}

bool filling_goes_on(struct world *w, uint32_t node, uint32_t copy)
{
        struct filling *f = &w->nodes[node].fillings[copy];
        u8 status = ZERO_OK, ask = f->sources ? f->sources : f->pulled;

        if (f->sources && !bounds.less)
                ask &= (u8)-ask; /* one after the other */
        if (!f->sources && in_force(&w->nodes[node])[copy].running)
                return false;
        for (uint32_t h = 0; h < HOLDERS && !status; h++)
                if (ask >> h & 1)
                        status = source_status(w, node, f, h);
        if (status)
                filled(w, node, copy, status);
        else if (!f->sources)
                filling_name(w, node, copy);
        else
                for (uint32_t h = 0; h < HOLDERS; h++)
                        if (ask >> h & 1)
                                filling_take(w, node, f, h);
        return true;
}

/* ---- messages ------------------------------------------------------------------------ */

static void job_open(struct world *w, uint32_t node, const struct message *m)
{
        struct node *n = &w->nodes[node];
        struct message a = { .type = OPENED };

        if (!n->has_job && m->status) /* it is to be made: without shards */
                n->has_job = 1;
        a.status = n->has_job;
        a.attempt = n->attempt;
        for (uint32_t e = 0; e <= n->epoch; e++)
                for (uint32_t c = 0; c < COPIES; c++)
                        a.stands[e][c] = stand_of(&n->states[e][c]);
        send(w, node, coordinator_of(w, node), a);
}

void job_message(struct world *w, uint32_t node, uint32_t from, const struct message *m)
{
        struct node *n = &w->nodes[node];

        if (m->type == OPEN) {
                job_open(w, node, m);
        } else if (m->type == FILL) {
                job_fill(w, node, m);
        } else if (n->has_job != 1) {
                if (m->type == SETTLE)
                        settled(w, node, ZERO_ENOJOB);
        } else if (m->type == SETTLE) {
                job_settle(w, node, m);
        } else if (m->type == PLACED) {
                n->whole = m->epoch;
                old_placement_sweep(w, node);
        } else if (m->type == START) {
                word(w, node, m, OWNER_START);
        } else if (m->type == PREPARE) {
                word(w, node, m, OWNER_PREPARE);
        } else if (m->type == DECISION) {
                word(w, node, m, OWNER_DECISION);
        } else {
                violate("node %u got message %u", node, m->type);
        }
}
