/*
 * Ranks whose windows are on a GPU whose work ends long after the calls.
 */
#include <string.h>

#include "cases.h"
#include "check.h"
#include "daemon/step/reduce/node_gradient.h"
#include "daemon/step/tensors/tensors.h"
#include "listening.h"
#include "stream.h"

enum { BOTH = 3 };

/* The same training with windows in host memory, on GPUs, and on one node's GPU only; also with
 * states on GPUs. */
static void same_in_every_place(struct training t, const char *what)
{
        static const struct {
                uint32_t windows;
                bool states;
        } places[] = { { BOTH, false }, { 1, false }, { 2, true }, { BOTH, true }, { 0, true } };
        struct outcome host, o;
        uint64_t before;

        stream_gpus_open(1);
        before = stream_gpus_left();
        host = training_run(&t);
        for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
                t.gpu_nodes = places[i].windows;
                t.net.gpu_states = places[i].states;
                t.net.delay_ms = i % 3;
                t.seed = 10 + i;
                o = training_run(&t);
                outcome_same(&host, &o, what);
                CHECK(stream_gpus_left() == before, "%s: memory of the GPU is left over", what);
        }
}

static void windows_on_a_gpu_give_the_same_bits(void)
{
        struct training t = training_default();

        same_in_every_place(t, "default");
        t.grad_dtype = t.reduce_dtype = ZERO_BF16;
        t.masks = t.norm = true;
        same_in_every_place(t, "bf16, masks");
        t = training_default();
        t.opposite = t.prefetch = t.crossed = t.uneven = true;
        t.hold_groups = 2;
        t.push_groups = 1;
        t.net.reduce_buffers = 1;
        same_in_every_place(t, "crossed orders, small windows");
}

static void all_held_on_a_gpu(void)
{
        struct training t = training_default();

        t.hold_groups = t.push_groups = ZOO_GROUPS;
        same_in_every_place(t, "everything held");
        t.lacking_rank = 2;
        t.poisoned_step = 2;
        t.loss_scale = 16;
        t.growth_interval = 1;
        same_in_every_place(t, "a skipped step");
}

/* The ranks do not map the serve plane, because it is in host memory. */
static void a_single_owner_and_ranks_on_a_gpu(void)
{
        struct training t = training_default();

        t.net.owners = 1;
        same_in_every_place(t, "one owner");
        t.ranks = 1;
        t.net.nodes = 1;
        t.grad_dtype = t.reduce_dtype = ZERO_BF16; /* its gradient is its own sum on the host */
        same_in_every_place(t, "one rank");
}

/* The work of a step does not grow with a group's elements, whatever becomes of the step. */
static void nothing_walks_over_the_chunks_of_a_state_on_a_gpu(void)
{
        struct training t = training_default();
        struct outcome host, o;

        stream_gpus_open(1);
        t.net.chunk = 128;
        t.net.mirror = true;
        t.masks = true;
        t.poisoned_step = 2;
        t.clip_norm = 0;
        for (int eager = 0; eager < 2; eager++) {
                t.eager = eager;
                t.net.gpu_states = t.spoil_chunks = false;
                t.gpu_nodes = 0;
                host = training_run(&t);
                t.net.gpu_states = t.spoil_chunks = true;
                t.gpu_nodes = BOTH;
                o = training_run(&t);
                outcome_same(&host, &o, eager ? "eager" : "not eager");
        }
}

/* ---- trouble ---- */

static int one_op(struct session *s, uint32_t rank, struct op op)
{
        struct trainer *t = &s->trainers[rank];

        ears[rank] = (struct ears){ 0 };
        trainer_add(t, op);
        trainers_run(t, 1, 1);
        return ears[rank].status;
}

static struct training on_one_node(uint32_t ranks)
{
        struct training t = training_default();

        stream_gpus_open(1);
        t.net = (struct net_options){ .nodes = 1, .owners = 1 };
        t.ranks = ranks;
        memset(t.node_of_rank, 0, sizeof t.node_of_rank);
        t.gpu_nodes = 1;
        return t;
}

static void is_late(struct session *s, struct op op, const char *what)
{
        int status = one_op(s, 0, op);

        CHECK(status == ZERO_EDEADLINE && strstr(ears[0].text, "the GPU of rank 0") &&
                      strstr(ears[0].text, what),
              "%s: %s", zero_status_name(status), ears[0].text);
}

/* The rank that comes back does its step, with the bits of an undisturbed run. */
static void step_comes_to_the_same(struct session *s, const struct training *t)
{
        struct training other = *t;
        struct outcome expected;

        memset(ears, 0, sizeof ears);
        session_program(s, 1);
        session_run(s);
        for (uint32_t r = 0; r < t->ranks; r++)
                CHECK(ears[r].failures == 0, "rank %u: %s", r, ears[r].text);
        s->outcome.sum = net_checksum(&s->net, "zoo");
        session_close(s);
        other.gpu_nodes = 0;
        other.steps = 1;
        expected = training_run(&other);
        CHECK(memcmp(&s->outcome.sum, &expected.sum, sizeof expected.sum) == 0);
}

