/* Conversations with the coordinator's state machine: a step with mirrored owners. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "steps.h"

enum { OWNERS = 3, HOLDERS = 2 * OWNERS };

static const uint32_t nodes[] = { 0, 1, 2 };

/* Owners' votes whose sum differs if one bit of a vote does. */
static struct votes vote_of(uint32_t holder)
{
        return steps_vote(1.0 / (3 + holder % OWNERS), true);
}

static void mirrored(struct step *s)
{
        const struct placement placement = steps_placement(OWNERS, true);
        enum step_action action;

        cr_assert_eq(step_init(s, 3, 3, &placement), 0);
        for (uint32_t n = 0; n < 3; n++) {
                step_node_open(s, n);
                cr_assert_eq(step_join(s, n, nodes[n], &action, NULL), 0);
        }
        cr_assert(step_startable(s));
        step_start(s);
}

static void shuffle(struct rng *rng, uint32_t *order, uint32_t n)
{
        for (uint32_t i = 0; i < n; i++) {
                uint32_t k = rng_below(rng, i + 1);

                order[i] = order[k];
                order[k] = i;
        }
}

/* All holders vote in some order; returns the last one's action. */
static enum step_action votes_cast(struct step *s, struct rng *rng, const struct votes *votes)
{
        enum step_action action = STEP_NOTHING;
        uint32_t order[HOLDERS];
        uint64_t attempt = s->attempt;

        shuffle(rng, order, HOLDERS);
        for (uint32_t i = 0; i < HOLDERS; i++) {
                cr_assert_eq(action, STEP_NOTHING, "%u holders have voted", i);
                step_vote(s, order[i], attempt, &votes[order[i]], &action);
        }
        return action;
}

static void votes_fill(struct votes *votes)
{
        for (uint32_t h = 0; h < HOLDERS; h++)
                votes[h] = vote_of(h);
}

Test(mirror, counts_an_owner_once)
{
        struct step_params p = steps_params();
        struct votes votes[HOLDERS], all = { .finite = true };
        struct rng rng = { 1 };
        struct decision expected;

        votes_fill(votes);
        exact_sum_init(&all.norm);
        for (uint32_t o = 0; o < OWNERS; o++)
                exact_sum_merge(&all.norm, &votes[o].norm);
        p.clip_norm = 0.3;
        expected = decide(&all, &p, 0);
        for (int round = 0; round < 100; round++) {
                struct step s;

                mirrored(&s);
                cr_assert_eq(steps_ready(&s, &p), STEP_PREPARE);
                cr_assert_eq(votes_cast(&s, &rng, votes), STEP_DECIDE);
                cr_assert_eq(s.decision.grad_norm, expected.grad_norm);
                cr_assert_eq(s.decision.grad_scale, expected.grad_scale);
                cr_assert_eq(s.version, 1);
                step_deinit(&s);
        }
}

Test(mirror, tells_the_norm_of_an_owner_once)
{
        struct votes votes[HOLDERS], all = { .finite = true };
        struct rng rng = { 2 };
        struct step s;

        votes_fill(votes);
        exact_sum_init(&all.norm);
        for (uint32_t o = 0; o < OWNERS; o++)
                exact_sum_merge(&all.norm, &votes[o].norm);
        mirrored(&s);
        cr_assert_eq(steps_ready(&s, NULL), STEP_PREPARE);
        cr_assert_eq(votes_cast(&s, &rng, votes), STEP_DECIDE);
        cr_assert_eq(s.norm, votes_norm(&all));
        cr_assert_eq(s.attempt, 1);
        step_deinit(&s);
}

/* Another call, in which all agree, can end the same attempt. */
static void goes_on(struct step *s, struct rng *rng, const struct step_params *p)
{
        struct votes votes[HOLDERS];

        votes_fill(votes);
        cr_assert(s->version == 0 && s->attempt == 1 && s->decided_attempt == 0);
        cr_assert_eq(steps_ready(s, p), STEP_PREPARE);
        cr_assert_eq(votes_cast(s, rng, votes), STEP_DECIDE);
        cr_assert_eq(s->version, 1);
}

