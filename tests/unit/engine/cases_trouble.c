/* Trouble: jobs that are dropped, links that end, calls out of order. */
#include <string.h>

#include "cases.h"
#include "check.h"
#include "daemon/cluster/coordinator/coordinator.h"
#include "daemon/job/transfer/staging.h"
#include "daemon/step/reduce/accumulator.h"
#include "daemon/step/update/update.h"
#include "listening.h"

/* Runs one operation of one rank to its end. */
static int one_op(struct session *s, uint32_t rank, struct op op)
{
        struct trainer *t = &s->trainers[rank];

        ears[rank] = (struct ears){ 0 };
        trainer_add(t, op);
        trainers_run(t, 1, 1);
        return ears[rank].status;
}

/* ---- drop ---- */

static void a_job_dropped_at_any_time_leaves_nothing(void)
{
        for (uint32_t turns = 0; turns < 120; turns += 3) {
                struct training t = training_default();
                struct session s;

                t.net = (struct net_options){ .nodes = 3, .owners = 3, .delay_ms = turns % 2 };
                t.prefetch = t.opposite = true;
                open_listening(&s, &t);
                session_attach(&s);
                session_program(&s, 1);
                run_turns(&s, turns, turns);
                net_drop(&s.net, "zoo");
                session_run(&s);
                kill_all(&s);
                net_gone(&s.net);
                session_close(&s);
        }
}

static bool released(void *arg)
{
        return ((struct engine *)arg)->releases == 0;
}

/* The file is gone at once; another thread frees the memory, which takes long. */
static void a_dropped_state_is_freed_beside_the_loop(void)
{
        struct training t = training_default();
        Zero__LinkMessage m = ZERO__LINK_MESSAGE__INIT;
        Zero__Drop drop = ZERO__DROP__INIT;
        struct engine *x;
        struct session s;

        t.net = (struct net_options){ .nodes = 1, .owners = 1 };
        t.ranks = 1;
        open_listening(&s, &t);
        session_attach(&s);
        x = &s.net.nodes[0].x;
        m.job = (char *)"zoo";
        m.drop = &drop;
        drop_message(x, 0, &m);
        CHECK(x->releases == 1);
        CHECK(state_vacant(
                      x->store,
                      &(struct state_identity){ .job.name = "zoo", .epoch = x->placement.epoch }, 0,
                      NULL) == 0);
        net_wait(&s.net, released, x, "the memory");
        CHECK(store_used(x->store) == 0);
        kill_all(&s);
        session_close(&s);
}

static bool kept;

static void on_told(struct engine *x, uint32_t node, uint64_t call, bool keeps, node_set untold)
{
        kept = keeps;
}

/* Drops a job whose states are gone already, so nothing has to be freed. */
static void a_drop_is_kept_where_no_state_is_left(void)
{
        struct training t = training_default();
        struct session s;
        struct engine *x;
        struct fault fault;
        struct job *job;

        t.net = (struct net_options){ .nodes = 1, .owners = 1 };
        t.ranks = 1;
        open_listening(&s, &t);
        session_attach(&s);
        x = &s.net.nodes[0].x;
        job = job_find(x, "zoo");
        job->drop_state = true;
        replica_free(replica_first(job));
        net_wait(&s.net, released, x, "the memory");
        kept = false;
        drop_order(x, "zoo", 0, 0, on_told);
        CHECK(kept && !drop_check(x, "zoo", &fault));
        kill_all(&s);
        session_close(&s);
}

static void a_dropped_job_can_be_made_anew(void)
{
        struct training t = training_default();
        struct session s;

        session_open(&s, &t);
        for (int i = 0; i < 3; i++) {
                session_attach(&s);
                session_program(&s, 1);
                session_run(&s);
                CHECK(s.trainers[0].version == 1);
                memset(s.outcome.views, 0, sizeof s.outcome.views);
                net_drop(&s.net, "zoo");
                kill_all(&s);
                net_gone(&s.net);
        }
        session_close(&s);
}

/* Something in flight on node 1 still needs the earlier job. */
static void a_rank_waits_for_the_end_of_a_dropped_job(void)
{
        struct training t = training_default();
        struct session s;
        struct job *earlier;

        session_open(&s, &t);
        session_attach(&s);
        earlier = net_job(&s.net, 1, "zoo");
        job_ref(earlier);
        net_drop(&s.net, "zoo");
        kill_all(&s);
        for (int i = 0; i < 50; i++)
                net_turn(&s.net);
        for (uint32_t r = 0; r < t.ranks; r++)
                trainer_add(&s.trainers[r], (struct op){ .kind = OP_ATTACH });
        run_turns(&s, 100, 1);
        CHECK(s.trainers[0].busy);
        job_unref(earlier);
        session_run(&s);
        session_program(&s, 1);
        session_run(&s);
        CHECK(s.trainers[0].version == 1);
        session_close(&s);
}

