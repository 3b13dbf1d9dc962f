/* The end of a step: norm, step, deadline, abort. */
#include <criterion/criterion.h>

#include "fake.h"

static const struct zero_set adamw = { .adamw = { 1e-3, 0.9, 0.999, 1e-8, 0.01 } };
static const struct zero_step_options one_set = { .sets = &adamw, .n_sets = 1 };
static struct fake f;

#define OK(call) cr_assert_eq(call, ZERO_OK, "%s", zero_error(c))

static void two_steps(struct fake *d)
{
        const Zero__StepParams *p;

        fake_begin(d);
        fake_expect(d, ZERO__REQUEST__BODY_FETCH);
        fake_fetched(d, d->request->seq, false, 0);
        fake_ok(d, fake_expect(d, ZERO__REQUEST__BODY_PUSH)->seq);
        MUST(fake_expect(d, ZERO__REQUEST__BODY_STEP)->step->attempt == 20);
        p = d->request->step->params;
        MUST(p->n_sets == 1 && p->loss_scale == 1);
        MUST(strcmp(p->sets[0]->optimizer, "adamw") == 0 && p->sets[0]->n_values == 7 &&
             p->sets[0]->values[0] == 1e-3 && p->sets[0]->values[4] == 0.01);
        fake_stepped(d, d->request->seq, ZERO_OK, 8, 21);
        MUST(fake_expect(d, ZERO__REQUEST__BODY_PUSH)->push->micro_batch == 0);
        MUST(d->request->push->attempt == 21);
        fake_ok(d, d->request->seq);
        fake_expect(d, ZERO__REQUEST__BODY_FETCH);
        MUST(d->request->fetch->version == 8);
        fake_fetched(d, d->request->seq, false, 0);
        fake_expect_end(d);
}

Test(step, a_step_ends_leases_and_counts)
{
        struct zero_client *c = fake_open(&f, two_steps, 1);
        struct zero_result result = { 0 };
        const void *view;
        void *grad;

        OK(zero_fetch(c, FAKE_FP32, &view));
        OK(zero_grad(c, FAKE_FP32, &grad));
        OK(zero_push(c, FAKE_FP32, NULL, true, NULL));
        OK(zero_step(c, &one_set, &result));
        cr_assert_eq(result.version, 8u);
        cr_assert_eq(zero_steps(c), 8u);
        cr_assert_eq(zero_loss_scale(c), 1024.0);
        cr_assert_eq(result.grad_norm, 0.5);
        cr_assert_eq(zero_release(c, FAKE_FP32, NULL), ZERO_ENOTHELD);
        OK(zero_grad(c, FAKE_FP32, &grad));
        OK(zero_push(c, FAKE_FP32, NULL, true, NULL));
        OK(zero_fetch(c, FAKE_FP32, &view));
        fake_close(&f, c);
}

static void push_and_step(struct fake *d)
{
        fake_begin(d);
        fake_ok(d, fake_expect(d, ZERO__REQUEST__BODY_PUSH)->seq);
        fake_expect(d, ZERO__REQUEST__BODY_STEP);
        fake_stepped(d, d->request->seq, ZERO_OK, 8, 21);
        fake_expect_end(d);
}

Test(step, a_gradient_that_was_not_pushed_is_missed)
{
        struct zero_client *c = fake_open(&f, push_and_step, 1);
        double norm;
        bool finite;
        void *grad;

        OK(zero_grad(c, FAKE_FP32, &grad));
        cr_assert_eq(zero_norm(c, &norm, &finite), ZERO_EORDER);
        cr_assert_eq(zero_step(c, &one_set, NULL), ZERO_EORDER);
        cr_assert(strstr(zero_error(c), "'h.0'"), "%s", zero_error(c));
        OK(zero_push(c, FAKE_FP32, NULL, true, NULL));
        OK(zero_step(c, &one_set, NULL));
        fake_close(&f, c);
}

static void late_rank(struct fake *d)
{
        fake_begin(d);
        fake_expect(d, ZERO__REQUEST__BODY_STEP);
        fake_refuse(d, d->request->seq, ZERO_EDEADLINE, "waiting for rank 1 on b: push of 'h.0'");
        MUST(fake_expect(d, ZERO__REQUEST__BODY_STEP)->step->attempt == 20);
        fake_stepped(d, d->request->seq, ZERO_OK, 8, 21);
        fake_expect_end(d);
}

Test(step, deadline_leaves_the_step_as_it_is)
{
        struct zero_client *c = fake_open(&f, late_rank, 1);

        cr_assert_eq(zero_step(c, &one_set, NULL), ZERO_EDEADLINE);
        cr_assert(strstr(zero_error(c), "rank 1 on b"));
        cr_assert_eq(zero_steps(c), 7u);
        OK(zero_step(c, &one_set, NULL));
        fake_close(&f, c);
}

static void abort_step(struct fake *d)
{
        fake_begin(d);
        fake_expect(d, ZERO__REQUEST__BODY_FETCH);
        fake_fetched(d, d->request->seq, false, 0);
        fake_ok(d, fake_expect(d, ZERO__REQUEST__BODY_PUSH)->seq);
        fake_expect(d, ZERO__REQUEST__BODY_STEP);
        fake_stepped(d, d->request->seq, ZERO_EABORTED, 7, 21);
        fake_expect(d, ZERO__REQUEST__BODY_PUSH);
        MUST(d->request->push->attempt == 21 && d->request->push->micro_batch == 0);
        fake_ok(d, d->request->seq);
        fake_expect_end(d);
}

