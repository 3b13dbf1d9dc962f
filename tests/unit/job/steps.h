/* Material for conversations with the step machine. */
#pragma once

#include "daemon/job/step.h"

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
/* A machine whose rank r has joined on node node_of_rank[r]; in STEP_COLLECTING. */
void steps_start(struct step *s, uint32_t world_size, const uint32_t *node_of_rank,
                 uint32_t n_nodes, uint32_t n_owners);
