/* Votes and decisions by number, and the history by which a world is judged. */
#include "world.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/job/rules/decide.h"

enum { NUMBERS = 200 };

static struct votes votes[NUMBERS];
static struct decision decisions[NUMBERS];
static u8 n_votes = 1, n_decisions = 1; /* 0: none */
static u8 vote_numbers[NODES][32][4];

void numbers_forget(void)
{
        n_votes = n_decisions = 1;
        memset(vote_numbers, 0, sizeof vote_numbers);
}

u8 vote_of(uint32_t owner, uint32_t version, uint32_t skipped)
{
        u8 *number = &vote_numbers[owner][version % 32][skipped % 4];

        if (*number == 0) {
                struct votes *v = &votes[n_votes];

                *v = (struct votes){ .finite = !bounds.overflow || version != 0 || skipped ||
                                               owner != COORDINATOR };
                exact_sum_init(&v->norm);
                exact_sum_add(&v->norm, 1.0 / (3 + owner + 7 * version));
                *number = n_votes++;
        }
        return *number;
}

const struct votes *vote_at(u8 number)
{
        return &votes[number];
}

static bool same_bits(double a, double b)
{
        return memcmp(&a, &b, sizeof a) == 0;
}

/* What is in the records of it. */
static bool decision_equal(const struct decision *a, const struct decision *b)
{
        return a->commit == b->commit && a->finite == b->finite && a->overflow == b->overflow &&
               same_bits(a->grad_norm, b->grad_norm) && same_bits(a->grad_scale, b->grad_scale) &&
               same_bits(a->loss_scale, b->loss_scale) && a->good_steps == b->good_steps;
}

u8 decision_number(const struct decision *d)
{
        for (u8 i = 1; i < n_decisions; i++)
                if (decision_equal(&decisions[i], d))
                        return i;
        if (n_decisions == NUMBERS)
                abort();
        decisions[n_decisions] = *d;
        return n_decisions++;
}

const struct decision *decision_at(u8 number)
{
        return &decisions[number];
}

bool commits(u8 decision)
{
        return decisions[decision].commit;
}

double decision_scale(u8 decision)
{
        return decisions[decision].loss_scale;
}

double scale_value(u8 scale)
{
        return ldexp(1, scale - 64);
}

u8 scale_number(double value)
{
        return (u8)(64 + ilogb(value));
}

/* ---- decisions ---- */

static bool has_voted(const struct record *r, u8 attempt)
{
        return r->decided_attempt == attempt ||
               (r->phase == OWNER_PREPARED && r->attempt == attempt);
}

/* Every holder has voted, for the same sum, or is gone; but not with the other copy. */
static void check_votes(const struct world *w, u8 attempt)
{
        const struct record *first = NULL;
        uint32_t there = 0;

        for (uint32_t h = 0; h < placement_holders(&placement); h++) {
                const struct node *n = &w->nodes[holder_node(&placement, h)];
                const struct record *r = &n->replicas[holder_copy(&placement, h)].record;

                if (r->attempt == 0)
                        continue;
                there |= 1u << holder_owner(&placement, h);
                first = first ? first : r;
                REQUIRE(has_voted(r, attempt), "attempt %u is decided, holder %u has not voted",
                        attempt, h);
                REQUIRE(memcmp(r->parts, first->parts, sizeof r->parts) == 0,
                        "attempt %u: holder %u has summed other contributions than the first",
                        attempt, h);
        }
        REQUIRE(there == (1u << placement.n_owners) - 1,
                "attempt %u is decided, an owner's vote is nowhere", attempt);
}

void truth_rank_slots(const struct world *w)
{
        const struct record *r = &w->nodes[placement.node[0]].replicas[0].record;

        for (uint32_t b = 0; b < bounds.micro_batches; b++)
                for (uint32_t rank = 0; rank < bounds.n_ranks; rank++) {
                        u8 p = r->parts[b][rank] >> 4;

                        REQUIRE(!r->parts[b][rank] || w->procs[p].node == w->c.node_of_rank[rank],
                                "what process %u on node %u pushed counts, but rank %u is on node "
                                "%u",
                                p, w->procs[p].node, rank, w->c.node_of_rank[rank]);
                }
}

void truth_decide(struct world *w, u8 attempt, u8 version, u8 decision)
{
        struct truth *t = &w->truth[0];

        if (attempt == t->attempt) {
                REQUIRE(version == t->version && decision == t->decision,
                        "attempt %u is decided again, and otherwise", attempt);
                return;
        }
        REQUIRE(attempt > t->attempt, "attempt %u is decided after attempt %u", attempt,
                t->attempt);
        REQUIRE(version == t->version + commits(decision),
                "attempt %u makes version %u of version %u", attempt, version, t->version);
        check_votes(w, attempt);
        w->truth[1] = *t;
        *t = (struct truth){ attempt, version, decision };
}

void truth_stands(struct world *w, uint32_t p, u8 version)
{
        u8 *told = &w->told[w->procs[p].rank];

        REQUIRE(version <= w->truth[0].version,
                "process %u is told version %u, the job is at version %u", p, version,
                w->truth[0].version);
        if (w->procs[p].zombie)
                return;
        REQUIRE(version >= *told, "process %u is told version %u after version %u", p, version,
                *told);
        *told = version;
}

void truth_told(struct world *w, uint32_t p, u8 attempt, u8 version, u8 decision)
{
        const struct truth *t = &w->truth[w->truth[0].attempt != attempt];

        REQUIRE(attempt == t->attempt && version == t->version && decision == t->decision,
                "process %u is told that attempt %u came to version %u: not so", p, attempt,
                version);
        truth_stands(w, p, version);
}

void truth_aborted(struct world *w, uint32_t p, u8 attempt, u8 version)
{
        for (uint32_t i = 0; i < 2; i++)
                REQUIRE(!attempt || attempt != w->truth[i].attempt ||
                                version < w->truth[i].version || !commits(w->truth[i].decision),
                        "process %u is told that attempt %u is void, and version %u, which it made",
                        p, attempt, version);
}
