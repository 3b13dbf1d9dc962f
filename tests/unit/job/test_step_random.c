/*
 * Random events into the step machine.  A model that knows nothing but the events and
 * actions watches: no attempt is decided after a lost node, a broken link, a rank that left or
 * moved, or a rank that came back after a norm has voided it, without every holder's vote, or while
 * a mirror's vote differs from its owner's.  An attempt is decided at most once, a start waits for
 * all ranks, nodes, links and updates, and only commits change the version.
 */
#include <criterion/criterion.h>
#include <string.h>

#include "steps.h"

enum { RANKS = 5, NODES = 4, OWNERS = 3, HOLDERS = 2 * OWNERS, EVENTS = 20000 };
enum { AWAY = UINT32_MAX };

struct model {
        struct step s;
        struct rng rng;
        uint32_t node[RANKS]; /* AWAY: never came, or left */
        bool present[RANKS];  /* its session lives */
        bool open[NODES];
        bool cut[NODES][NODES];
        uint32_t holders; /* OWNERS, or with mirrors HOLDERS */
        bool done[HOLDERS];
        bool running;        /* an attempt was started, and nothing has voided it */
        bool voted[HOLDERS]; /* in the vote that is under way */
        struct {
                bool finite;
                double norm;
        } vote[HOLDERS];
        bool normed;           /* a norm was told in the attempt that runs */
        bool preparing;        /* PREPARE was given and nothing ended it since */
        uint64_t last_decided; /* attempt */
        uint64_t commits, starts, decisions, norms, rejoins, refusals;
};

static uint64_t some_attempt(struct model *m)
{
        static const int64_t off[] = { 0, 0, 0, 0, 0, 0, -1, 1 };

        return m->s.attempt + (uint64_t)off[rng_below(&m->rng, 8)];
}

static void void_attempt(struct model *m)
{
        m->running = m->preparing = false;
}

static bool needed(const struct model *m, uint32_t node)
{
        for (int r = 0; r < RANKS; r++)
                if (m->node[r] == node)
                        return true;
        return node < OWNERS;
}

static bool all_there(const struct model *m)
{
        for (int r = 0; r < RANKS; r++)
                if (!m->present[r])
                        return false;
        for (uint32_t n = 0; n < NODES; n++)
                for (uint32_t to = 0; to < NODES; to++)
                        if (needed(m, n) && (!m->open[n] || (needed(m, to) && m->cut[n][to])))
                                return false;
        for (uint32_t h = 0; h < m->holders; h++)
                if (!m->done[h])
                        return false;
        return true;
}

static void event_start(struct model *m)
{
        uint64_t attempt = m->s.attempt;

        cr_assert_eq(step_startable(&m->s), !m->running && all_there(m));
        if (!step_startable(&m->s))
                return;
        step_start(&m->s);
        cr_assert(m->s.attempt > attempt && m->s.started);
        m->running = true;
        m->normed = false;
        m->starts++;
}

static void event_join(struct model *m)
{
        uint32_t rank = rng_below(&m->rng, RANKS + 1);
        uint32_t node = rng_below(&m->rng, NODES);
        enum step_action action = STEP_NOTHING;
        bool same;
        int r;

        if (rank < RANKS && m->node[rank] != (uint32_t)AWAY && rng_below(&m->rng, 8))
                node = m->node[rank];
        same = rank < RANKS && m->node[rank] == node && !m->normed &&
               !(m->preparing && m->s.norm_only);
        r = step_join(&m->s, rank, node, &action, NULL);
        cr_assert_eq(r == 0, rank < RANKS && !m->present[rank]);
        if (r)
                return;
        cr_assert_eq(action, m->running && same ? STEP_REJOIN : STEP_NOTHING);
        m->rejoins += action == STEP_REJOIN;
        if (!same)
                void_attempt(m);
        m->present[rank] = true;
        m->node[rank] = node;
}

static void event_part(struct model *m)
{
        uint32_t rank = rng_below(&m->rng, RANKS + 1);
        bool orderly = rng_below(&m->rng, 6) == 0;

        if (rng_below(&m->rng, 12))
                return;
        step_part(&m->s, rank, orderly);
        if (rank >= RANKS || !m->present[rank])
                return;
        m->present[rank] = false;
        if (!orderly)
                return;
        m->node[rank] = AWAY;
        void_attempt(m);
}

static void event_node(struct model *m)
{
        uint32_t node = rng_below(&m->rng, NODES);

        if (rng_below(&m->rng, 15)) {
                step_node_open(&m->s, node);
                m->open[node] = true;
                return;
        }
        step_node_lost(&m->s, node);
        m->open[node] = false;
        if (needed(m, node))
                void_attempt(m);
        for (int r = 0; r < RANKS; r++)
                if (m->node[r] == node)
                        m->present[r] = false;
}

static void event_links(struct model *m)
{
        uint32_t node = rng_below(&m->rng, NODES);
        uint64_t cut = rng_below(&m->rng, 15) ? 0 : rng_below(&m->rng, 1 << NODES);

        step_links(&m->s, node, node_set_from_word(cut));
        for (uint32_t to = 0; to < NODES; to++) {
                m->cut[node][to] = cut >> to & 1;
                if (m->cut[node][to] && needed(m, node) && needed(m, to))
                        void_attempt(m);
        }
}

