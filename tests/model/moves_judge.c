/* The truth about a world of moves, and what must hold; see moves.h. */
#include "moves.h"

#include <string.h>

/* ---- decisions --------------------------------------------------------------------------- */

static bool has_voted(const struct state *s, u8 attempt)
{
        return s->decided == attempt || (s->phase == OWNER_PREPARED && s->attempt == attempt);
}

void truth_decide(struct world *w, u8 attempt, u8 version)
{
        REQUIRE(attempt > w->truth.attempt && version == w->truth.version + 1,
                "attempt %u makes version %u, after attempt %u made version %u", attempt, version,
                w->truth.attempt, w->truth.version);
        w->truth.attempt = attempt;
        w->truth.version = version;
        w->truth.made[version] = attempt;
}

void truth_voted(struct world *w, uint32_t epoch, u8 attempt)
{
        for (uint32_t h = 0; h < placement_holders(&placements[epoch]); h++) {
                const struct state *s = state_at(w, epoch, h);

                REQUIRE(!s->attempt || has_voted(s, attempt),
                        "attempt %u is decided, holder %u of epoch %u has not voted", attempt, h,
                        epoch);
        }
}

void truth_stands(const struct world *w, u8 attempt, u8 version)
{
        REQUIRE(attempt > w->truth.attempt ||
                        (attempt == w->truth.attempt && version == w->truth.version),
                "the job goes on at version %u from attempt %u, version %u of attempt %u is lost",
                version, attempt, w->truth.version, w->truth.attempt);
}

/* It is there, or is about to be, or comes to be once it is known that all have voted. */
static bool has_truth(const struct world *w, const struct state *s)
{
        const struct truth *t = &w->truth;

        if (s->attempt == 0 || s->version >= t->version)
                return s->attempt != 0;
        return s->version + 1 == t->version && s->phase != OWNER_OPEN && s->attempt == t->attempt;
}

static bool epoch_has_truth(struct world *w, uint32_t epoch)
{
        const struct placement *p = &placements[epoch];

        for (uint32_t o = 0; o < p->n_owners; o++) {
                bool has = false;

                for (uint32_t c = 0; c < p->copies; c++)
                        has = has || has_truth(w, state_at(w, epoch, holder_of(p, o, c)));
                if (!has)
                        return false;
        }
        return true;
}

bool truth_kept(struct world *w)
{
        for (uint32_t e = w->truth.whole; e <= w->chosen; e++)
                if (epoch_has_truth(w, e))
                        return true;
        return false;
}

/* ---- every state ---------------------------------------------------------------------------- */

static void state_check(const struct world *w, uint32_t node, uint32_t epoch, uint32_t copy)
{
        const struct state *s = &w->nodes[node].states[epoch][copy];

        REQUIRE(s->planes == s->version,
                "node %u, epoch %u: a record of version %u, planes of version %u", node, epoch,
                s->version, s->planes);
        REQUIRE(s->phase != OWNER_DECIDED || s->decided == s->attempt,
                "node %u, epoch %u: attempt %u carries attempt %u out", node, epoch, s->attempt,
                s->decided);
        REQUIRE(s->version > w->truth.version || s->made == w->truth.made[s->version],
                "node %u, epoch %u: version %u is of attempt %u, but attempt %u made it", node,
                epoch, s->version, s->made, w->truth.made[s->version]);
        REQUIRE(s->version <= w->truth.version + 1,
                "node %u, epoch %u is at version %u, the job at version %u", node, epoch,
                s->version, w->truth.version);
}

void world_check(struct world *w)
{
        for (uint32_t n = 0; n < bounds.n_nodes; n++)
                for (uint32_t e = 0; e <= w->chosen; e++)
                        for (uint32_t c = 0; c < COPIES; c++)
                                if (w->nodes[n].states[e][c].attempt)
                                        state_check(w, n, e, c);
        REQUIRE(truth_kept(w), "version %u of attempt %u is in no placement whole any more",
                w->truth.version, w->truth.attempt);
}

/* ---- the end ------------------------------------------------------------------------- */

static bool node_done(struct world *w, uint32_t node)
{
        const struct node *n = &w->nodes[node];
        const struct placement *placement = &placements[n_placements - 1];

        if (n->epoch != n_placements - 1)
                return false;
        for (uint32_t e = 0; e < n->epoch; e++)
                if (n->states[e][0].attempt || n->states[e][1].attempt)
                        return false;
        for (uint32_t c = 0; c < COPIES; c++)
                if (holder_on(placement, node, c) != NO_HOLDER &&
                    (n->states[n->epoch][c].version != bounds.steps ||
                     n->states[n->epoch][c].phase == OWNER_DECIDED))
                        return false;
        return true;
}

bool world_done(const void *world)
{
        struct world *w = (struct world *)world;
        const struct placement *placement = &placements[n_placements - 1];

        for (uint32_t n = 0; n < bounds.n_nodes; n++)
                if (w->nodes[n].dead && node_set_has(placement_nodes(placement), n))
                        return true; /* it is waited for */
        for (uint32_t n = 0; n < bounds.n_nodes; n++)
                if (!w->nodes[n].dead && !node_done(w, n))
                        return false;
        return w->truth.version == bounds.steps;
}