static void daemons_stop_in_the_middle(void)
{
        for (uint32_t turns = 0; turns < 100; turns += 7) {
                struct training t = training_default();
                struct session s;

                t.net = (struct net_options){ .nodes = 3, .owners = 2, .delay_ms = 1 };
                open_listening(&s, &t);
                session_attach(&s);
                session_program(&s, 1);
                run_turns(&s, turns, turns);
                kill_all(&s); /* sessions end before the engine */
                session_close(&s);
        }
}

/* ---- attaching ---- */

static void two_sessions_cannot_be_one_rank(void)
{
        struct training t = training_default();
        struct session s;
        struct trainer both[2];
        uint64_t seed = 3;

        t.ranks = 2;
        t.net.nodes = 3;
        t.node_of_rank[1] = 2; /* whichever of the others gets in has a window of its own */
        open_listening(&s, &t);
        both[0] = s.trainers[0];
        both[1] = s.trainers[0];
        both[1].node = 1;
        for (int i = 0; i < 2; i++)
                trainer_add(&both[i], (struct op){ .kind = OP_ATTACH });
        for (int i = 0; i < 50; i++) /* both are there before the job is open */
                trainers_turn(both, 2, &seed);
        CHECK(ears[0].status == ZERO_ERANK && strstr(ears[0].text, "rank 0 is taken"), "%s",
              ears[0].text);
        trainer_add(&s.trainers[1], (struct op){ .kind = OP_ATTACH });
        trainers_run(&s.trainers[1], 1, 1);
        trainers_run(both, 2, 1);
        CHECK((both[0].rank->job != NULL) + (both[1].rank->job != NULL) == 1);
        CHECK(ears[0].failures == 1 && ears[1].failures == 0);
        trainer_free(&both[0]);
        trainer_free(&both[1]);
        session_close(&s);
}

static void a_rank_that_gave_up_attaching_may_try_again(void)
{
        struct training t = training_default();
        struct session s;

        open_listening(&s, &t);
        s.trainers[0].needs.timeout_ms = 300;
        CHECK(one_op(&s, 0, (struct op){ .kind = OP_ATTACH }) == ZERO_EDEADLINE);
        trainer_kill(&s.trainers[0]);
        for (int i = 0; i < 2; i++) { /* and one that was killed while it attached */
                uint64_t seed = 1;

                trainer_add(&s.trainers[1], (struct op){ .kind = OP_ATTACH });
                for (int k = 0; k < 20; k++)
                        trainers_turn(&s.trainers[1], 1, &seed);
                trainer_kill(&s.trainers[1]);
                forget_program(&s.trainers[1]);
        }
        s.trainers[0].needs.timeout_ms = 60000;
        memset(ears, 0, sizeof ears);
        session_attach(&s);
        for (uint32_t r = 0; r < t.ranks; r++)
                CHECK(ears[r].failures == 0, "rank %u: %s", r, ears[r].text);
        session_program(&s, 1);
        session_run(&s);
        CHECK(s.trainers[0].version == 1);
        session_close(&s);
}

static void another_layout_is_refused_by_name(void)
{
        struct training t = training_default();
        struct session s;
        layout *other;

        open_listening(&s, &t);
        session_attach(&s);
        trainer_kill(&s.trainers[3]);
        CHECK(layout_copy(s.layout, &other) == 0);
        other->tensors[0].init_seed++;
        s.trainers[3].layout = other;
        CHECK(one_op(&s, 3, (struct op){ .kind = OP_ATTACH }) == ZERO_ELAYOUT);
        CHECK(strstr(ears[3].text, "big.weight"), "%s", ears[3].text);
        session_close(&s);
        layout_free(other);
}

static void a_window_that_is_too_small_says_what_it_needs(void)
{
        struct training t = training_default();
        struct session s;
        bool refused = false;

        t.net.window = 400000; /* one slab */
        open_listening(&s, &t);
        session_attach(&s);
        for (uint32_t r = 0; r < t.ranks; r++)
                if (ears[r].status) {
                        CHECK(ears[r].status == ZERO_EWINDOW && strstr(ears[r].text, "at least"),
                              "%s", ears[r].text);
                        refused = true;
                }
        CHECK(refused);
        session_close(&s);
}

