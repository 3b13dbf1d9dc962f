/*
 * A daemon goes away from a rank and comes back: what each call returns, and what happens to the
 * step in flight.
 */
#include <criterion/criterion.h>

#include "fake.h"

static const struct zero_set adamw = { .adamw = { 1e-3, 0.9, 0.999, 1e-8, 0.01 } };
static const struct zero_step_options one_set = { .sets = &adamw, .n_sets = 1 };
static Zero__StepReply result_20;
static struct fake f;

#define OK(call) cr_assert_eq(call, ZERO_OK, "%s", zero_error(c))
#define ABORTED(call) cr_assert_eq(call, ZERO_EABORTED, "%s", zero_error(c))

static void setup(void)
{
        result_20 = (Zero__StepReply)ZERO__STEP_REPLY__INIT;
        result_20.version = 8;
        result_20.attempt = 21;
        result_20.skipped = false;
        result_20.grad_norm = 0.25;
        result_20.loss_scale = 512;
}

TestSuite(resume, .init = setup);

/* The attempt in progress when the daemon died is void. */
static void restart_void(struct fake *d)
{
        d->job.attempt++;
        fake_restart(d);
}

/* The attempt in progress when the daemon died was committed: version 8. */
static void restart_decided(struct fake *d)
{
        d->job.last = &result_20;
        d->job.last_attempt = d->job.attempt++;
        d->job.version = 8;
        d->job.blob = "kept";
        d->job.blob_bytes = 4;
        fake_restart(d);
}

static void answer_fetch(struct fake *d)
{
        fake_expect(d, ZERO__REQUEST__BODY_FETCH);
        fake_fetched(d, d->request->seq, false, 0);
}

/* Expects the first push of an attempt, which must be the job's attempt. */
static void answer_push(struct fake *d)
{
        const Zero__Push *p = fake_expect(d, ZERO__REQUEST__BODY_PUSH)->push;

        MUST(p->attempt == d->job.attempt && p->micro_batch == 0);
        fake_ok(d, d->request->seq);
}

static void grad_and_push(struct zero_client *c, uint32_t group)
{
        void *grad;

        OK(zero_grad(c, group, &grad));
        OK(zero_push(c, group, NULL, true, NULL));
}

/* ---- calls in flight ----------------------------------------------------- */

static void die_in_fetch(struct fake *d)
{
        fake_begin(d);
        answer_fetch(d);
        fake_expect(d, ZERO__REQUEST__BODY_FETCH);
        restart_void(d);
        answer_fetch(d);
        answer_push(d);
        fake_expect_end(d);
}

Test(resume, what_was_held_is_gone_and_the_step_begins_anew)
{
        struct zero_client *c = fake_open(&f, die_in_fetch, 1);
        const void *view;

        OK(zero_fetch(c, FAKE_BF16, &view));
        ABORTED(zero_fetch(c, FAKE_FP32, &view));
        cr_assert(strstr(zero_error(c), "version 7"), "%s", zero_error(c));
        cr_assert_eq(zero_steps(c), 7u);
        cr_assert_eq(zero_release(c, FAKE_BF16, NULL), ZERO_ENOTHELD);
        OK(zero_fetch(c, FAKE_FP32, &view));
        grad_and_push(c, FAKE_FP32);
        fake_close(&f, c);
}

static void die_in_first_fetch(struct fake *d)
{
        fake_begin(d);
        fake_expect(d, ZERO__REQUEST__BODY_FETCH);
        restart_void(d);
        MUST(fake_expect(d, ZERO__REQUEST__BODY_FETCH)->fetch->attempt == d->job.attempt);
        fake_fetched(d, d->request->seq, false, 0);
        answer_push(d);
        fake_expect_end(d);
}

Test(resume, who_has_nothing_to_do_again_only_waits)
{
        struct zero_client *c = fake_open(&f, die_in_first_fetch, 1);
        const void *view;

        OK(zero_fetch(c, FAKE_FP32, &view));
        grad_and_push(c, FAKE_FP32);
        fake_close(&f, c);
}

static void go_on_elsewhere(struct fake *d)
{
        fake_begin(d);
        fake_expect(d, ZERO__REQUEST__BODY_FETCH);
        d->job.version = 9;
        restart_void(d);
        fake_expect_end(d);
}

Test(resume, another_version_is_told)
{
        struct zero_client *c = fake_open(&f, go_on_elsewhere, 1);
        const void *view;

        ABORTED(zero_fetch(c, FAKE_FP32, &view));
        cr_assert_eq(zero_steps(c), 9u);
        fake_close(&f, c);
}