static void event_ready(struct model *m)
{
        struct step_params p = steps_params();
        enum step_action action;
        int r;

        if (rng_below(&m->rng, 20) == 0)
                p.clip_norm = 1;
        if (rng_below(&m->rng, 30) == 0)
                p.n_sets = 0;
        r = step_ready(&m->s, rng_below(&m->rng, NODES + 1), some_attempt(m),
                       rng_below(&m->rng, 3) ? &p : NULL, 0, &action, NULL);
        cr_assert(r == 0 || action == STEP_NOTHING);
        if (action != STEP_PREPARE)
                return;
        cr_assert(m->running && !m->preparing);
        m->preparing = true;
        memset(m->voted, 0, sizeof m->voted);
}

/* The first mirror that voted otherwise than its owner. */
static uint32_t odd(const struct model *m)
{
        for (uint32_t h = OWNERS; h < m->holders; h++)
                if (m->vote[h].finite != m->vote[h - OWNERS].finite ||
                    (m->vote[h].finite && m->vote[h].norm != m->vote[h - OWNERS].norm))
                        return h;
        return NO_HOLDER;
}

static void check_all_voted(struct model *m, enum step_action action)
{
        cr_assert(m->running && m->preparing);
        for (uint32_t h = 0; h < m->holders; h++)
                cr_assert(m->voted[h], "decided without holder %u", h);
        m->preparing = false;
        cr_assert_eq(m->s.odd, odd(m));
        cr_assert_eq(action, odd(m) == NO_HOLDER ? STEP_DECIDE : STEP_REFUSE);
}

static void check_decision(struct model *m, uint64_t attempt, uint64_t version)
{
        if (m->s.norm_only) {
                cr_assert_eq(m->s.attempt, attempt);
                cr_assert_eq(m->s.version, version);
                m->norms++;
                m->normed = true;
                return;
        }
        cr_assert_gt(attempt, m->last_decided, "attempt %llu was decided twice",
                     (unsigned long long)attempt);
        cr_assert_eq(m->s.version, version + m->s.decision.commit);
        cr_assert_eq(m->s.attempt, attempt + 1);
        m->normed = false;
        m->last_decided = attempt;
        memset(m->done, 0, sizeof m->done);
        m->commits += m->s.decision.commit;
        m->decisions++;
}

static void event_vote(struct model *m)
{
        uint32_t holder = rng_below(&m->rng, m->holders + 1), owner = holder % OWNERS;
        uint64_t attempt = some_attempt(m), current = m->s.attempt, version = m->s.version;
        bool lies = rng_below(&m->rng, 40) == 0, finite = (current + owner) % 10 != 0;
        double norm = lies ? 2 : 1;
        struct votes v = steps_vote(norm, finite);
        enum step_action action;

        if (attempt == current && holder < m->holders && m->preparing && !m->voted[holder]) {
                m->voted[holder] = true;
                m->vote[holder].finite = finite;
                m->vote[holder].norm = norm;
        }
        step_vote(&m->s, holder, attempt, &v, &action);
        if (action == STEP_NOTHING)
                return;
        check_all_voted(m, action);
        if (action == STEP_DECIDE)
                check_decision(m, current, version);
        else
                m->refusals++;
}

static void event_done(struct model *m)
{
        uint32_t holder = rng_below(&m->rng, m->holders + 1);
        uint64_t attempt = rng_below(&m->rng, 8) ? m->s.decided_attempt : some_attempt(m);

        step_done(&m->s, holder, attempt);
        if (holder < m->holders && attempt == m->s.decided_attempt)
                m->done[holder] = true;
}

static void run(uint64_t seed, bool mirror, struct model *m)
{
        static void (*const events[])(struct model *) = { event_join,  event_part,  event_ready,
                                                          event_vote,  event_ready, event_vote,
                                                          event_done,  event_node,  event_links,
                                                          event_start, event_ready, event_vote };

        const struct placement placement = steps_placement(OWNERS, mirror);

        *m = (struct model){ .rng = { seed }, .holders = placement_holders(&placement) };
        memset(m->done, true, sizeof m->done);
        memset(m->node, 0xff, sizeof m->node);
        cr_assert_eq(step_init(&m->s, RANKS, NODES, &placement), 0);
        for (int i = 0; i < EVENTS; i++) {
                uint64_t version = m->s.version;
                uint32_t which = rng_below(&m->rng, sizeof events / sizeof events[0]);

                events[which](m);
                cr_assert(m->s.version == version || events[which] == event_vote);
                cr_assert_eq(m->s.version, m->commits);
        }
        step_deinit(&m->s);
}

/* The walk must reach every kind of outcome. */
static void walk(bool mirror)
{
        uint64_t starts = 0, decisions = 0, commits = 0, norms = 0, rejoins = 0, refusals = 0;

        for (uint64_t seed = 1; seed <= (mirror ? 100 : 20); seed++) {
                struct model m;

                run(seed, mirror, &m);
                starts += m.starts;
                decisions += m.decisions;
                commits += m.commits;
                norms += m.norms;
                rejoins += m.rejoins;
                refusals += m.refusals;
        }
        cr_assert_gt(starts, 100);
        cr_assert_gt(commits, 100);
        cr_assert_gt(norms, 10);
        cr_assert_gt(rejoins, 100);
        cr_assert_gt(decisions, commits);
        cr_assert_eq(refusals > 10, mirror);
}

Test(step, random_events_keep_the_invariants)
{
        walk(false);
}

Test(step, random_events_keep_the_invariants_with_mirrors)
{
        walk(true);
}
