/* A daemon's part of the job, and of its moves; see moves.h. */
#include "moves.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/job/pieces.h"

/* ---- records --------------------------------------------------------------------------- */

struct stand stand_of(const struct state *s)
{
        bool decided = s->phase == PHASE_DECIDED;

        if (s->attempt == 0)
                return (struct stand){ 0 };
        return (struct stand){ .version = (u8)(s->version + decided),
                               .attempt = (u8)(s->attempt + decided),
                               .decided = s->decided,
                               .done = !decided,
                               .prepared = s->phase == PHASE_PREPARED ? s->attempt : 0 };
}

static void record_abort(struct state *s, u8 attempt)
{
        REQUIRE(s->phase != PHASE_DECIDED && attempt > s->attempt,
                "attempt %u (phase %u) is aborted for attempt %u", s->attempt, s->phase, attempt);
        s->attempt = attempt;
        s->phase = PHASE_OPEN;
}

static void update_begin(struct state *s)
{
        s->phase = PHASE_DECIDED;
        s->decided = s->attempt;
        s->running = 1;
}

static struct state *in_force(struct node *n)
{
        return n->states[n->epoch];
}

static bool has_any(const struct state *states)
{
        return states[0].attempt || states[1].attempt;
}

/* ---- start ------------------------------------------------------------------------------- */

static const struct state *behind(const struct state *states, const struct state *least)
{
        for (uint32_t c = 0; c < COPIES; c++)
                if (states[c].attempt &&
                    (!least || stand_of(&states[c]).attempt < stand_of(least).attempt))
                        least = &states[c];
        return least;
}

/* job_take_up() */
static void take_up(struct node *n)
{
        const struct state *s = behind(in_force(n), NULL);

        for (uint32_t e = 0; !s && e < n->epoch; e++)
                s = behind(n->states[e], s);
        n->has_job = s != NULL;
        if (!s)
                return;
        n->attempt = stand_of(s).attempt;
        n->version = stand_of(s).version;
}

void job_resume(struct world *w, uint32_t node)
{
        struct node *n = &w->nodes[node];

        for (uint32_t e = 0; e <= n->epoch; e++)
                for (uint32_t c = 0; c < COPIES; c++) {
                        const struct placement *was = &views[e];
                        uint32_t h = holder_on(was, node, c);
                        const struct state_place of = { e, was->n_owners, h % was->n_owners, c };

                        if (n->states[e][c].attempt == 0)
                                continue;
                        REQUIRE(state_use(view_of(w, node), node, &of) ==
                                        (e == n->epoch ? STATE_IN_FORCE : STATE_OLD_PLACEMENT),
                                "node %u does not use its state of epoch %u", node, e);
                        n->states[e][c].running = n->states[e][c].phase == PHASE_DECIDED;
                }
        take_up(n);
}

/* ---- steps ----------------------------------------------------------------------------------- */

static void vote(struct world *w, uint32_t node, uint32_t copy)
{
        struct node *n = &w->nodes[node];
        struct state *s = &in_force(n)[copy];

        if (!(n->preparing >> copy & 1) || s->running)
                return;
        n->preparing &= (u8) ~(1 << copy);
        if (s->attempt < n->attempt)
                record_abort(s, n->attempt);
        REQUIRE(s->phase == PHASE_OPEN && s->attempt == n->attempt,
                "node %u votes for attempt %u, its record is at %u, phase %u", node, n->attempt,
                s->attempt, s->phase);
        s->phase = PHASE_PREPARED;
        send(w, node, coordinator_of(w, node),
             (struct message){ .type = PREPARED, .copy = (u8)copy, .attempt = n->attempt });
}

static void job_start(struct world *w, uint32_t node, const struct message *m)
{
        struct node *n = &w->nodes[node];
        struct state *states = in_force(n);

        REQUIRE(!has_any(states) || (n->version == m->version && n->attempt <= m->attempt),
                "node %u is started at version %u, attempt %u: it is at %u, %u", node, m->version,
                m->attempt, n->version, n->attempt);
        n->started = 1;
        n->version = m->version;
        n->attempt = m->attempt;
        n->preparing = 0;
        for (uint32_t c = 0; c < COPIES; c++)
                if (states[c].attempt && !states[c].running && states[c].attempt < n->attempt)
                        record_abort(&states[c], n->attempt);
}

static void job_prepare(struct world *w, uint32_t node, const struct message *m)
{
        struct node *n = &w->nodes[node];

        if (m->attempt != n->attempt)
                return;
        for (uint32_t c = 0; c < COPIES; c++)
                if (in_force(n)[c].attempt) {
                        n->preparing |= (u8)(1 << c);
                        vote(w, node, c);
                }
}