/* ---- calls out of place ---- */

static void fetches_out_of_place_are_refused(void)
{
        struct training t = training_default();
        struct session s;

        open_listening(&s, &t);
        session_attach(&s);
        CHECK(one_op(&s, 0, (struct op){ .kind = OP_FETCH, .group = ZOO_GROUPS }) == ZERO_ENOGROUP);
        CHECK(one_op(&s, 0, (struct op){ .kind = OP_RELEASE, .group = ZOO_GROUPS }) ==
              ZERO_ENOGROUP);
        CHECK(one_op(&s, 0, (struct op){ .kind = OP_RELEASE, .group = ZOO_BIG }) == ZERO_ENOTHELD);
        CHECK(one_op(&s, 0, (struct op){ .kind = OP_FETCH, .group = ZOO_BIG }) == 0);
        CHECK(one_op(&s, 0, (struct op){ .kind = OP_FETCH, .group = ZOO_BIG }) == ZERO_EBUSY);
        CHECK(one_op(&s, 0, (struct op){ .kind = OP_FETCH, .group = ZOO_FLOAT }) == ZERO_EHELD);
        CHECK(one_op(&s, 0, (struct op){ .kind = OP_PREFETCH, .group = UINT32_MAX }) == 0);
        CHECK(one_op(&s, 0, (struct op){ .kind = OP_RELEASE, .group = ZOO_BIG }) == 0);
        CHECK(one_op(&s, 0, (struct op){ .kind = OP_RELEASE, .group = ZOO_BIG }) == ZERO_ENOTHELD);
        session_close(&s);
}

/* Refused pushes, each in an attempt of its own; the daemon survives. */
static int push(struct session *s, uint32_t rank, Zero__Push m)
{
        Zero__Request request = ZERO__REQUEST__INIT;
        struct request r = { 0 };
        struct fault fault = { 0 };

        m.attempt += s->trainers[rank].rank->job->attempt;
        request.push = &m;
        return rank_push(s->trainers[rank].rank, &request, &r, &fault);
}

static void pushes_out_of_place_are_refused(void)
{
        struct training t = training_default();
        Zero__Push m = ZERO__PUSH__INIT;
        struct session s;
        uint8_t mask[9] = { 1 };

        open_listening(&s, &t);
        session_attach(&s);
        m.group = ZOO_GROUPS;
        CHECK(push(&s, 0, m) == ZERO_ENOGROUP);
        m.group = ZOO_FROZEN;
        CHECK(push(&s, 0, m) == ZERO_EINVAL);
        m.group = ZOO_EVEN;
        CHECK(push(&s, 1, m) == ZERO_ERANK);
        m.group = ZOO_BIG;
        m.slot = 2;
        CHECK(push(&s, 0, m) == ZERO_ERANGE);
        m.slot = UINT32_MAX;
        CHECK(push(&s, 0, m) == ZERO_ERANGE);
        m.slot = 0;
        m.micro_batch = 1;
        CHECK(push(&s, 0, m) == ZERO_EORDER);
        m.micro_batch = 0;
        m.attempt = (uint64_t)-1;
        CHECK(push(&s, 0, m) == ZERO_EABORTED);
        m.attempt = 0;
        m.present = (ProtobufCBinaryData){ sizeof mask, mask };
        CHECK(push(&s, 0, m) == ZERO_EINVAL);
        CHECK(one_op(&s, 0, (struct op){ .kind = OP_STEP, .params = &s.params }) == ZERO_EORDER);
        CHECK(strstr(ears[0].text, "was refused"), "%s", ears[0].text);
        session_close(&s);
}

static void micro_batches_without_end_are_refused(void)
{
        struct training t = training_default();
        struct session s;
        int status = 0;
        uint32_t n = 0;

        t.net = (struct net_options){ .nodes = 1, .owners = 1 };
        t.ranks = 1;
        open_listening(&s, &t);
        session_attach(&s);
        while (!status && n < 2 * MICRO_BATCHES_MAX)
                status = one_op(
                        &s, 0,
                        (struct op){ .kind = OP_PUSH, .group = ZOO_TINY, .micro_batch = n++ });
        CHECK(status == ZERO_ERANGE && n == MICRO_BATCHES_MAX, "%u: %s", n, ears[0].text);
        session_close(&s);
}

