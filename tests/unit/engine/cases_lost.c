/* Ranks that die or are late: who hears of that, and what happens to the step. */
#include <string.h>

#include "cases.h"
#include "check.h"
#include "daemon/cluster/coordinator/coordinator.h"
#include "listening.h"
#include "stream.h"

/* The others go on with their programs meanwhile; rank 3 does its second step if it still has to.
 */
static void attached_again(struct session *s)
{
        struct trainer *t = &s->trainers[3];
        uint64_t seed = 5;

        while (!t->rank || !t->rank->admitted) {
                CHECK(ears[3].failures == 0, "%s", ears[3].text);
                trainers_turn(s->trainers, s->training->ranks, &seed);
        }
        forget_program(t);
        t->attempt = t->rank->job->attempt;
        t->from = 1;
        if (t->rank->job->version == 1) {
                session_fetches(s, 3);
                session_pushes(s, 3, 2);
                trainer_add(t, (struct op){ .kind = OP_STEP, .params = &s->params });
        }
        session_run(s);
}

/* A rank dies after that many turns of the second step and comes back; all ranks replay the step.
 */
static void replay(struct training *t, uint32_t turns, const struct outcome *expected)
{
        struct session s;

        open_listening(&s, t);
        for (uint32_t r = 0; r < t->ranks; r++)
                s.trainers[r].patient = true;
        session_attach(&s);
        session_program(&s, 1);
        session_run(&s);
        session_program(&s, 2);
        run_turns(&s, turns, turns);
        trainer_kill(&s.trainers[3]);
        forget_program(&s.trainers[3]);
        trainer_add(&s.trainers[3], (struct op){ .kind = OP_ATTACH });
        attached_again(&s);
        session_program(&s, 3);
        memset(ears, 0, sizeof ears);
        session_run(&s);
        for (uint32_t r = 0; r < t->ranks; r++)
                CHECK(ears[r].failures == 0, "after %u turns, rank %u: %s", turns, r, ears[r].text);
        CHECK(s.trainers[0].version == 3, "after %u turns", turns);
        s.outcome.sum = net_checksum(&s.net, "zoo");
        CHECK(memcmp(&s.outcome.sum, &expected->sum, sizeof expected->sum) == 0, "after %u turns",
              turns);
        session_close(&s);
}

static void dies_and_comes_back(struct training t, uint32_t apart)
{
        struct training host = training_default();
        struct outcome expected = training_run(&host);

        t.net.delay_ms = 1;
        for (uint32_t turns = 0; turns < 150; turns += apart)
                replay(&t, turns, &expected);
}

static void a_rank_that_dies_and_comes_back_changes_nothing(void)
{
        dies_and_comes_back(training_default(), 10);
}

static void a_rank_that_dies_changes_nothing_with_windows_on_a_gpu(void)
{
        struct training t = training_default();

        stream_gpus_open(1);
        t.gpu_nodes = 3;
        dies_and_comes_back(t, 10);
}

/* The rank that dies is alone on its GPU, so its window is freed, although another window may be
 * filled from it. */
static void a_rank_that_dies_changes_nothing_on_one_of_two_gpus(void)
{
        struct training t = training_default();

        stream_gpus_open(2);
        t.gpu_nodes = 3;
        t.gpu_of_rank[1] = t.gpu_of_rank[3] = 1;
        t.net.owners_a_node = 2;
        t.net.gpu_states = true;
        dies_and_comes_back(t, 25);
}

/* The first n ranks call zero_step(), and hear which rank is missing. */
static void hear_at_the_deadline(struct session *s, uint32_t n, int status, const char *who)
{
        for (uint32_t r = 0; r < n; r++) {
                s->trainers[r].needs.timeout_ms = 1000;
                trainer_add(&s->trainers[r], (struct op){ .kind = OP_STEP, .params = &s->params });
        }
        session_run(s);
        for (uint32_t r = 0; r < n; r++)
                CHECK(ears[r].status == status && strstr(ears[r].text, who), "rank %u: %s", r,
                      ears[r].text);
}

static void others_hear_at_their_deadline_which_rank_is_late(void)
{
        struct training t = training_default();
        struct session s;

        open_listening(&s, &t);
        session_attach(&s);
        hear_at_the_deadline(&s, 3, ZERO_EDEADLINE, "rank 3 on n1");
        session_close(&s);
}

/* Checks ranks that wait when the rank is lost and ranks that call later, on its node and on
 * others; no deadline passes before that. */
static void others_hear_at_once_which_rank_was_lost(void)
{
        for (uint32_t waiting = 0; waiting < 4; waiting++) {
                struct training t = training_default();
                uint64_t seed = 1;
                struct session s;

                open_listening(&s, &t);
                s.trainers[waiting % 4].needs.fail_on_lost =
                        true; /* one rank that asks is enough */
                session_attach(&s);
                for (uint32_t r = 0; r < 3; r++) {
                        s.trainers[r].needs.timeout_ms = 1000 * NET_WAIT_MS;
                        trainer_add(&s.trainers[r],
                                    (struct op){ .kind = OP_STEP, .params = &s.params });
                }
                for (uint32_t i = 0; i < 5 * waiting; i++)
                        trainers_turn(s.trainers, 3, &seed);
                trainer_kill(&s.trainers[3]);
                session_run(&s);
                for (uint32_t r = 0; r < 3; r++)
                        CHECK(ears[r].status == ZERO_ELOSTRANK && strstr(ears[r].text, "rank 3"),
                              "rank %u: %s", r, ears[r].text);
                session_close(&s);
        }
}

