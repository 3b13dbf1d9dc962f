/* The coordinator's state machine.  No libuv, no UCX, no messages: events and actions. */
#include "daemon/job/rules/step.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"
#include "proto/text.h"

static int rank_slots_alloc(uint32_t world_size, uint32_t **ret_nodes,
                            enum rank_slot **ret_rank_slots)
{
        *ret_nodes = malloc(world_size * sizeof **ret_nodes);
        *ret_rank_slots = calloc(world_size, sizeof **ret_rank_slots);
        if (!*ret_nodes || !*ret_rank_slots) {
                free(*ret_nodes);
                free(*ret_rank_slots);
                return -ENOMEM;
        }
        for (uint32_t r = 0; r < world_size; r++)
                (*ret_nodes)[r] = RANK_ABSENT;
        return 0;
}

int step_init(struct step *s, uint32_t world_size, uint32_t n_nodes,
              const struct placement *placement)
{
        uint32_t n = placement_holders(placement);

        *s = (struct step){ .world_size = world_size,
                            .n_nodes = n_nodes,
                            .placement = *placement,
                            .odd = NO_HOLDER,
                            .loss_scale = 1 };
        if (rank_slots_alloc(world_size, &s->node_of_rank, &s->rank_slots)) {
                s->node_of_rank = NULL;
                s->rank_slots = NULL;
                return -ENOMEM;
        }
        s->cut = calloc(n_nodes, sizeof *s->cut);
        s->ready = calloc(n_nodes, sizeof *s->ready);
        s->voted = calloc(n, sizeof *s->voted);
        s->ballots = calloc(n, sizeof *s->ballots);
        s->done = calloc(n, sizeof *s->done);
        if (!s->cut || !s->ready || !s->voted || !s->ballots || !s->done) {
                step_deinit(s);
                return -ENOMEM;
        }
        for (uint32_t h = 0; h < n; h++)
                s->done[h] = true;
        return 0;
}

void step_deinit(struct step *s)
{
        free(s->node_of_rank);
        free(s->rank_slots);
        free(s->cut);
        free(s->ready);
        free(s->voted);
        free(s->ballots);
        free(s->done);
        free(s->ahead);
        round_reset(&s->round);
        *s = (struct step){ 0 };
}

int step_resize(struct step *s, uint32_t world_size)
{
        uint32_t *nodes;
        enum rank_slot *rank_slots;

        if (rank_slots_alloc(world_size, &nodes, &rank_slots))
                return -ENOMEM;
        free(s->node_of_rank);
        free(s->rank_slots);
        s->node_of_rank = nodes;
        s->rank_slots = rank_slots;
        s->world_size = world_size;
        s->phase = STEP_FORMING;
        return 0;
}

bool step_any_here(const struct step *s)
{
        for (uint32_t r = 0; r < s->world_size; r++)
                if (s->rank_slots[r] == RANK_SLOT_HERE)
                        return true;
        return false;
}

bool step_occupied(const struct step *s)
{
        for (uint32_t r = 0; r < s->world_size; r++)
                if (s->rank_slots[r] == RANK_SLOT_HERE ||
                    (s->rank_slots[r] == RANK_SLOT_LOST &&
                     !node_set_has(s->open, s->node_of_rank[r])))
                        return true;
        return false;
}

bool step_node_has_ranks(const struct step *s, uint32_t node)
{
        for (uint32_t r = 0; r < s->world_size; r++)
                if (s->node_of_rank[r] == node)
                        return true;
        return false;
}

bool step_needs_node(const struct step *s, uint32_t node)
{
        return placement_owner_on(&s->placement, node) != NO_OWNER || step_node_has_ranks(s, node);
}

/* ---- where the job stands --------------------------------------------------- */

void step_heard(struct step *s, uint64_t attempt)
{
        if (attempt > s->heard)
                s->heard = attempt;
}

void step_adopt(struct step *s, const struct recovery *r)
{
        s->version = r->version;
        s->decided_attempt = r->decided_attempt;
        s->decision = r->decision;
        s->skipped = r->skipped;
        if (r->decided_attempt == 0)
                return;
        s->loss_scale = r->decision.loss_scale;
        step_heard(s, r->decided_attempt + 1); /* open holders have heard of it */
}

struct recovery step_stands(const struct step *s)
{
        return (struct recovery){ .version = s->version,
                                  .decided_attempt = s->decided_attempt,
                                  .decision = s->decision,
                                  .skipped = s->skipped };
}

/* ---- ranks and nodes come and go --------------------------------------------- */

