/* Mirrored owners: both copies have the bits of a run without mirrors, and a mirror that lies is
 * found. */
#include <string.h>

#include "cases.h"
#include "check.h"
#include "daemon/store/file.h"
#include "daemon/cluster/coordinator/coordinator.h"
#include "listening.h"

static struct training training_of(uint32_t nodes)
{
        struct training t = training_default();

        t.net.nodes = t.net.owners = nodes;
        t.net.delay_ms = 1;
        return t;
}

static void same_with_mirrors(struct training t, const char *what)
{
        struct outcome plain = training_run(&t), mirrored;

        t.net.mirror = true;
        mirrored = training_run(&t);
        outcome_same(&plain, &mirrored, what);
}

static void mirrors_change_nothing(void)
{
        struct training t = training_of(2);

        same_with_mirrors(t, "two nodes");
        t = training_of(5);
        t.masks = t.norm = true;
        same_with_mirrors(t, "five nodes, masks and norms");
        t = training_of(3);
        t.poisoned_step = 2;
        t.loss_scale = 1024;
        t.growth_interval = 2;
        t.reduce_dtype = t.grad_dtype = ZERO_BF16;
        same_with_mirrors(t, "a step that is skipped");
        t.restart_after = 2;
        same_with_mirrors(t, "a restart");
}

/* ---- both copies --------------------------------------------------------------- */

static struct replica *held(struct session *s, uint32_t holder)
{
        const struct placement *p = &s->net.nodes[0].x.placement;

        return replica_of_copy(net_job(&s->net, holder_node(p, holder), "zoo"),
                               holder_owner(p, holder), holder_copy(p, holder));
}

static bool all_at(struct session *s, uint64_t version)
{
        for (uint32_t h = 0; h < placement_holders(&s->net.nodes[0].x.placement); h++)
                if (held(s, h)->state->record->version != version)
                        return false;
        return true;
}

static void same_bytes(const struct state *a, const struct state *b)
{
        size_t masters = a->plan->master_elements * sizeof(float),
               moments = a->plan->moment_elements * sizeof(float);

        CHECK(memcmp(a->in->master, b->in->master, masters) == 0);
        CHECK(memcmp(a->in->moments[0], b->in->moments[0], moments) == 0);
        CHECK(memcmp(a->in->moments[1], b->in->moments[1], moments) == 0);
        CHECK(memcmp(a->tensor_step, b->tensor_step, a->n_tensors * sizeof *a->tensor_step) == 0);
        CHECK(a->record->decided_attempt == b->record->decided_attempt);
        CHECK(memcmp(&a->record->norm, &b->record->norm, sizeof a->record->norm) == 0);
}

static void both_copies_are_the_same_bytes_after_each_step(void)
{
        struct training t = training_of(3);
        struct session s;

        t.net.mirror = true;
        t.masks = true;
        session_open(&s, &t);
        session_attach(&s);
        for (uint32_t step = 1; step <= t.steps; step++) {
                session_program(&s, step);
                session_run(&s);
                for (int turns = 0; !all_at(&s, step); turns++) {
                        CHECK(turns < 2000, "a mirror has not carried step %u out", step);
                        net_turn(&s.net);
                }
                for (uint32_t o = 0; o < 3; o++)
                        same_bytes(held(&s, o)->state, held(&s, o + 3)->state);
        }
        session_close(&s);
}

/* ---- a mirror that lies ------------------------------------------------------------ */

/* Sends a made-up vote in the name of a holder's node.  The first vote that comes counts. */
static void vote_otherwise(struct session *s, uint32_t coordinator, uint32_t holder)
{
        struct engine *x = &s->net.nodes[coordinator].x;
        const struct step *step = &coordinated_find(x, "zoo")->state.step;
        Zero__LinkMessage m = ZERO__LINK_MESSAGE__INIT;
        Zero__Prepared vote = ZERO__PREPARED__INIT;
        int64_t norm[EXACT_SUM_BINS] = { 0 };

        norm[30] = 1;
        vote.attempt = step->attempt;
        vote.owner = holder_owner(&step->placement, holder);
        vote.copy = holder_copy(&step->placement, holder);
        vote.finite = vote.closing = true;
        vote.n_norm = EXACT_SUM_BINS;
        vote.norm = norm;
        m.job = (char *)"zoo";
        m.body_case = ZERO__LINK_MESSAGE__BODY_PREPARED;
        m.prepared = &vote;
        engine_message(x, holder_node(&step->placement, holder), &m);
}

static void heard_of(const struct step *step, uint32_t owner)
{
        char nodes[64];

        snprintf(nodes, sizeof nodes, "nodes n%u and n%u",
                 holder_node(&step->placement, holder_of(&step->placement, owner, 0)),
                 holder_node(&step->placement, holder_of(&step->placement, owner, 1)));
        for (uint32_t r = 0; r < 4; r++)
                CHECK(ears[r].status == ZERO_ECONFLICT && strstr(ears[r].text, nodes) &&
                              strstr(ears[r].text, "damaged"),
                      "rank %u: %d %s", r, ears[r].status, ears[r].text);
}