/* A push that waits, and a second one that has no slot. */
static void pushes_do_not_wait_for_a_lost_rank(void)
{
        struct training t = training_default();
        uint64_t seed = 1;
        struct session s;

        t.push_groups = 1;
        open_listening(&s, &t);
        s.trainers[2].needs.fail_on_lost = true;
        session_attach(&s);
        for (uint32_t g = ZOO_BIG; g <= ZOO_FLOAT; g++)
                trainer_add(&s.trainers[0], (struct op){ .kind = OP_PUSH, .group = g });
        for (int i = 0; i < 20; i++)
                trainers_turn(s.trainers, 1, &seed);
        CHECK(s.trainers[0].next == 1, "it has one slot");
        trainer_kill(&s.trainers[1]);
        session_run(&s);
        CHECK(ears[0].failures == 2 && ears[0].status == ZERO_ELOSTRANK, "%s", ears[0].text);
        session_close(&s);
}

/* The start comes after the loss of a link, before the coordinator has heard again of rank 3 here.
 */
static void a_session_ends_when_its_rank_starts_on_another_node(void)
{
        struct training t = training_default();
        Zero__LinkMessage m = ZERO__LINK_MESSAGE__INIT;
        Zero__Start start = ZERO__START__INIT;
        uint32_t node_of_rank[] = { 0, 0, 1, 0 };
        struct session s;
        struct job *job;

        open_listening(&s, &t);
        session_attach(&s);
        job = net_job(&s.net, 1, "zoo");
        start = (Zero__Start){ .base = start.base,
                               .version = job->version,
                               .attempt = job->attempt + 1,
                               .loss_scale = job->last.loss_scale,
                               .n_node_of_rank = 4,
                               .node_of_rank = node_of_rank };
        m.start = &start;
        job_start_message(job, &m);
        CHECK(ears[3].failures == 1 && ears[3].status == ZERO_ECLOSED, "%s", ears[3].text);
        CHECK(!job->ranks[3].session && job->ranks[2].session, "one session ends");
        session_close(&s);
}

/* fail_on_lost holds while the ranks that asked for it are there: later ranks wait for a lost rank.
 */
static void fail_on_lost_ends_with_the_ranks_that_asked_for_it(void)
{
        struct training t = training_default();
        struct engine *x;
        struct session s;

        open_listening(&s, &t);
        s.trainers[2].needs.fail_on_lost = true;
        session_attach(&s);
        kill_all(&s);
        x = &s.net.nodes[coordinator_of(&s.net.nodes[0].x, "zoo")].x;
        while (step_any_here(&coordinated_find(x, "zoo")->state.step))
                net_turn(&s.net);
        s.trainers[2].needs.fail_on_lost = false;
        session_attach(&s);
        memset(ears, 0, sizeof ears);
        for (uint32_t r = 0; r < 3; r++)
                trainer_add(&s.trainers[r], (struct op){ .kind = OP_STEP, .params = &s.params });
        run_turns(&s, 20, 1);
        trainer_kill(&s.trainers[3]);
        while (coordinated_find(x, "zoo")->state.step.rank_slots[3] == RANK_SLOT_HERE)
                net_turn(&s.net);
        CHECK(coordinated_find(x, "zoo")->state.step.phase != STEP_FORMING, "it is not waited for");
        trainer_add(&s.trainers[3], (struct op){ .kind = OP_ATTACH });
        trainer_add(&s.trainers[3], (struct op){ .kind = OP_STEP, .params = &s.params });
        session_run(&s);
        for (uint32_t r = 0; r < 4; r++)
                CHECK(ears[r].failures == 0 && s.trainers[r].version == 1, "rank %u: %s", r,
                      ears[r].text);
        session_close(&s);
}

const struct test_case lost_cases[] = {
        { "a-session-ends-when-its-rank-starts-on-another-node",
          a_session_ends_when_its_rank_starts_on_another_node },
        { "a-rank-that-dies-and-comes-back-changes-nothing",
          a_rank_that_dies_and_comes_back_changes_nothing },
        { "a-rank-that-dies-changes-nothing-with-windows-on-a-gpu",
          a_rank_that_dies_changes_nothing_with_windows_on_a_gpu },
        { "a-rank-that-dies-changes-nothing-on-one-of-two-gpus",
          a_rank_that_dies_changes_nothing_on_one_of_two_gpus },
        { "others-hear-at-their-deadline-which-rank-is-late",
          others_hear_at_their_deadline_which_rank_is_late },
        { "others-hear-at-once-which-rank-was-lost", others_hear_at_once_which_rank_was_lost },
        { "pushes-do-not-wait-for-a-lost-rank", pushes_do_not_wait_for_a_lost_rank },
        { "fail-on-lost-ends-with-the-ranks-that-asked-for-it",
          fail_on_lost_ends_with_the_ranks_that_asked_for_it },
        { 0 },
};