static void die_twice(struct fake *d)
{
        fake_begin(d);
        fake_expect(d, ZERO__REQUEST__BODY_FETCH);
        restart_void(d);
        fake_expect(d, ZERO__REQUEST__BODY_FETCH);
        restart_void(d);
        fake_expect_end(d);
}

Test(resume, a_request_is_made_again_once)
{
        struct zero_client *c = fake_open(&f, die_twice, 1);
        const void *view;

        ABORTED(zero_fetch(c, FAKE_FP32, &view));
        fake_close(&f, c);
}

static void die_in_step(struct fake *d)
{
        fake_begin(d);
        answer_push(d);
        fake_expect(d, ZERO__REQUEST__BODY_STEP);
        restart_void(d);
        answer_push(d);
        fake_expect_end(d);
}

Test(resume, an_undecided_step_is_aborted)
{
        struct zero_client *c = fake_open(&f, die_in_step, 1);
        size_t bytes = 1;

        grad_and_push(c, FAKE_FP32);
        ABORTED(zero_step(c, &one_set, NULL));
        zero_blob(c, &bytes);
        cr_assert_eq(bytes, 0u);
        grad_and_push(c, FAKE_FP32);
        fake_close(&f, c);
}

static void die_after_decision(struct fake *d)
{
        fake_begin(d);
        answer_push(d);
        fake_expect(d, ZERO__REQUEST__BODY_STEP);
        restart_decided(d);
        MUST(fake_expect(d, ZERO__REQUEST__BODY_FETCH)->fetch->version == 8);
        fake_fetched(d, d->request->seq, false, 0);
        answer_push(d);
        fake_expect_end(d);
}

Test(resume, a_decided_step_returns_its_result)
{
        struct zero_client *c = fake_open(&f, die_after_decision, 1);
        struct zero_result result = { 0 };
        const void *view, *blob;
        size_t bytes = 0;

        grad_and_push(c, FAKE_FP32);
        OK(zero_step(c, &one_set, &result));
        cr_assert_eq(result.version, 8u);
        cr_assert_eq(result.grad_norm, 0.25);
        cr_assert_eq(result.loss_scale, 512.0);
        cr_assert_not(result.skipped);
        cr_assert_eq(zero_steps(c), 8u);
        blob = zero_blob(c, &bytes);
        cr_assert(bytes == 4 && memcmp(blob, "kept", 4) == 0);
        OK(zero_fetch(c, FAKE_FP32, &view));
        grad_and_push(c, FAKE_FP32);
        fake_close(&f, c);
}

static void skip_and_die(struct fake *d)
{
        fake_begin(d);
        fake_expect(d, ZERO__REQUEST__BODY_STEP);
        result_20.version = 7;
        result_20.skipped = true;
        restart_decided(d);
        fake_expect_end(d);
}

Test(resume, a_skipped_step_of_a_rank_that_pushed_nothing_returns_its_result)
{
        struct zero_client *c = fake_open(&f, skip_and_die, 1);
        struct zero_result result = { 0 };

        OK(zero_step(c, &one_set, &result));
        cr_assert(result.skipped);
        fake_close(&f, c);
}

static void decide_an_earlier_one(struct fake *d)
{
        fake_begin(d);
        fake_expect(d, ZERO__REQUEST__BODY_STEP);
        d->job.last = &result_20;
        d->job.last_attempt = 19;
        restart_void(d);
        fake_expect_end(d);
}

Test(resume, the_result_of_another_attempt_is_not_the_step_s)
{
        struct zero_client *c = fake_open(&f, decide_an_earlier_one, 1);

        ABORTED(zero_step(c, &one_set, NULL));
        fake_close(&f, c);
}

static void late_then_decided(struct fake *d)
{
        fake_begin(d);
        fake_expect(d, ZERO__REQUEST__BODY_STEP);
        fake_refuse(d, d->request->seq, ZERO_EDEADLINE, "waiting for rank 1");
        restart_decided(d);
        fake_expect_end(d);
}

Test(resume, a_step_asked_again_after_its_deadline_returns_its_result)
{
        struct zero_client *c = fake_open(&f, late_then_decided, 1);
        struct zero_result result = { 0 };

        cr_assert_eq(zero_step(c, &one_set, NULL), ZERO_EDEADLINE);
        OK(zero_step(c, &one_set, &result));
        cr_assert_eq(result.version, 8u);
        fake_close(&f, c);
}