/* The push ends at its deadline, which names the GPU work.  A gradient that did not count by then
 * never does, and the session goes on. */
static void work_that_does_not_end_is_named(void)
{
        struct training t = on_one_node(2);
        uint64_t before = stream_gpus_left();
        struct trainer *first;
        struct session s;

        t.hold_groups = 2;
        open_listening(&s, &t);
        session_attach(&s);
        first = &s.trainers[0];
        first->needs.timeout_ms = 300;
        first->stopped = true;
        CHECK(one_op(&s, 0, (struct op){ .kind = OP_FETCH, .group = ZOO_BIG }) == 0);
        CHECK(one_op(&s, 0, (struct op){ .kind = OP_FETCH, .group = ZOO_EVEN }) == 0);
        is_late(&s, (struct op){ .kind = OP_PUSH, .group = ZOO_TINY }, "push of group 'tiny'");
        is_late(&s, (struct op){ .kind = OP_RELEASE, .group = ZOO_BIG }, "push of group 'tiny'");
        CHECK(one_op(&s, 0, (struct op){ .kind = OP_RELEASE, .group = ZOO_BIG }) == ZERO_ENOTHELD);
        CHECK(one_op(&s, 0, (struct op){ .kind = OP_FETCH, .group = ZOO_FLOAT }) == 0, "%s",
              ears[0].text);
        is_late(&s, (struct op){ .kind = OP_NORM }, "push of group 'tiny'");
        is_late(&s, (struct op){ .kind = OP_STEP, .params = &s.params }, "push of group 'tiny'");
        first->stopped = false;
        stream_finish(first->stream);
        CHECK(one_op(&s, 0, (struct op){ .kind = OP_STEP, .params = &s.params }) == ZERO_EORDER &&
                      strstr(ears[0].text, "zero_close(), connect and attach again"),
              "%s", ears[0].text);
        trainer_kill(first);
        first->needs.timeout_ms = 60000;
        CHECK(one_op(&s, 0, (struct op){ .kind = OP_ATTACH }) == 0, "%s", ears[0].text);
        step_comes_to_the_same(&s, &t);
        CHECK(stream_gpus_left() == before);
}

/* The dead session's pushes do not count, and nobody polls their events again. */
static void a_successor_does_not_wait_for_work_of_the_one_before(void)
{
        struct training t = on_one_node(2);
        struct session s;

        open_listening(&s, &t);
        session_attach(&s);
        s.trainers[0].stopped = true;
        for (uint32_t turns = 0; turns < 3; turns++) {
                uint64_t seed = turns;

                trainer_add(&s.trainers[0], (struct op){ .kind = OP_PUSH, .group = ZOO_LAST - 1 });
                trainer_add(&s.trainers[0], (struct op){ .kind = OP_FETCH, .group = ZOO_BIG });
                trainer_add(&s.trainers[0], (struct op){ .kind = OP_RELEASE, .group = ZOO_BIG });
                for (int i = 0; i < 10 || s.trainers[0].next < s.trainers[0].n_ops; i++)
                        trainers_turn(s.trainers, 1, &seed);
                CHECK(s.trainers[0].n_tasks == 2, "its GPU is at work");
                trainer_kill(&s.trainers[0]);
                forget_program(&s.trainers[0]);
                CHECK(one_op(&s, 0, (struct op){ .kind = OP_ATTACH }) == 0, "%s", ears[0].text);
        }
        s.trainers[0].stopped = false;
        step_comes_to_the_same(&s, &t);
}

static void a_gpu_without_room_is_named(void)
{
        struct training t = on_one_node(2);
        uint64_t before = stream_gpus_left();
        struct session s;

        setenv("FAKE_GPU_BYTES", "2000000", 1);
        t.hold_groups = t.push_groups = ZOO_GROUPS;
        open_listening(&s, &t);
        session_attach(&s);
        for (uint32_t r = 0; r < 2; r++)
                CHECK(ears[r].status == ZERO_ENOMEM &&
                              (strstr(ears[r].text, "the push slots of rank") ||
                               strstr(ears[r].text, "the gather window of job zoo")),
                      "rank %u: %s", r, ears[r].text);
        kill_all(&s);
        unsetenv("FAKE_GPU_BYTES");
        CHECK(stream_gpus_left() == before);
        memset(ears, 0, sizeof ears);
        session_attach(&s);
        step_comes_to_the_same(&s, &t);
}