/* Begins to collect: no node is ready, and no holder has voted. */
static void step_collect(struct step *s)
{
        s->phase = STEP_COLLECTING;
        s->have_params = false;
        s->collecting_norm = false;
        memset(s->ready, 0, s->n_nodes * sizeof *s->ready);
        memset(s->voted, 0, placement_holders(&s->placement) * sizeof *s->voted);
}

static node_set step_needed(const struct step *s)
{
        node_set needed = placement_nodes(&s->placement);

        for (uint32_t r = 0; r < s->world_size; r++)
                if (s->node_of_rank[r] != RANK_ABSENT)
                        node_set_add(&needed, s->node_of_rank[r]);
        return needed;
}

bool step_startable(const struct step *s)
{
        node_set needed = step_needed(s);

        if (s->phase != STEP_FORMING || node_set_any(needed & ~s->open))
                return false;
        for (uint32_t r = 0; r < s->world_size; r++)
                if (s->rank_slots[r] != RANK_SLOT_HERE)
                        return false;
        for (uint32_t n = 0; n < s->n_nodes; n++)
                if (node_set_has(needed, n) && node_set_any(s->cut[n] & needed))
                        return false;
        for (uint32_t h = 0; h < placement_holders(&s->placement); h++)
                if (!s->done[h])
                        return false;
        return true;
}

void step_start(struct step *s)
{
        s->started = true;
        step_heard(s, s->attempt);
        s->attempt = s->heard + 1;
        s->normed = false;
        s->rejoined = 0;
        free(STEAL(s->ahead));
        round_reset(&s->round);
        step_collect(s);
}

/* True if a rank that comes back on the node goes on in the attempt. */
static bool step_rejoins(const struct step *s, uint32_t rank, uint32_t node)
{
        return s->phase != STEP_FORMING && s->node_of_rank[rank] == node && !s->normed &&
               !s->round.done && !s->round.given && !(s->phase == STEP_VOTING && s->norm_only);
}

int step_join(struct step *s, uint32_t rank, uint32_t node, enum step_action *ret,
              struct fault *fault)
{
        if (rank >= s->world_size)
                return fault_set(fault, ZERO_ERANK, "rank %u is outside the world size %u", rank,
                                 s->world_size);
        if (s->rank_slots[rank] == RANK_SLOT_HERE)
                return fault_set(fault, ZERO_ERANK, "rank %u is taken", rank);
        *ret = STEP_NOTHING;
        if (step_rejoins(s, rank, node)) {
                *ret = STEP_REJOIN;
                s->rejoined = 2;
                if (s->phase == STEP_COLLECTING && s->collecting_norm)
                        s->ready[node] = false; /* the rank asks for the norm anew */
        } else {
                s->phase = STEP_FORMING;
        }
        s->rank_slots[rank] = RANK_SLOT_HERE;
        s->node_of_rank[rank] = node;
        return 0;
}

void step_part(struct step *s, uint32_t rank, bool orderly)
{
        if (rank >= s->world_size || s->rank_slots[rank] != RANK_SLOT_HERE)
                return;
        s->rank_slots[rank] = orderly ? RANK_SLOT_LEFT : RANK_SLOT_LOST;
        if (orderly)
                s->node_of_rank[rank] = RANK_ABSENT;
        if (orderly || s->fail_on_lost)
                s->phase = STEP_FORMING;
}

void step_node_open(struct step *s, uint32_t node)
{
        node_set_add(&s->open, node);
}

void step_node_shut(struct step *s, uint32_t node)
{
        node_set_remove(&s->open, node);
}

void step_node_lost(struct step *s, uint32_t node)
{
        node_set_remove(&s->open, node);
        if (step_needs_node(s, node))
                s->phase = STEP_FORMING;
        for (uint32_t r = 0; r < s->world_size; r++)
                if (s->node_of_rank[r] == node && s->rank_slots[r] == RANK_SLOT_HERE)
                        s->rank_slots[r] = RANK_SLOT_LOST;
}

void step_links(struct step *s, uint32_t node, node_set cut)
{
        node_set needed = step_needed(s);

        s->cut[node] = cut;
        if (node_set_has(needed, node) && node_set_any(cut & needed))
                s->phase = STEP_FORMING;
}

/* ---- the step ------------------------------------------------------------------ */

/* Checks a rank's parameters against those of other ranks.  params NULL: it asks for the norm. */
static int params_check(const struct step *s, const struct step_params *params, uint32_t rank,
                        struct fault *fault)
{
        char text[240];