Test(mirror, that_votes_otherwise_is_named_and_the_step_refused_in_any_order)
{
        struct step_params p = steps_params();
        struct rng rng = { 3 };

        for (int round = 0; round < 200; round++) {
                uint32_t liar = rng_below(&rng, HOLDERS);
                struct votes votes[HOLDERS];
                struct step s;

                votes_fill(votes);
                if (round % 2)
                        exact_sum_add(&votes[liar].norm, ldexp(1, -900)); /* no norm shows it */
                else
                        votes[liar].finite = false;
                mirrored(&s);
                cr_assert_eq(steps_ready(&s, round % 3 ? &p : NULL), STEP_PREPARE);
                cr_assert_eq(votes_cast(&s, &rng, votes), STEP_REFUSE);
                cr_assert_eq(s.refusal.status, ZERO_ECONFLICT);
                cr_assert_eq(s.odd, OWNERS + liar % OWNERS);
                cr_assert_eq(s.phase, STEP_COLLECTING);
                goes_on(&s, &rng, &p);
                step_deinit(&s);
        }
}

Test(mirror, of_gradients_that_are_not_finite_need_not_add_up_to_the_same)
{
        struct step_params p = steps_params();
        struct votes votes[HOLDERS];
        struct rng rng = { 4 };
        struct step s;

        votes_fill(votes);
        votes[1].finite = votes[OWNERS + 1].finite = false;
        exact_sum_add(&votes[1].norm, 7);
        mirrored(&s);
        cr_assert_eq(steps_ready(&s, &p), STEP_PREPARE);
        cr_assert_eq(votes_cast(&s, &rng, votes), STEP_DECIDE);
        cr_assert(s.decision.overflow);
        step_deinit(&s);
}

Test(mirror, whoever_refuses_is_heard)
{
        struct step_params p = steps_params();
        struct rng rng = { 5 };

        for (uint32_t h = 0; h < HOLDERS; h++) {
                struct votes votes[HOLDERS];
                struct step s;

                votes_fill(votes);
                exact_sum_init(&votes[h].norm);
                fault_set(&votes[h].refused, ZERO_EQUOTA, "no room");
                mirrored(&s);
                cr_assert_eq(steps_ready(&s, &p), STEP_PREPARE);
                cr_assert_eq(votes_cast(&s, &rng, votes), STEP_REFUSE);
                cr_assert_eq(s.refusal.status, ZERO_EQUOTA);
                cr_assert_str_eq(s.refusal.text, "no room");
                cr_assert_eq(s.odd, NO_HOLDER);
                goes_on(&s, &rng, &p);
                step_deinit(&s);
        }
}

Test(mirror, a_start_waits_for_all_holders_to_carry_the_decision_out)
{
        struct step_params p = steps_params();
        struct rng rng = { 6 };

        for (uint32_t last = 0; last < HOLDERS; last++) {
                struct votes votes[HOLDERS];
                enum step_action action;
                struct step s;

                votes_fill(votes);
                mirrored(&s);
                cr_assert_eq(steps_ready(&s, &p), STEP_PREPARE);
                cr_assert_eq(votes_cast(&s, &rng, votes), STEP_DECIDE);
                step_node_lost(&s, 0);
                step_node_open(&s, 0);
                cr_assert_eq(step_join(&s, 0, 0, &action, NULL), 0);
                for (uint32_t h = 0; h < HOLDERS; h++)
                        if (h != last)
                                step_done(&s, h, s.decided_attempt);
                cr_assert(!step_startable(&s));
                step_done(&s, HOLDERS, s.decided_attempt);
                step_done(&s, last, s.decided_attempt - 1);
                cr_assert(!step_startable(&s));
                step_done(&s, last, s.decided_attempt);
                cr_assert(step_startable(&s));
                step_deinit(&s);
        }
}