/* Dropped, or stopped, while GPUs are at work, one of them for ever. */
static void nothing_is_left_of_work_that_did_not_end(void)
{
        uint64_t before;

        stream_gpus_open(1);
        before = stream_gpus_left();
        for (uint32_t turns = 0; turns < 120; turns += 5) {
                struct training t = training_default();
                struct session s;

                t.net.delay_ms = turns % 2;
                t.gpu_nodes = BOTH;
                open_listening(&s, &t);
                session_attach(&s);
                s.trainers[turns % 4].stopped = true;
                session_program(&s, 1);
                run_turns(&s, turns, turns);
                if (turns % 3 == 0)
                        net_drop(&s.net, "zoo");
                if (turns % 3 == 0)
                        run_turns(&s, 20, turns);
                kill_all(&s);
                session_close(&s);
                CHECK(stream_gpus_left() == before, "after %u turns", turns);
        }
}

/* An ask that was long on its way: nobody writes the sum that the update is about to add up. */
static void norms_that_are_asked_for_after_the_vote_leave_sums_to_the_update(void)
{
        struct training t = on_one_node(2), host;
        Zero__LinkMessage m = ZERO__LINK_MESSAGE__INIT;
        Zero__NormsAsk ask = ZERO__NORMS_ASK__INIT;
        Zero__Norms of = ZERO__NORMS__INIT;
        struct outcome expected;
        uint64_t seed = 1;
        struct replica *h;
        struct session s;

        t.hold_groups = t.push_groups = ZOO_GROUPS;
        t.grad_dtype = t.reduce_dtype = ZERO_BF16;
        t.steps = t.micro_batches = 1;
        t.net.gpu_states = true;
        t.net.delay_ms = 200; /* between vote and decision, on a busy machine too */
        host = t;
        open_listening(&s, &t);
        session_attach(&s);
        session_program(&s, 1);
        h = net_own(net_job(&s.net, 0, "zoo"));
        while (!accumulator_voted(h)) {
                trainers_turn(s.trainers, t.ranks, &seed);
                CHECK(h->job->version == 0);
        }
        CHECK(h->job->reduce->deferred > 0 && !accumulator_in_use(h));
        of.plane = ZERO_PLANE_GRAD;
        of.count = s.layout->groups[0].n_tensors;
        of.attempt = h->job->attempt;
        ask.of = &of;
        m.job = (char *)"zoo";
        m.body_case = ZERO__LINK_MESSAGE__BODY_NORMS_ASK;
        m.norms_ask = &ask;
        norms_ask_message(h->job, 0, &m);
        CHECK(!accumulator_in_use(h), "a sum is written after the vote");
        session_run(&s);
        for (uint32_t r = 0; r < t.ranks; r++)
                CHECK(ears[r].failures == 0, "rank %u: %s", r, ears[r].text);
        s.outcome.sum = net_checksum(&s.net, "zoo");
        session_close(&s);
        host.gpu_nodes = 0;
        host.net.gpu_states = false;
        expected = training_run(&host);
        CHECK(memcmp(&s.outcome.sum, &expected.sum, sizeof expected.sum) == 0);
}

static void note_drained(void *arg)
{
        *(bool *)arg = true;
}

/* A stop waits for a step whose pushes all wait for a GPU. */
static void a_step_that_a_gpu_holds_up_is_in_flight(void)
{
        struct training t = on_one_node(1);
        struct engine *x;
        bool drained = false;
        struct session s;

        open_listening(&s, &t);
        session_attach(&s);
        x = &s.net.nodes[0].x;
        s.trainers[0].stopped = true;
        trainer_add(&s.trainers[0], (struct op){ .kind = OP_STEP, .params = &s.params });
        run_turns(&s, 20, 1);
        engine_drain(x, NET_WAIT_MS, note_drained, &drained);
        run_turns(&s, 20, 1);
        CHECK(!drained, "the step was left behind");
        s.trainers[0].stopped = false;
        session_run(&s);
        CHECK(s.trainers[0].version == 1 && ears[0].failures == 0, "%s", ears[0].text);
        while (!drained)
                net_turn(&s.net);
        session_close(&s);
}

const struct test_case gpu_cases[] = {
        { "a-step-that-a-gpu-holds-up-is-in-flight", a_step_that_a_gpu_holds_up_is_in_flight },
        { "work-that-does-not-end-is-named", work_that_does_not_end_is_named },
        { "a-successor-does-not-wait-for-work-of-the-one-before",
          a_successor_does_not_wait_for_work_of_the_one_before },
        { "a-gpu-without-room-is-named", a_gpu_without_room_is_named },
        { "nothing-is-left-of-work-that-did-not-end", nothing_is_left_of_work_that_did_not_end },
        { "norms-that-are-asked-for-after-the-vote-leave-sums-to-the-update",
          norms_that_are_asked_for_after_the_vote_leave_sums_to_the_update },
        { "windows-on-a-gpu-give-the-same-bits", windows_on_a_gpu_give_the_same_bits },
        { "all-held-on-a-gpu", all_held_on_a_gpu },
        { "nothing-walks-over-the-chunks-of-a-state-on-a-gpu",
          nothing_walks_over_the_chunks_of_a_state_on_a_gpu },
        { "a-single-owner-and-ranks-on-a-gpu", a_single_owner_and_ranks_on_a_gpu },
        { NULL, NULL },
};