        if (params && params->n_sets && s->ahead &&
            !step_params_equal(s->ahead, params, text, sizeof text))
                return fault_set(
                        fault, ZERO_ECONFLICT,
                        "rank %u passes other values than rank %u passed to zero_ahead: %s", rank,
                        s->ahead_rank, text);
        if (params && s->have_params && !step_params_equal(&s->params, params, text, sizeof text))
                return fault_set(fault, ZERO_ECONFLICT,
                                 "ranks %u and %u pass different values to zero_step: %s",
                                 s->params_rank, rank, text);
        return 0;
}

/* A rank of a node that is ready, which means that all its ranks have called. */
static uint32_t step_ready_rank(const struct step *s)
{
        uint32_t rank = 0;

        while (rank + 1 < s->world_size &&
               (s->node_of_rank[rank] == RANK_ABSENT || !s->ready[s->node_of_rank[rank]]))
                rank++;
        return rank;
}

/* A step does not mix nodes that ask for the norm with nodes that end the step. */
static int step_ready_check(struct step *s, const struct step_params *params, uint32_t rank,
                            bool first, struct fault *fault)
{
        if (s->round.given)
                return fault_set(fault, ZERO_ECONFLICT,
                                 "rank %u calls %s while rank %u calls zero_all_reduce for %s",
                                 rank, params ? "zero_step" : "zero_norm", s->round.first,
                                 text_quote(s->round.name).text);
        if (first)
                return params_check(s, params, rank, fault);
        if (s->collecting_norm != (params == NULL))
                return fault_set(fault, ZERO_ECONFLICT, "rank %u calls %s while rank %u calls %s",
                                 rank, params ? "zero_step" : "zero_norm", step_ready_rank(s),
                                 params ? "zero_norm" : "zero_step");
        return params_check(s, params, rank, fault);
}

/* Ranks that wait in a void attempt wait for the next one, unless a rank will not come back. */
static int step_missing(const struct step *s, struct fault *fault)
{
        for (uint32_t r = 0; r < s->world_size; r++) {
                if (s->rank_slots[r] == RANK_SLOT_LEFT)
                        return fault_set(fault, ZERO_ELOSTRANK, "rank %u has left the job", r);
                if (s->rank_slots[r] == RANK_SLOT_LOST && s->fail_on_lost)
                        return fault_set(fault, ZERO_ELOSTRANK,
                                         "rank %u was lost: its session ended", r);
        }
        return 0;
}

int step_ready(struct step *s, uint32_t node, uint64_t attempt, const struct step_params *params,
               uint32_t rank, enum step_action *ret, struct fault *fault)
{
        bool first = true, all = true;
        int r;

        *ret = STEP_NOTHING;
        if (s->phase == STEP_FORMING)
                return step_missing(s, fault);
        if (attempt < s->attempt) /* the node will hear of it: a refusal would hit a later call */
                return 0;
        if (attempt > s->attempt || node >= s->n_nodes)
                return fault_set(fault, ZERO_EORDER, "attempt %llu is not the current one (%llu)",
                                 (unsigned long long)attempt, (unsigned long long)s->attempt);
        if (s->phase == STEP_COLLECTING && s->collecting_norm)
                s->ready[node] = false; /* its ranks ask again, or have given the norm up */
        for (uint32_t n = 0; n < s->n_nodes; n++)
                if (s->ready[n])
                        first = false;
        r = step_ready_check(s, params, rank, first, fault);
        if (r || s->phase == STEP_VOTING) /* ranks that ask again wait for the same decision */
                return r;
        s->ready[node] = true;
        s->collecting_norm = params == NULL;
        if (first)
                s->params_rank = rank;
        if (params && !s->have_params) {
                s->params = *params;
                s->have_params = true;
        }
        for (uint32_t n = 0; n < s->n_nodes; n++)
                all = all && (s->ready[n] || !step_node_has_ranks(s, n));
        if (all) {
                s->norm_only = params == NULL;
                s->phase = STEP_VOTING;
                *ret = STEP_PREPARE;
        }
        return 0;
}

int step_ahead(struct step *s, uint64_t attempt, const struct step_params *params, uint32_t rank,
               enum step_action *ret, struct fault *fault)
{
        int r;

        *ret = STEP_NOTHING;
        if (s->phase == STEP_FORMING || attempt < s->attempt) /* the rank will hear of it */
                return 0;
        if (attempt > s->attempt)
                return fault_set(fault, ZERO_EORDER, "attempt %llu is not the current one (%llu)",
                                 (unsigned long long)attempt, (unsigned long long)s->attempt);
        r = params_check(s, params, rank, fault);
        if (r || s->ahead)
                return r;
        s->ahead = malloc(sizeof *s->ahead);
        if (!s->ahead)
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        *s->ahead = *params;
        s->ahead_rank = rank;
        *ret = STEP_AHEAD;
        return 0;
}