Test(step, aborted_step_is_replayed_as_the_next_attempt)
{
        struct zero_client *c = fake_open(&f, abort_step, 1);
        const void *view;
        void *grad;

        OK(zero_fetch(c, FAKE_FP32, &view));
        OK(zero_grad(c, FAKE_FP32, &grad));
        OK(zero_push(c, FAKE_FP32, NULL, true, NULL));
        cr_assert_eq(zero_step(c, &one_set, NULL), ZERO_EABORTED);
        cr_assert_eq(zero_steps(c), 7u);
        cr_assert_eq(zero_release(c, FAKE_FP32, NULL), ZERO_ENOTHELD);
        OK(zero_grad(c, FAKE_FP32, &grad));
        OK(zero_push(c, FAKE_FP32, NULL, true, NULL));
        fake_close(&f, c);
}

static void abort_pushes(struct fake *d)
{
        uint64_t a, b;

        fake_begin(d);
        a = fake_expect(d, ZERO__REQUEST__BODY_PUSH)->seq;
        b = fake_expect(d, ZERO__REQUEST__BODY_PUSH)->seq;
        fake_expect(d, ZERO__REQUEST__BODY_FETCH);
        fake_stepped(d, a, ZERO_EABORTED, 7, 21);
        fake_stepped(d, d->request->seq, ZERO_EABORTED, 7, 21);
        fake_expect(d, ZERO__REQUEST__BODY_FETCH);
        fake_stepped(d, b, ZERO_EABORTED, 7, 21);
        fake_fetched(d, d->request->seq, false, 0);
        fake_expect(d, ZERO__REQUEST__BODY_PUSH);
        MUST(d->request->push->attempt == 21);
        fake_ok(d, d->request->seq);
        fake_expect_end(d);
}

Test(step, an_abort_is_told_once_however_many_replies_bring_it)
{
        struct zero_client *c = fake_open(&f, abort_pushes, 2);
        const void *view;
        void *grad;

        OK(zero_grad(c, FAKE_FP32, &grad));
        OK(zero_push(c, FAKE_FP32, NULL, true, NULL));
        OK(zero_grad(c, FAKE_BF16, &grad));
        OK(zero_push(c, FAKE_BF16, NULL, true, NULL));
        cr_assert_eq(zero_fetch(c, FAKE_FP32, &view), ZERO_EABORTED);
        OK(zero_fetch(c, FAKE_FP32, &view));
        OK(zero_grad(c, FAKE_FP32, &grad));
        OK(zero_push(c, FAKE_FP32, NULL, true, NULL));
        fake_close(&f, c);
}

static void abort_before_push(struct fake *d)
{
        uint64_t a;

        fake_begin(d);
        a = fake_expect(d, ZERO__REQUEST__BODY_PUSH)->seq;
        fake_expect(d, ZERO__REQUEST__BODY_FETCH);
        fake_fetched(d, d->request->seq, false, 0);
        fake_stepped(d, a, ZERO_EABORTED, 7, 21);
        fake_json(d, fake_expect(d, ZERO__REQUEST__BODY_QUERY)->seq, "{}");
        fake_expect_end(d);
}

/* The abort arrives between two calls: the old attempt must not go on under the new number. */
Test(step, nothing_is_pushed_after_an_untold_abort)
{
        struct zero_client *c = fake_open(&f, abort_before_push, 2);
        const void *view;
        char *json;
        void *grad;

        OK(zero_grad(c, FAKE_BF16, &grad));
        OK(zero_grad(c, FAKE_FP32, &grad));
        OK(zero_push(c, FAKE_FP32, NULL, true, NULL));
        OK(zero_fetch(c, FAKE_FP32, &view));
        OK(zero_query(c, "status", NULL, &json)); /* its answer comes after the abort */
        free(json);
        cr_assert_eq(zero_push(c, FAKE_BF16, NULL, true, NULL), ZERO_EABORTED);
        fake_close(&f, c);
}

static void norm_then_step(struct fake *d)
{
        Zero__NormReply norm = ZERO__NORM_REPLY__INIT;
        Zero__Reply reply = ZERO__REPLY__INIT;

        fake_begin(d);
        MUST(fake_expect(d, ZERO__REQUEST__BODY_NORM)->norm->attempt == 20);
        norm.norm = 2.5;
        norm.finite = true;
        reply.seq = d->request->seq;
        reply.body_case = ZERO__REPLY__BODY_NORM;
        reply.norm = &norm;
        fake_reply(d, &reply);
        fake_expect_end(d);
}

Test(step, norm_is_told)
{
        struct zero_client *c = fake_open(&f, norm_then_step, 1);
        double norm = 0;
        bool finite = false;

        OK(zero_norm(c, &norm, &finite));
        cr_assert_eq(norm, 2.5);
        cr_assert(finite);
        fake_close(&f, c);
}

Test(step, hyperparameter_sets_are_checked_here)
{
        struct zero_client *c = fake_open(&f, fake_only_begin, 1);
        struct zero_step_options step = { .n_sets = ZERO_SET_MAX + 1, .sets = &adamw };

        cr_assert_eq(zero_step(c, NULL, NULL), ZERO_EINVAL);
        cr_assert_eq(zero_step(c, &step, NULL), ZERO_EINVAL);
        cr_assert(strstr(zero_error(c), "257"), "%s", zero_error(c));
        step = (struct zero_step_options){ .n_sets = 1 };
        cr_assert_eq(zero_step(c, &step, NULL), ZERO_EINVAL);
        cr_assert(strstr(zero_error(c), "sets is NULL"), "%s", zero_error(c));
        fake_close(&f, c);
}
