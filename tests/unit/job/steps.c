/* Material for conversations with the step machine. */
#include "steps.h"

#include <stdlib.h>

/* splitmix64 */
uint64_t rng_next(struct rng *rng)
{
        uint64_t z = rng->state += 0x9e3779b97f4a7c15;

        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
        z = (z ^ z >> 27) * 0x94d049bb133111eb;
        return z ^ z >> 31;
}

uint32_t rng_below(struct rng *rng, uint32_t n)
{
        return (uint32_t)(rng_next(rng) % n);
}

struct step_params steps_params(void)
{
        return (struct step_params){ .n_sets = 1,
                                     .sets = { { .value = { 1e-3, 0.9, 0.999, 1e-8, 0.01 } } },
                                     .loss_scale = 1 };
}

struct votes steps_vote(double squared_norm, bool finite)
{
        struct votes v = { .finite = finite };

        exact_sum_init(&v.norm);
        exact_sum_add(&v.norm, squared_norm);
        return v;
}

struct placement steps_placement(uint32_t n_owners, bool mirror)
{
        uint32_t nodes[ZERO_NODE_MAX];
        struct placement placement;

        for (uint32_t o = 0; o < n_owners; o++)
                nodes[o] = o;
        placement_init(&placement, 0, nodes, n_owners, mirror);
        return placement;
}

void steps_form(struct step *s, uint32_t world_size, const uint32_t *node_of_rank, uint32_t n_nodes,
                uint32_t n_owners)
{
        const struct placement placement = steps_placement(n_owners, false);
        enum step_action action;

        if (step_init(s, world_size, n_nodes, &placement))
                abort();
        for (uint32_t n = 0; n < n_nodes; n++)
                step_node_open(s, n);
        for (uint32_t r = 0; r < world_size; r++)
                if (step_join(s, r, node_of_rank[r], &action, NULL) || action != STEP_NOTHING)
                        abort();
}

void steps_start(struct step *s, uint32_t world_size, const uint32_t *node_of_rank,
                 uint32_t n_nodes, uint32_t n_owners)
{
        steps_form(s, world_size, node_of_rank, n_nodes, n_owners);
        if (!step_startable(s))
                abort();
        step_start(s);
}

enum step_action steps_ready(struct step *s, const struct step_params *p)
{
        enum step_action action = STEP_NOTHING;

        for (uint32_t n = 0; n < s->n_nodes; n++)
                if (step_node_has_ranks(s, n) && step_ready(s, n, s->attempt, p, 0, &action, NULL))
                        abort();
        return action;
}

enum step_action steps_decide(struct step *s, const struct step_params *p)
{
        const struct votes v = steps_vote(1, true);
        uint64_t attempt = s->attempt;
        enum step_action action = STEP_NOTHING;

        if (steps_ready(s, p) != STEP_PREPARE)
                abort();
        for (uint32_t h = 0; h < placement_holders(&s->placement); h++)
                step_vote(s, h, attempt, &v, &action);
        return action;
}

void steps_done(struct step *s)
{
        for (uint32_t h = 0; h < placement_holders(&s->placement); h++)
                step_done(s, h, s->decided_attempt);
}