static void ranks_that_disagree_hear_on_what_and_may_agree(void)
{
        struct training t = training_default();
        struct step_params other;
        struct session s;

        open_listening(&s, &t);
        session_attach(&s);
        other = s.params;
        other.sets[1].value[0] = 0.25;
        for (uint32_t r = 0; r < t.ranks; r++) {
                s.trainers[r].needs.timeout_ms = 1500;
                trainer_add(&s.trainers[r],
                            (struct op){ .kind = OP_STEP, .params = r < 2 ? &s.params : &other });
        }
        session_run(&s);
        CHECK((ears[0].status == ZERO_ECONFLICT) != (ears[2].status == ZERO_ECONFLICT));
        for (uint32_t r = 0; r < t.ranks; r++)
                if (ears[r].status == ZERO_ECONFLICT)
                        CHECK(strstr(ears[r].text, "set 1: lr"), "%s", ears[r].text);
        memset(ears, 0, sizeof ears);
        for (uint32_t r = 0; r < t.ranks; r++)
                trainer_add(&s.trainers[r], (struct op){ .kind = OP_STEP, .params = &s.params });
        session_run(&s);
        for (uint32_t r = 0; r < t.ranks; r++)
                CHECK(ears[r].status == 0 || strstr(ears[r].text, "set 1: lr"), "%s", ears[r].text);
        session_close(&s);
}

/* ---- links end ---- */

/* Turns until node `a` sees node `b`, or does not. */
static void until_linked(struct session *s, uint32_t a, uint32_t b, bool linked)
{
        uint64_t begun = uv_hrtime();

        while (node_set_has(s->net.nodes[a].x.up, b) != linked) {
                CHECK(uv_hrtime() - begun < 20000000000u, "the link of %u and %u", a, b);
                net_turn(&s->net);
        }
}

/* Answers the other node's last question in the name of a node, with a vote that lacks its numbers.
 */
static void answer_without_numbers(struct session *s, uint32_t asker, uint32_t node,
                                   uint64_t first_call)
{
        struct engine *x = &s->net.nodes[asker].x;
        Zero__LinkMessage m = ZERO__LINK_MESSAGE__INIT;
        Zero__Opened opened = ZERO__OPENED__INIT;
        Zero__Standing standing = ZERO__STANDING__INIT, *pointer = &standing;
        Zero__Decision decision = ZERO__DECISION__INIT;
        const struct step *step = &coordinated_find(x, "zoo")->state.step;

        decision.attempt = step->decided_attempt;
        decision.commit = step->decision.commit;
        decision.finite = step->decision.finite;
        decision.grad_norm = step->decision.grad_norm;
        decision.grad_scale = step->decision.grad_scale;
        decision.loss_scale = step->decision.loss_scale;
        decision.good_steps = step->decision.good_steps;
        standing.version = step->version;
        standing.decision = &decision;
        standing.done = true;
        standing.prepared_attempt = step->attempt;
        opened.known = true;
        standing.owner = (uint32_t)placement_owner_on(&step->placement, node);
        opened.n_standings = 1;
        opened.standings = &pointer;
        m.job = (char *)"zoo";
        m.body_case = ZERO__LINK_MESSAGE__BODY_OPENED;
        m.opened = &opened;
        for (m.answer = first_call; m.answer <= x->transfer->last_call; m.answer++)
                engine_message(x, node, &m);
}

static void a_job_does_not_go_on_with_an_owner_whose_vote_cannot_be_read(void)
{
        struct training t = training_default();
        const struct coordinated *c;
        uint32_t here, there;
        uint64_t calls;
        struct session s;

        open_listening(&s, &t);
        session_attach(&s);
        session_program(&s, 1);
        session_run(&s);
        here = coordinator_of(&s.net.nodes[0].x, "zoo");
        there = !here;
        c = coordinated_find(&s.net.nodes[here].x, "zoo");
        fabric_cut(s.net.nodes[here].x.fabric, there, "for a test");
        until_linked(&s, here, there, false);
        calls = s.net.nodes[here].x.transfer->last_call;
        until_linked(&s, here, there, true);
        answer_without_numbers(&s, here, there, calls + 1);
        CHECK(c->state.fault.status == ZERO_EPROTO && strstr(c->state.fault.text, "vote"), "%s",
              c->state.fault.text);
        fabric_cut(s.net.nodes[here].x.fabric, there, "for a test");
        until_linked(&s, here, there, false);
        kill_all(&s);
        until_linked(&s, here, there, true);
        for (int turns = 0; c->state.fault.status; turns++) {
                CHECK(turns < 2000, "%s", c->state.fault.text);
                net_turn(&s.net);
        }
        memset(ears, 0, sizeof ears);
        session_attach(&s);
        session_program(&s, 2);
        session_run(&s);
        CHECK(ears[0].failures == 0 && s.trainers[0].version == 2, "%s", ears[0].text);
        session_close(&s);
}