/* ---- who holds what ---- */

Test(placement, each_node_holds_its_own_and_the_mirror_of_the_owner_before_it)
{
        for (uint32_t n = 1; n <= NODE_SET_MAX; n++) {
                uint32_t owners[NODE_SET_MAX], held[NODE_SET_MAX] = { 0 };
                struct placement p;

                for (uint32_t o = 0; o < n; o++)
                        owners[o] = (5 * o + 3) % NODE_SET_MAX; /* 5 divides no power of two */
                placement_init(&p, 9, owners, n, true);
                cr_assert_eq(placement_holders(&p), n > 1 ? 2 * n : 1);
                for (uint32_t h = 0; h < placement_holders(&p); h++) {
                        uint32_t owner = holder_owner(&p, h), copy = holder_copy(&p, h);

                        cr_assert_eq(holder_of(&p, owner, copy), h);
                        cr_assert_eq(holder_node(&p, h), owners[(owner + copy) % n]);
                        cr_assert(node_set_has(placement_nodes(&p), holder_node(&p, h)));
                        held[holder_node(&p, h)]++;
                }
                for (uint32_t o = 0; o < n; o++) {
                        cr_assert_eq(held[owners[o]], p.copies);
                        cr_assert_eq(placement_owner_on(&p, owners[o]), (int32_t)o);
                }
                cr_assert_eq(node_set_count(placement_nodes(&p)), n);
        }
}

/* n nodes of 1 to NODE_OWNERS_MAX devices, as far as the list has room. */
static uint32_t some_devices(uint32_t n, uint32_t *ret)
{
        uint32_t owners = 0;

        for (uint32_t i = 0; i < n; i++) {
                uint32_t devices = 1 + (3 * i + n) % NODE_OWNERS_MAX, left = n - 1 - i;

                if (owners + devices + left > ZERO_NODE_MAX)
                        devices = 1;
                while (devices--)
                        ret[owners++] = n - 1 - i;
        }
        return owners;
}

Test(placement, a_mirror_is_on_another_node_whatever_devices_nodes_have)
{
        for (uint32_t n = 2; n <= ZERO_NODE_MAX; n++) {
                uint32_t owners[ZERO_NODE_MAX], n_owners = some_devices(n, owners);
                struct placement p;

                placement_init(&p, 1, owners, n_owners, true);
                cr_assert(placement_sane(&p, n));
                cr_assert_eq(p.copies, 2);
                for (uint32_t o = 0; o < n_owners; o++) {
                        uint32_t own = holder_of(&p, o, 0), mirror = holder_of(&p, o, 1);
                        uint32_t next = (o + 1) % n_owners;

                        while (owners[next] == owners[o])
                                next = (next + 1) % n_owners;
                        cr_assert_eq(holder_node(&p, own), owners[o]);
                        cr_assert_eq(holder_node(&p, mirror), owners[next]);
                        cr_assert_lt(holder_device(&p, mirror),
                                     placement_owners_on(&p, owners[next]));
                        cr_assert_eq(holder_device(&p, own),
                                     o - (uint32_t)placement_owner_on(&p, owners[o]));
                }
        }
}

Test(placement, one_node_has_no_mirror_and_too_many_devices_make_no_sense)
{
        uint32_t owners[NODE_OWNERS_MAX + 1] = { 0 };
        struct placement p;

        placement_init(&p, 1, owners, NODE_OWNERS_MAX, true);
        cr_assert_eq(p.copies, 1);
        cr_assert(placement_sane(&p, 1));
        placement_init(&p, 1, owners, NODE_OWNERS_MAX + 1, true);
        cr_assert(!placement_sane(&p, 1));
        placement_init(&p, 1, (uint32_t[]){ 0, 1, 0 }, 3, true);
        cr_assert(!placement_sane(&p, 2), "its devices are parted");
}