int step_reduce(struct step *s, uint32_t node, uint64_t attempt, uint32_t rank,
                const struct numbers *c, enum step_action *ret, struct fault *fault)
{
        bool over = false;
        int r;

        *ret = STEP_NOTHING;
        if (s->phase == STEP_FORMING)
                return step_missing(s, fault);
        if (attempt < s->attempt || c->number < s->round.done) /* the node will hear of it */
                return 0;
        if (attempt > s->attempt || c->number > s->round.done || rank >= s->world_size ||
            s->node_of_rank[rank] != node)
                return fault_set(fault, ZERO_EORDER,
                                 "reduction %u of attempt %llu is not the current one (%u of %llu)",
                                 c->number, (unsigned long long)attempt, s->round.done,
                                 (unsigned long long)s->attempt);
        if (s->rejoined) {
                s->phase = STEP_FORMING;
                return 0;
        }
        for (uint32_t n = 0; n < s->n_nodes; n++)
                if (s->ready[n])
                        return fault_set(fault, ZERO_ECONFLICT,
                                         "rank %u calls zero_all_reduce for %s while rank %u calls "
                                         "%s",
                                         rank, text_quote(c->name).text, s->params_rank,
                                         s->collecting_norm ? "zero_norm" : "zero_step");
        r = round_give(&s->round, s->world_size, rank, c, &over, fault);
        if (r == 0 && over)
                *ret = STEP_REDUCED;
        return r;
}

static void step_decide(struct step *s, const struct votes *all)
{
        s->decision = decide(all, &s->params, s->decision.good_steps);
        s->loss_scale = s->decision.loss_scale;
        s->version += s->decision.commit;
        s->skipped += s->decision.overflow;
        s->decided_attempt = s->attempt++;
        s->normed = false;
        s->rejoined -= s->rejoined > 0;
        free(STEAL(s->ahead));
        round_reset(&s->round);
        for (uint32_t h = 0; h < placement_holders(&s->placement); h++)
                s->done[h] = false;
}

static void step_tell_norm(struct step *s, const struct votes *all)
{
        s->norm = votes_norm(all);
        s->normed = true;
}

/* The first mirror whose vote differs from its owner's. */
static uint32_t step_odd(const struct step *s)
{
        for (uint32_t h = s->placement.n_owners; h < placement_holders(&s->placement); h++)
                if (!votes_equal(&s->ballots[h], &s->ballots[holder_owner(&s->placement, h)]))
                        return h;
        return NO_HOLDER;
}

/* The votes that count. */
static struct votes step_tally(const struct step *s)
{
        struct votes all = { .finite = true };

        exact_sum_init(&all.norm);
        for (uint32_t o = 0; o < s->placement.n_owners; o++) {
                exact_sum_merge(&all.norm, &s->ballots[o].norm);
                all.finite = all.finite && s->ballots[o].finite;
        }
        return all;
}

static bool step_refuse(struct step *s)
{
        s->odd = NO_HOLDER;
        for (uint32_t h = 0; h < placement_holders(&s->placement); h++)
                if (s->ballots[h].refused.status) {
                        s->refusal = s->ballots[h].refused;
                        return true;
                }
        s->odd = step_odd(s);
        if (s->odd != NO_HOLDER)
                s->refusal = (struct fault){ .status = ZERO_ECONFLICT };
        return s->odd != NO_HOLDER;
}

void step_vote(struct step *s, uint32_t holder, uint64_t attempt, const struct votes *vote,
               enum step_action *ret)
{
        struct votes all;

        *ret = STEP_NOTHING;
        if (s->phase != STEP_VOTING || attempt != s->attempt ||
            holder >= placement_holders(&s->placement) || s->voted[holder])
                return;
        s->voted[holder] = true;
        s->ballots[holder] = *vote;
        for (uint32_t h = 0; h < placement_holders(&s->placement); h++)
                if (!s->voted[h])
                        return;
        *ret = step_refuse(s) ? STEP_REFUSE : STEP_DECIDE;
        all = step_tally(s);
        if (*ret == STEP_DECIDE && s->norm_only)
                step_tell_norm(s, &all);
        else if (*ret == STEP_DECIDE)
                step_decide(s, &all);
        step_collect(s);
}

void step_done(struct step *s, uint32_t holder, uint64_t attempt)
{
        if (holder < placement_holders(&s->placement) && attempt == s->decided_attempt)
                s->done[holder] = true;
}