static void copies_that_vote_otherwise(uint32_t holder)
{
        struct training t = training_of(3);
        const struct step *step;
        uint32_t coordinator;
        uint64_t seed = 1, attempt;
        struct session s;

        t.net.mirror = true;
        open_listening(&s, &t);
        session_attach(&s);
        coordinator = coordinator_of(&s.net.nodes[0].x, "zoo");
        step = &coordinated_find(&s.net.nodes[coordinator].x, "zoo")->state.step;
        attempt = step->attempt;
        session_program(&s, 1);
        while (trainers_turn(s.trainers, t.ranks, &seed))
                vote_otherwise(&s, coordinator, holder);
        session_run(&s);
        heard_of(step, holder_owner(&step->placement, holder));
        CHECK(step->version == 0 && step->attempt == attempt);
        for (uint32_t r = 0; r < t.ranks; r++)
                trainer_add(&s.trainers[r], (struct op){ .kind = OP_STEP, .params = &s.params });
        session_run(&s);
        CHECK(step->version == 1 && s.trainers[0].version == 1, "%s", ears[0].text);
        session_close(&s);
}

static void a_copy_that_votes_otherwise_is_found_and_both_nodes_are_named(void)
{
        copies_that_vote_otherwise(4);
        copies_that_vote_otherwise(1);
}

/* ---- a mirror that missed a put ------------------------------------------------------ */

static bool is_whole(void *arg)
{
        struct session *s = arg;
        struct engine *x = &s->net.nodes[0].x;
        const struct step *step =
                &coordinated_find(&s->net.nodes[coordinator_of(x, "zoo")].x, "zoo")->state.step;

        for (uint32_t h = 0; h < 3; h++)
                if (held(s, h)->state->puts != held(s, h + 3)->state->puts)
                        return false;
        return node_set_count(step->open) == 3;
}

/* A put, as far as a comparison of copies sees it. */
static void put(struct session *s, uint32_t holder, uint64_t number)
{
        struct state *state = held(s, holder)->state;

        state_put_begin(state);
        state_put_end(state, number);
}

enum { PUT_MISSED, PUT_MISSED_AND_LOST, PUT_MISSED_AND_PUT, PUT_MISSED_KINDS };

/* A node that missed a put is back; after that many turns a third node is lost, or another put
 * comes. */
static void put_missed(struct session *s, uint32_t turns, int kind)
{
        uint32_t coordinator = coordinator_of(&s->net.nodes[0].x, "zoo");
        uint32_t twin = (coordinator + 1) % 3, third = (coordinator + 2) % 3;
        struct engine *x = &s->net.nodes[coordinator].x;

        put(s, coordinator, 3 * turns + 1);
        fabric_cut(x->fabric, twin, "a test");
        while (node_set_has(x->up, twin))
                net_turn(&s->net);
        while (!node_set_has(x->up, twin))
                net_turn(&s->net);
        for (uint32_t i = 0; i < turns; i++)
                net_turn(&s->net);
        if (kind == PUT_MISSED_AND_LOST)
                fabric_cut(x->fabric, third, "a test");
        for (uint32_t copy = 0; kind == PUT_MISSED_AND_PUT && copy < 2; copy++)
                put(s, coordinator + 3 * copy, 3 * turns + 2);
        net_wait(&s->net, is_whole, s, "the mirror to be made anew");
}

static void a_mirror_that_missed_a_put_is_filled_again_whatever_comes_between(void)
{
        struct training t = training_of(3);
        struct session s;

        t.net.mirror = true;
        t.net.delay_ms = 0;
        session_open(&s, &t);
        session_attach(&s);
        session_program(&s, 1);
        session_run(&s);
        kill_all(&s);
        while (!all_at(&s, 1))
                net_turn(&s.net);
        for (uint32_t turns = 0; turns < 30; turns++)
                for (int kind = 0; kind < PUT_MISSED_KINDS; kind++)
                        put_missed(&s, turns, kind);
        session_close(&s);
}

const struct test_case mirror_cases[] = {
        { "mirrors-change-nothing", mirrors_change_nothing },
        { "both-copies-are-the-same-bytes-after-each-step",
          both_copies_are_the_same_bytes_after_each_step },
        { "a-copy-that-votes-otherwise-is-found-and-both-nodes-are-named",
          a_copy_that_votes_otherwise_is_found_and_both_nodes_are_named },
        { "a-mirror-that-missed-a-put-is-filled-again-whatever-comes-between",
          a_mirror_that_missed_a_put_is_filled_again_whatever_comes_between },
        { 0 },
};
