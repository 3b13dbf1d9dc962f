/* The step machine, out of a world and back into it. */
#include "machine.h"

static uint32_t node_of_rank[RANKS];
static enum step_seat seats[RANKS];
static uint64_t cut[NODES];
static bool ready[NODES], voted[HOLDERS], done[HOLDERS];
static struct votes ballots[HOLDERS];
static struct step step = { .node_of_rank = node_of_rank,
                            .seats = seats,
                            .cut = cut,
                            .ready = ready,
                            .voted = voted,
                            .ballots = ballots,
                            .done = done };

struct step_params machine_params(u8 scale)
{
        return (struct step_params){ .n_sets = 1,
                                     .sets = { { 1e-3, 0.9, 0.999, 1e-8, 0.01 } },
                                     .clip_norm = 0.25,
                                     .loss_scale = scale_value(scale),
                                     .growth_interval = 2 };
}

static void load_votes(const struct coordinator *c)
{
        for (uint32_t h = 0; h < placement_holders(&step.view); h++) {
                voted[h] = c->votes[h] != 0;
                if (voted[h])
                        ballots[h] = *vote_at(c->votes[h]);
        }
}

struct step *machine_load(const struct world *w)
{
        const struct coordinator *c = &w->c;

        step.world_size = bounds.n_ranks;
        step.n_nodes = bounds.n_nodes;
        step.view = view;
        step.phase = c->phase;
        step.version = c->version;
        step.attempt = c->attempt;
        step.heard = c->heard;
        step.open = c->open;
        step.have_params = c->have_params;
        step.params_rank = c->params_rank;
        step.params = machine_params(c->params_scale);
        step.decision = *decision_at(c->decision);
        step.decided_attempt = c->decided_attempt;
        step.loss_scale = scale_value(c->scale);
        step.good_steps = c->good_steps;
        step.skipped = c->skipped;
        for (uint32_t r = 0; r < RANKS; r++) {
                node_of_rank[r] =
                        c->node_of_rank[r] == NOBODY ? (uint32_t)RANK_ABSENT : c->node_of_rank[r];
                seats[r] = c->seats[r];
        }
        for (uint32_t n = 0; n < NODES; n++) {
                cut[n] = c->cut[n];
                ready[n] = c->ready >> n & 1;
        }
        for (uint32_t h = 0; h < HOLDERS; h++)
                done[h] = c->done >> h & 1;
        load_votes(c);
        return &step;
}

void machine_store(struct world *w)
{
        struct coordinator *c = &w->c;

        c->phase = (u8)step.phase;
        c->version = (u8)step.version;
        c->attempt = (u8)step.attempt;
        c->heard = (u8)step.heard;
        c->open = (u8)step.open;
        c->have_params = step.have_params;
        c->params_rank = (u8)step.params_rank;
        c->params_scale = scale_number(step.params.loss_scale);
        c->decision = step.decided_attempt ? decision_number(&step.decision) : 0;
        c->decided_attempt = (u8)step.decided_attempt;
        c->scale = scale_number(step.loss_scale);
        c->good_steps = (u8)step.good_steps;
        c->skipped = (u8)step.skipped;
        c->ready = c->done = 0;
        for (uint32_t r = 0; r < RANKS; r++) {
                c->node_of_rank[r] = node_of_rank[r] == RANK_ABSENT ? NOBODY : (u8)node_of_rank[r];
                c->seats[r] = (u8)seats[r];
        }
        for (uint32_t n = 0; n < NODES; n++) {
                c->cut[n] = (u8)cut[n];
                c->ready |= (u8)(ready[n] << n);
        }
        for (uint32_t h = 0; h < HOLDERS; h++) {
                c->done |= (u8)(done[h] << h);
                if (!voted[h])
                        c->votes[h] = 0;
        }
}