/* Offers a gradient in the name of a node, for the attempt after the running one. */
static void offer_ahead(struct session *s, uint32_t to, uint32_t from)
{
        struct job *job = net_job(&s->net, to, "zoo");
        Zero__LinkMessage m = ZERO__LINK_MESSAGE__INIT;
        Zero__Offer offer = ZERO__OFFER__INIT;

        offer.attempt = job->attempt + 1;
        offer.group = ZOO_BIG;
        offer.owner = net_own(job)->owner;
        offer.empty = true;
        m.job = (char *)"zoo";
        m.body_case = ZERO__LINK_MESSAGE__BODY_OFFER;
        m.offer = &offer;
        engine_message(&s->net.nodes[to].x, from, &m);
}

/* After the link has ended, a node that lost its state may begin another attempt with the same
 * number. */
static void offers_of_attempts_to_come_end_with_the_link(void)
{
        struct training t = training_default();
        const struct accumulator *l;
        struct session s;

        open_listening(&s, &t);
        session_attach(&s);
        l = net_own(net_job(&s.net, 0, "zoo"))->accumulator;
        offer_ahead(&s, 0, 1);
        offer_ahead(&s, 0, 0);
        CHECK(l->n_early == 2);
        fabric_cut(s.net.nodes[0].x.fabric, 1, "for a test");
        until_linked(&s, 0, 1, false);
        CHECK(l->n_early == 1);
        until_linked(&s, 0, 1, true);
        session_close(&s);
}

/* Turns until node 0 has heard that node 1 does not reach node 2, or does. */
static void until_heard(struct net *net, bool cut)
{
        uint64_t begun = uv_hrtime();

        while (node_set_has(net->nodes[0].x.cut[1], 2) != cut) {
                CHECK(uv_hrtime() - begun < 20000000000u, "a word of node 1 on node 2");
                net_turn(net);
        }
}

/* The later ends come too soon to be told at once, and the link may stand again before they are. */
static void each_end_of_a_link_is_told_to_a_third_node(void)
{
        struct net net;

        net_open(&net, &(struct net_options){ .nodes = 3, .owners = 3 });
        net_up(&net);
        for (int i = 0; i < 4; i++) {
                until_heard(&net, false);
                fabric_cut(net.nodes[1].x.fabric, 2, "for a test");
                until_heard(&net, true);
        }
        until_heard(&net, false);
        net_close(&net);
}

static void a_link_that_ends_anywhere_loses_nothing(void)
{
        struct training t = training_default();
        struct outcome expected = training_run(&t);

        for (uint32_t turns = 0; turns < 150; turns += 10)
                cut_behind(&t, turns, &expected);
}

/* ---- updates ahead of decisions ---- */

static void eager_training(struct training *t, struct outcome *expected)
{
        *t = training_default();
        t->eager = true;
        t->clip_norm = 0;
        *expected = training_run(t);
}

static bool all_summed(void *arg)
{
        struct session *s = arg;
        uint8_t present[64];

        for (uint32_t n = 0; n < s->training->net.owners; n++) {
                const struct replica *h = net_own(net_job(&s->net, n, "zoo"));

                for (uint32_t g = 0; g < ZOO_GROUPS; g++)
                        if (accumulator_has(h, g) && !accumulator_summed(h, g, present))
                                return false;
        }
        return true;
}

static bool all_back(void *arg)
{
        const struct replica *h = arg;

        return !h->ahead && !h->updating;
}

static void finish_as_expected(struct session *s, const struct outcome *expected)
{
        struct checksum sum;

        for (uint64_t v = s->trainers[0].rank->job->version; v < 3; v++) {
                session_program(s, (uint32_t)v + 1);
                session_run(s);
        }
        sum = net_checksum(&s->net, "zoo");
        CHECK(memcmp(&sum, &expected->sum, sizeof sum) == 0);
        session_close(s);
}

/* While a reader pins a group, its update waits; the attempt, and with it the gradient, ends
 * meanwhile. */