static void job_decision(struct world *w, uint32_t node, const struct message *m)
{
        struct node *n = &w->nodes[node];
        struct state *states = in_force(n);

        if (!has_any(states) && !n->started && m->attempt > n->attempt)
                n->attempt = m->attempt;
        if (m->attempt != n->attempt)
                return;
        for (uint32_t c = 0; c < COPIES; c++)
                REQUIRE(!states[c].attempt || states[c].decided == m->attempt ||
                                (states[c].phase == PHASE_PREPARED &&
                                 states[c].attempt == m->attempt),
                        "node %u hears a decision of attempt %u that it has not voted for", node,
                        m->attempt);
        for (uint32_t c = 0; c < COPIES; c++)
                if (states[c].attempt && states[c].phase == PHASE_PREPARED)
                        update_begin(&states[c]);
        n->version = m->version;
        n->attempt = (u8)(m->attempt + 1);
        n->preparing = 0;
}

/* ---- states of earlier placements ---------------------------------------------------------- */

static void old_placement_sweep(struct world *w, uint32_t node)
{
        struct node *n = &w->nodes[node];

        for (uint32_t e = 0; e < n->epoch; e++)
                for (uint32_t c = 0; c < COPIES; c++)
                        if (state_ends(view_of(w, node), n->whole, e) && !n->states[e][c].running)
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

static void settle(struct state *s, u8 last)
{
        switch (settling(s->phase == PHASE_PREPARED ? s->attempt : 0, last)) {
        case SETTLE_CARRY_OUT:
                update_begin(s);
                break;
        case SETTLE_VOID:
                record_abort(s, (u8)(s->attempt + 1));
                break;
        case SETTLE_STANDS:
                break;
        }
}

/* Of a move that was broken off. */
static void drop_void(struct world *w, uint32_t node, u8 stands)
{
        for (uint32_t e = 0; e < VIEWS; e++)
                for (uint32_t c = 0; c < COPIES; c++)
                        if (state_void(view_of(w, node), stands, e) &&
                            !w->nodes[node].states[e][c].running)
                                w->nodes[node].states[e][c] = (struct state){ 0 };
}

static void job_settle(struct world *w, uint32_t node, const struct message *m)
{
        struct state *states = w->nodes[node].states[m->epoch];

        for (uint32_t c = 0; c < COPIES; c++)
                if (states[c].attempt)
                        settle(&states[c], m->last);
        if (has_any(states))
                drop_void(w, node, m->epoch);
        settled(w, node, has_any(states) ? ZERO_OK : ZERO_EABORTED);
}

void update_finish(struct world *w, uint32_t node, uint32_t epoch, uint32_t copy)
{
        struct node *n = &w->nodes[node];
        struct state *s = &n->states[epoch][copy];

        s->running = 0;
        s->made = s->decided;
        s->planes = ++s->version;
        s->attempt++;
        s->phase = PHASE_OPEN;
        if (epoch != n->epoch) {
                if (n->settles && !old_placement_runs(n))
                        settled(w, node, ZERO_OK);
                old_placement_sweep(w, node);
                return;
        }
        send(w, node, coordinator_of(w, node),
             (struct message){ .type = DONE, .copy = (u8)copy, .attempt = s->decided });
        vote(w, node, copy);
}

/* ---- filling ----------------------------------------------------------------------------------
 */

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

/* The holders that give anything, a bit each; 0: some of it is nowhere. */
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
        const struct placement *view = view_of(w, node);
        uint32_t holder = holder_on(view, node, m->copy);

        REQUIRE(!f->active, "node %u is filled twice at once", node);
        if (s->attempt && s->phase == PHASE_OPEN && s->version == m->version &&
            s->attempt == m->attempt && s->decided == m->last) {
                filled(w, node, m->copy, ZERO_OK);
                return;
        }
        *f = (struct filling){ .active = 1,
                               .from = m->epoch,
                               .sources = sources_of(&views[m->epoch], m->readable, view, holder),
                               .version = m->version,
                               .attempt = m->attempt,
                               .last = m->last };
        if (!n->has_job)
                n->has_job = 2;
        if (!f->sources)
                filled(w, node, m->copy, ZERO_ECONFLICT);
}

/* fill_source_find(): is it the state that is meant, and can it be reached? */
static u8 source_status(struct world *w, uint32_t node, const struct filling *f, uint32_t holder)
{
        uint32_t at = holder_node(&views[f->from], holder);
        const struct state *s = state_at(w, f->from, holder);

        if (!linked(w, node, at))
                return ZERO_EPEER;
        if (!s->attempt || w->nodes[at].has_job != 1)
                return ZERO_ENOJOB;
        if (s->phase == PHASE_DECIDED || s->version != f->version || s->decided != f->last)
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

/* ---- messages -----------------------------------------------------------------------------------
 */

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
                job_start(w, node, m);
        } else if (m->type == PREPARE) {
                job_prepare(w, node, m);
        } else if (m->type == DECISION) {
                job_decision(w, node, m);
        } else {
                violate("node %u got message %u", node, m->type);
        }
}