static void late_then_skipped(struct fake *d)
{
        result_20.version = 7;
        result_20.skipped = true;
        fake_begin(d);
        fake_expect(d, ZERO__REQUEST__BODY_STEP);
        fake_refuse(d, d->request->seq, ZERO_EDEADLINE, "waiting for rank 1");
        d->job.last = &result_20;
        d->job.last_attempt = 20;
        restart_void(d);
        fake_expect_end(d);
}

/* Neither the version nor anything that was pushed tells that the attempt is over. */
Test(resume, a_step_that_was_skipped_meanwhile_is_not_asked_for_twice)
{
        struct zero_client *c = fake_open(&f, late_then_skipped, 1);
        struct zero_result result = { 0 };

        cr_assert_eq(zero_step(c, &one_set, NULL), ZERO_EDEADLINE);
        OK(zero_step(c, &one_set, &result));
        cr_assert(result.skipped);
        fake_close(&f, c);
}

static void die_in_norm(struct fake *d)
{
        fake_begin(d);
        fake_expect(d, ZERO__REQUEST__BODY_NORM);
        restart_void(d);
        fake_expect_end(d);
}

Test(resume, a_norm_is_aborted)
{
        struct zero_client *c = fake_open(&f, die_in_norm, 1);
        double norm;
        bool finite;

        ABORTED(zero_norm(c, &norm, &finite));
        fake_close(&f, c);
}

static void die_in_put_and_get(struct fake *d)
{
        static const float there[] = { 5, 6 };

        fake_begin(d);
        fake_expect(d, ZERO__REQUEST__BODY_PUT);
        restart_void(d);
        fake_ok(d, fake_expect(d, ZERO__REQUEST__BODY_PUT)->seq);
        MUST(memcmp(d->session, (const float[]){ 1, 2 }, 8) == 0);
        fake_expect(d, ZERO__REQUEST__BODY_GET);
        restart_void(d);
        fake_expect(d, ZERO__REQUEST__BODY_GET);
        memcpy(d->session, there, sizeof(there));
        fake_ok(d, d->request->seq);
        fake_expect_end(d);
}

Test(resume, a_put_is_aborted_and_a_get_made_again)
{
        struct zero_client *c = fake_open(&f, die_in_put_and_get, 1);
        float values[] = { 1, 2 };

        ABORTED(zero_put(c, 2, ZERO_PLANE_MASTER, 0, 2, values));
        OK(zero_put(c, 2, ZERO_PLANE_MASTER, 0, 2, values));
        OK(zero_get(c, 2, ZERO_PLANE_MASTER, 0, 2, values));
        cr_assert(values[0] == 5 && values[1] == 6);
        fake_close(&f, c);
}

static void die_in_norms(struct fake *d)
{
        Zero__NormsReply norms = ZERO__NORMS_REPLY__INIT;
        Zero__Reply reply = ZERO__REPLY__INIT;
        double norm = 2.5;

        fake_begin(d);
        fake_expect(d, ZERO__REQUEST__BODY_NORMS);
        restart_void(d);
        reply.seq = fake_expect(d, ZERO__REQUEST__BODY_NORMS)->seq;
        reply.body_case = ZERO__REPLY__BODY_NORMS;
        reply.norms = &norms;
        norms.n_norms = 1;
        norms.norms = &norm;
        fake_reply(d, &reply);
        fake_expect(d, ZERO__REQUEST__BODY_NORMS);
        restart_void(d);
        fake_expect_end(d);
}

Test(resume, norms_of_weights_are_asked_for_again_and_norms_of_gradients_aborted)
{
        struct zero_client *c = fake_open(&f, die_in_norms, 1);
        double norm = 0;

        OK(zero_tensor_norms(c, ZERO_PLANE_MASTER, 0, 1, &norm));
        cr_assert_eq(norm, 2.5);
        ABORTED(zero_tensor_norms(c, ZERO_PLANE_GRAD, 0, 1, &norm));
        fake_close(&f, c);
}

static void die_in_query(struct fake *d)
{
        fake_begin(d);
        answer_push(d);
        fake_expect(d, ZERO__REQUEST__BODY_QUERY);
        restart_void(d);
        fake_json(d, fake_expect(d, ZERO__REQUEST__BODY_QUERY)->seq, "{}");
        fake_expect_end(d);
}