static void a_reader_may_outlive_the_attempt_of_an_update_ahead(void)
{
        struct outcome expected;
        struct training t;
        struct session s;

        eager_training(&t, &expected);
        open_listening(&s, &t);
        session_attach(&s);
        session_program(&s, 1);
        session_run(&s);
        for (uint32_t n = 0; n < t.net.owners; n++) {
                struct replica *h = net_own(net_job(&s.net, n, "zoo"));

                net_wait(&s.net, all_back, h, "the end of the first step's update");
                for (uint32_t g = 0; g < ZOO_GROUPS; g++)
                        shard_pin(h, g);
        }
        session_push_ahead(&s, 9);
        net_wait(&s.net, all_summed, &s, "the sums");
        fabric_cut(s.net.nodes[0].x.fabric, 1, "for a test");
        run_turns(&s, 20, 1);
        kill_all(&s);
        net_up(&s.net);
        session_attach(&s);
        for (uint32_t n = 0; n < t.net.owners; n++)
                for (uint32_t g = 0; g < ZOO_GROUPS; g++)
                        shard_unpin(net_own(net_job(&s.net, n, "zoo")), g);
        run_turns(&s, 20, 1);
        finish_as_expected(&s, &expected);
}

/* The coordinator asks for a vote on other values than it told ahead. */
static void an_update_ahead_with_other_values_goes_back(void)
{
        struct step_params other;
        struct outcome expected;
        struct training t;
        struct session s;
        struct replica *h;

        eager_training(&t, &expected);
        session_open(&s, &t);
        session_attach(&s);
        other = s.params;
        other.sets[0].value[0] *= 2;
        session_program(&s, 1);
        session_run(&s);
        h = net_own(net_job(&s.net, 0, "zoo"));
        session_push_ahead(&s, 2);
        net_wait(&s.net, all_summed, &s, "the sums");
        update_led_as(h, &s.params);
        CHECK(h->ahead);
        update_led_as(h, &other);
        net_wait(&s.net, all_back, h, "the old values");
        for (uint32_t r = 0; r < t.ranks; r++)
                trainer_add(&s.trainers[r], (struct op){ .kind = OP_STEP, .params = &s.params });
        session_run(&s);
        finish_as_expected(&s, &expected);
}

const struct test_case trouble_cases[] = {
        { "a-job-dropped-at-any-time-leaves-nothing", a_job_dropped_at_any_time_leaves_nothing },
        { "a-dropped-state-is-freed-beside-the-loop", a_dropped_state_is_freed_beside_the_loop },
        { "a-drop-is-kept-where-no-state-is-left", a_drop_is_kept_where_no_state_is_left },
        { "a-dropped-job-can-be-made-anew", a_dropped_job_can_be_made_anew },
        { "a-rank-waits-for-the-end-of-a-dropped-job", a_rank_waits_for_the_end_of_a_dropped_job },
        { "daemons-stop-in-the-middle", daemons_stop_in_the_middle },
        { "two-sessions-cannot-be-one-rank", two_sessions_cannot_be_one_rank },
        { "a-rank-that-gave-up-attaching-may-try-again",
          a_rank_that_gave_up_attaching_may_try_again },
        { "another-layout-is-refused-by-name", another_layout_is_refused_by_name },
        { "a-window-that-is-too-small-says-what-it-needs",
          a_window_that_is_too_small_says_what_it_needs },
        { "fetches-out-of-place-are-refused", fetches_out_of_place_are_refused },
        { "pushes-out-of-place-are-refused", pushes_out_of_place_are_refused },
        { "micro-batches-without-end-are-refused", micro_batches_without_end_are_refused },
        { "ranks-that-disagree-hear-on-what-and-may-agree",
          ranks_that_disagree_hear_on_what_and_may_agree },
        { "a-job-does-not-go-on-with-an-owner-whose-vote-cannot-be-read",
          a_job_does_not_go_on_with_an_owner_whose_vote_cannot_be_read },
        { "offers-of-attempts-to-come-end-with-the-link",
          offers_of_attempts_to_come_end_with_the_link },
        { "each-end-of-a-link-is-told-to-a-third-node",
          each_end_of_a_link_is_told_to_a_third_node },
        { "a-link-that-ends-anywhere-loses-nothing", a_link_that_ends_anywhere_loses_nothing },
        { "a-reader-may-outlive-the-attempt-of-an-update-ahead",
          a_reader_may_outlive_the_attempt_of_an_update_ahead },
        { "an-update-ahead-with-other-values-goes-back",
          an_update_ahead_with_other_values_goes_back },
        { 0 },
};
