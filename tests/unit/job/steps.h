/* Material for conversations with the step machine. */
#pragma once

#include "daemon/job/rules/step.h"

struct rng {
        uint64_t state;
};
uint64_t rng_next(struct rng *rng);
/* 0 to n - 1. */
uint32_t rng_below(struct rng *rng, uint32_t n);

/* One set of plain hyperparameters, no clipping, loss scale 1. */
struct step_params steps_params(void);
/* A vote of this squared norm. */
struct votes steps_vote(double squared_norm, bool finite);
/* The first n_owners nodes own. */
struct placement steps_placement(uint32_t n_owners, bool mirror);
/*
 * Makes a machine that is FORMING and startable: rank r has joined on node node_of_rank[r], all
 * nodes are open, and the first n_owners nodes own, without mirrors.
 */
void steps_form(struct step *s, uint32_t world_size, const uint32_t *node_of_rank, uint32_t n_nodes,
                uint32_t n_owners);
/* The same in STEP_COLLECTING. */
void steps_start(struct step *s, uint32_t world_size, const uint32_t *node_of_rank,
                 uint32_t n_nodes, uint32_t n_owners);
/* All nodes with ranks are ready; returns the last one's action. */
enum step_action steps_ready(struct step *s, const struct step_params *p);
/* The same, and all holders vote. */
enum step_action steps_decide(struct step *s, const struct step_params *p);
/* All holders carry out the last decision. */
void steps_done(struct step *s);
