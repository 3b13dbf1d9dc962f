/*
 * Random events into the step machine.  A model that knows nothing but the events and
 * actions watches: no attempt is decided twice, or without every owner's vote, or without
 * all ranks; and the version moves by commits alone.
 */
#include <criterion/criterion.h>
#include <string.h>

#include "steps.h"

enum { RANKS = 5, NODES = 4, OWNERS = 3, EVENTS = 20000 };

struct model {
        struct step s;
        struct rng rng;
        bool present[RANKS];
        bool voted[OWNERS];    /* in the vote that is under way */
        bool preparing;        /* PREPARE was given and nothing ended it since */
        uint64_t last_decided; /* attempt */
        uint64_t commits, starts, decisions, norms;
};

static uint64_t some_attempt(struct model *m)
{
        static const int64_t off[] = { 0, 0, 0, 0, 0, 0, -1, 1 };

        return m->s.attempt + (uint64_t)off[rng_below(&m->rng, 8)];
}

static bool all_present(const struct model *m)
{
        for (int r = 0; r < RANKS; r++)
                if (!m->present[r])
                        return false;
        return true;
}

static void event_join(struct model *m)
{
        uint32_t rank = rng_below(&m->rng, RANKS + 1);
        enum step_action action = STEP_NOTHING;
        int r = step_join(&m->s, rank, rng_below(&m->rng, NODES), &action, NULL);

        cr_assert_eq(r == 0, rank < RANKS && !m->present[rank]);
        if (r)
                return;
        m->present[rank] = true;
        cr_assert_eq(action == STEP_START, all_present(m));
        if (action == STEP_START) {
                m->preparing = false;
                m->starts++;
        }
}

static void event_part(struct model *m)
{
        uint32_t rank = rng_below(&m->rng, RANKS + 1);

        if (rng_below(&m->rng, 12))
                return;
        step_part(&m->s, rank, rng_below(&m->rng, 2));
        if (rank < RANKS) {
                m->present[rank] = false;
                m->preparing = false;
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
                       rng_below(&m->rng, 10) ? &p : NULL, 0, &action, NULL);
        cr_assert(r == 0 || action == STEP_NOTHING);
        if (action != STEP_PREPARE)
                return;
        cr_assert(all_present(m) && !m->preparing);
        m->preparing = true;
        memset(m->voted, 0, sizeof m->voted);
}

static void check_decision(struct model *m, uint64_t attempt, uint64_t version)
{
        cr_assert(m->preparing && all_present(m));
        for (int o = 0; o < OWNERS; o++)
                cr_assert(m->voted[o], "decided without owner %d", o);
        m->preparing = false;
        if (m->s.norm_only) {
                cr_assert_eq(m->s.attempt, attempt);
                cr_assert_eq(m->s.version, version);
                m->norms++;
                return;
        }
        cr_assert_gt(attempt, m->last_decided, "attempt %llu was decided twice",
                     (unsigned long long)attempt);
        cr_assert_eq(m->s.version, version + m->s.decision.commit);
        cr_assert_eq(m->s.attempt, attempt + 1);
        m->last_decided = attempt;
        m->commits += m->s.decision.commit;
        m->decisions++;
}

static void event_vote(struct model *m)
{
        uint32_t owner = rng_below(&m->rng, OWNERS + 1);
        uint64_t attempt = some_attempt(m), current = m->s.attempt, version = m->s.version;
        struct votes v = steps_vote(1, rng_below(&m->rng, 10) != 0);
        enum step_action action;

        if (attempt == current && owner < OWNERS && m->preparing)
                m->voted[owner] = true;
        step_vote(&m->s, owner, attempt, &v, &action);
        if (action == STEP_DECIDE)
                check_decision(m, current, version);
}

static void event_done(struct model *m)
{
        step_done(&m->s, rng_below(&m->rng, OWNERS + 1), some_attempt(m));
}

static void run(uint64_t seed, struct model *m)
{
        static void (*const events[])(struct model *) = { event_join, event_part,  event_ready,
                                                          event_vote, event_ready, event_vote,
                                                          event_done };

        *m = (struct model){ .rng = { seed } };
        cr_assert_eq(step_init(&m->s, RANKS, NODES, OWNERS), 0);
        for (int i = 0; i < EVENTS; i++) {
                uint64_t version = m->s.version;
                uint32_t which = rng_below(&m->rng, sizeof events / sizeof events[0]);

                events[which](m);
                cr_assert(m->s.version == version || events[which] == event_vote);
                cr_assert_eq(m->s.version, m->commits);
        }
        step_deinit(&m->s);
}

Test(step, random_events_keep_the_invariants)
{
        uint64_t starts = 0, decisions = 0, commits = 0, norms = 0;

        for (uint64_t seed = 1; seed <= 20; seed++) {
                struct model m;

                run(seed, &m);
                starts += m.starts;
                decisions += m.decisions;
                commits += m.commits;
                norms += m.norms;
        }
        /* the walk must have been somewhere */
        cr_assert_gt(starts, 100);
        cr_assert_gt(commits, 100);
        cr_assert_gt(norms, 10);
        cr_assert_gt(decisions, commits);
}