Test(resume, a_query_is_made_again_and_leaves_the_abort_to_the_step)
{
        struct zero_client *c = fake_open(&f, die_in_query, 1);
        const void *view;
        char *json;

        grad_and_push(c, FAKE_FP32);
        OK(zero_query(c, "status", NULL, &json));
        free(json);
        ABORTED(zero_fetch(c, FAKE_FP32, &view));
        fake_close(&f, c);
}

static void die_with_slots(struct fake *d)
{
        fake_begin(d);
        fake_expect(d, ZERO__REQUEST__BODY_PUSH);
        restart_void(d);
        answer_push(d);
        fake_expect_end(d);
}

Test(resume, a_wait_for_memory_is_aborted_and_the_slots_are_free)
{
        struct zero_client *c = fake_open(&f, die_with_slots, 1);
        void *grad;

        grad_and_push(c, FAKE_FP32);
        ABORTED(zero_grad(c, FAKE_BF16, &grad));
        grad_and_push(c, FAKE_BF16);
        fake_close(&f, c);
}

static void say_that_it_stops(struct fake *d)
{
        fake_begin(d);
        fake_expect(d, ZERO__REQUEST__BODY_STEP);
        fake_refuse(d, d->request->seq, ZERO_ECLOSED, "the daemon stops");
        restart_decided(d);
        fake_expect_end(d);
}

Test(resume, a_daemon_that_says_that_it_stops_is_lost)
{
        struct zero_client *c = fake_open(&f, say_that_it_stops, 1);

        OK(zero_step(c, &one_set, NULL));
        fake_close(&f, c);
}

/* ---- calls that do not wait ------------------------------------------------ */

static void die_unseen(struct fake *d)
{
        fake_begin(d);
        answer_fetch(d);
        fake_json(d, fake_expect(d, ZERO__REQUEST__BODY_QUERY)->seq, "{}");
        fake_go_away(d);
        pthread_barrier_wait((pthread_barrier_t *)d->data);
        pthread_barrier_wait((pthread_barrier_t *)d->data);
        fake_come_back(d);
        d->job.attempt++;
        fake_begin(d);
        answer_push(d);
        fake_expect_end(d);
}

/* Nothing listens during these calls: a call that connected would wait for its deadline. */
Test(resume, calls_that_do_not_wait_leave_it_to_the_next_that_does)
{
        struct zero_client *c;
        pthread_barrier_t away;
        const void *view;
        char *json;
        void *grad;

        pthread_barrier_init(&away, NULL, 2);
        f.data = &away;
        c = fake_open(&f, die_unseen, 1);
        OK(zero_fetch(c, FAKE_FP32, &view));
        OK(zero_grad(c, FAKE_FP32, &grad));
        OK(zero_query(c, "status", NULL, &json));
        free(json);
        pthread_barrier_wait(&away);
        OK(zero_prefetch(c, FAKE_BF16));
        OK(zero_release(c, FAKE_FP32, NULL));
        cr_assert_eq(zero_release(c, FAKE_FP32, NULL), ZERO_ENOTHELD);
        OK(zero_push(c, FAKE_FP32, NULL, true, NULL));
        OK(zero_prefetch(c, FAKE_BF16));
        pthread_barrier_wait(&away);
        ABORTED(zero_grad(c, FAKE_BF16, &grad));
        grad_and_push(c, FAKE_BF16);
        fake_close(&f, c);
        pthread_barrier_destroy(&away);
}

static void abort_and_die(struct fake *d)
{
        uint64_t push;

        fake_begin(d);
        push = fake_expect(d, ZERO__REQUEST__BODY_PUSH)->seq;
        fake_expect(d, ZERO__REQUEST__BODY_QUERY);
        fake_stepped(d, push, ZERO_EABORTED, 7, 21);
        fake_json(d, d->request->seq, "{}");
        fake_expect(d, ZERO__REQUEST__BODY_QUERY);
        d->job.attempt = 21;
        fake_restart(d);
        fake_json(d, fake_expect(d, ZERO__REQUEST__BODY_QUERY)->seq, "{}");
        answer_fetch(d);
        fake_expect_end(d);
}

Test(resume, an_abort_that_was_not_told_yet_is_not_forgotten)
{
        struct zero_client *c = fake_open(&f, abort_and_die, 1);
        const void *view;
        char *json;

        grad_and_push(c, FAKE_FP32);
        for (int i = 0; i < 2; i++) {
                OK(zero_query(c, "status", NULL, &json));
                free(json);
        }
        ABORTED(zero_fetch(c, FAKE_FP32, &view));
        OK(zero_fetch(c, FAKE_FP32, &view));
        fake_close(&f, c);
}
