/*
 * A rank that takes the place of a dead one: who it is, what it owes, what that one kept; and
 * daemons that tell nonsense about it.
 */
#include <criterion/criterion.h>

#include "fake.h"

static const struct zero_set adamw = { .adamw = { 1e-3, 0.9, 0.999, 1e-8, 0.01 } };
static const struct zero_step_options one_set = { .sets = &adamw, .n_sets = 1 };
static struct fake f;

#define OK(call) cr_assert_eq(call, ZERO_OK, "%s", zero_error(c))

static void accept_two(struct fake *d)
{
        d->job.n_accepted = FAKE_GROUPS;
        d->job.accepted[FAKE_FP32] = 2;
        fake_begin(d);
}

static void owe_the_third(struct fake *d)
{
        const Zero__Push *p;

        accept_two(d);
        p = fake_expect(d, ZERO__REQUEST__BODY_PUSH)->push;
        MUST(p->group == FAKE_BF16 && p->micro_batch == 0);
        fake_ok(d, d->request->seq);
        p = fake_expect(d, ZERO__REQUEST__BODY_PUSH)->push;
        MUST(p->group == FAKE_FP32 && p->micro_batch == 2 && p->last && p->slot == 0);
        fake_ok(d, d->request->seq);
        fake_expect(d, ZERO__REQUEST__BODY_STEP);
        fake_stepped(d, d->request->seq, ZERO_OK, 8, 21);
        MUST(fake_expect(d, ZERO__REQUEST__BODY_PUSH)->push->micro_batch == 0);
        fake_ok(d, d->request->seq);
        fake_expect_end(d);
}

Test(successor, what_was_accepted_is_not_pushed_again)
{
        struct zero_client *c = fake_open(&f, owe_the_third, 1);
        void *grad;

        cr_assert_eq(zero_accepted(c, FAKE_FP32), 2u);
        cr_assert_eq(zero_accepted(c, FAKE_BF16), 0u);
        for (int i = 0; i < 2; i++) { /* the only slot is given back at once */
                OK(zero_grad(c, FAKE_FP32, &grad));
                OK(zero_push(c, FAKE_FP32, NULL, false, NULL));
        }
        OK(zero_grad(c, FAKE_BF16, &grad));
        OK(zero_push(c, FAKE_BF16, NULL, true, NULL));
        OK(zero_grad(c, FAKE_FP32, &grad));
        OK(zero_push(c, FAKE_FP32, NULL, true, NULL));
        OK(zero_step(c, &one_set, NULL));
        cr_assert_eq(zero_accepted(c, FAKE_FP32), 0u, "a new attempt owes everything");
        OK(zero_grad(c, FAKE_FP32, &grad));
        OK(zero_push(c, FAKE_FP32, NULL, true, NULL));
        fake_close(&f, c);
}

static void owe_nothing(struct fake *d)
{
        accept_two(d);
        fake_expect_end(d);
}

Test(successor, an_accepted_push_ends_its_group_and_needs_memory_as_any)
{
        struct zero_client *c = fake_open(&f, owe_nothing, 1);
        const uint8_t none[] = { 0 };
        void *grad;

        cr_assert_eq(zero_push(c, FAKE_FP32, NULL, true, NULL), ZERO_EORDER);
        OK(zero_push(c, FAKE_FP32, none, false, NULL));
        OK(zero_grad(c, FAKE_FP32, &grad));
        OK(zero_push(c, FAKE_FP32, NULL, true, NULL));
        cr_assert_eq(zero_grad(c, FAKE_FP32, &grad), ZERO_EORDER);
        fake_close(&f, c);
}

static void abort_accepted(struct fake *d)
{
        accept_two(d);
        fake_expect(d, ZERO__REQUEST__BODY_STEP);
        fake_stepped(d, d->request->seq, ZERO_EABORTED, 7, 21);
        MUST(fake_expect(d, ZERO__REQUEST__BODY_PUSH)->push->micro_batch == 0);
        fake_ok(d, d->request->seq);
        fake_expect_end(d);
}

Test(successor, an_abort_voids_what_was_accepted)
{
        struct zero_client *c = fake_open(&f, abort_accepted, 1);
        void *grad;

        cr_assert_eq(zero_step(c, &one_set, NULL), ZERO_EABORTED);
        cr_assert_eq(zero_accepted(c, FAKE_FP32), 0u);
        OK(zero_grad(c, FAKE_FP32, &grad));
        OK(zero_push(c, FAKE_FP32, NULL, true, NULL));
        fake_close(&f, c);
}

static void accept_as_they_come(struct fake *d)
{
        fake_begin(d);
        for (int i = 0; i < 2; i++)
                fake_ok(d, fake_expect(d, ZERO__REQUEST__BODY_PUSH)->seq);
        fake_json(d, fake_expect(d, ZERO__REQUEST__BODY_QUERY)->seq, "{}");
        fake_hang_up(d);
        accept_two(d); /* the daemon has lived on */
        MUST(d->request->attach->resume);
        MUST(fake_expect(d, ZERO__REQUEST__BODY_PUSH)->push->micro_batch == 2);
        fake_ok(d, d->request->seq);
        fake_expect_end(d);
}

Test(successor, a_rank_is_its_own_successor)
{
        struct zero_client *c = fake_open(&f, accept_as_they_come, 2);
        const void *view;
        char *json;
        void *grad;

        for (int i = 0; i < 2; i++) {
                OK(zero_grad(c, FAKE_FP32, &grad));
                OK(zero_push(c, FAKE_FP32, NULL, false, NULL));
        }
        OK(zero_query(c, "status", NULL, &json)); /* brings the answers in */
        free(json);
        cr_assert_eq(zero_accepted(c, FAKE_FP32), 2u);
        cr_assert_eq(zero_fetch(c, FAKE_FP32, &view), ZERO_EABORTED);
        cr_assert_eq(zero_accepted(c, FAKE_FP32), 2u);
        for (int i = 0; i < 3; i++) {
                OK(zero_grad(c, FAKE_FP32, &grad));
                OK(zero_push(c, FAKE_FP32, NULL, i == 2, NULL));
        }
        fake_close(&f, c);
}

Test(successor, nothing_is_accepted_where_there_is_nothing)
{
        struct zero_client *c;

        fake_start(&f, fake_only_begin);
        c = fake_connect(&f);
        cr_assert_eq(zero_accepted(c, 0), 0u);
        {
                struct zero_layout *l = fake_layout();
                struct zero_needs needs = { 1, 1, ZERO_FP32, ZERO_FP32 };

                OK(zero_attach(c, l, &needs));
                zero_layout_free(l);
        }
        cr_assert_eq(zero_accepted(c, ZERO_ALL), 0u);
        fake_close(&f, c);
}

/* ---- what a rank keeps ------------------------------------------------------ */

static void keep_blobs(struct fake *d)
{
        const Zero__Step *s;

        d->job.blob = "before";
        d->job.blob_bytes = 6;
        fake_begin(d);
        s = fake_expect(d, ZERO__REQUEST__BODY_STEP)->step;
        MUST(s->blob.len == ZERO_BLOB_MAX && s->blob.data[ZERO_BLOB_MAX - 1] == 'x');
        fake_stepped(d, d->request->seq, ZERO_OK, 8, 21);
        s = fake_expect(d, ZERO__REQUEST__BODY_STEP)->step;
        MUST(s->blob.len == 100 && s->blob.data[0] == 'x');
        fake_stepped(d, d->request->seq, ZERO_EABORTED, 8, 22);
        MUST(fake_expect(d, ZERO__REQUEST__BODY_STEP)->step->blob.len == 0);
        fake_stepped(d, d->request->seq, ZERO_OK, 9, 23);
        fake_expect_end(d);
}

Test(successor, the_blob_is_the_last_decided_step_s)
{
        struct zero_client *c = fake_open(&f, keep_blobs, 1);
        struct zero_step_options step = one_set;
        char large[ZERO_BLOB_MAX];
        const void *blob;
        size_t bytes = 0;

        blob = zero_blob(c, &bytes);
        cr_assert(bytes == 6 && memcmp(blob, "before", 6) == 0);
        memset(large, 'x', sizeof(large));
        step.blob = large;
        step.blob_bytes = sizeof(large);
        OK(zero_step(c, &step, NULL));
        blob = zero_blob(c, &bytes);
        cr_assert(bytes == sizeof(large) && memcmp(blob, large, bytes) == 0);
        step.blob = blob; /* its own */
        step.blob_bytes = 100;
        cr_assert_eq(zero_step(c, &step, NULL), ZERO_EABORTED);
        zero_blob(c, &bytes);
        cr_assert_eq(bytes, sizeof(large));
        OK(zero_step(c, &one_set, NULL));
        zero_blob(c, &bytes);
        cr_assert_eq(bytes, 0u);
        fake_close(&f, c);
}

Test(successor, a_blob_that_is_too_long_is_refused_here)
{
        struct zero_client *c = fake_open(&f, fake_only_begin, 1);
        struct zero_step_options step = one_set;
        char large[ZERO_BLOB_MAX + 1] = { 0 };

        step.blob = large;
        step.blob_bytes = sizeof(large);
        cr_assert_eq(zero_step(c, &step, NULL), ZERO_EINVAL);
        cr_assert(strstr(zero_error(c), "8192"));
        fake_close(&f, c);
}

/* ---- who it is --------------------------------------------------------------- */

static void check_needs(struct fake *d)
{
        fake_begin(d);
        MUST(d->request->attach->incarnation == 3);
        MUST(d->request->attach->on_lost_rank == ZERO_LOST_FAIL);
        MUST(!d->request->attach->resume);
        fake_expect(d, ZERO__REQUEST__BODY_STEP);
        fake_restart(d);
        MUST(d->request->attach->incarnation == 3);
        MUST(d->request->attach->on_lost_rank == ZERO_LOST_FAIL);
        fake_expect_end(d);
}

Test(successor, incarnation_and_wish_are_told_each_time)
{
        struct zero_needs needs = { 1, 1, ZERO_FP32, ZERO_FP32, .on_lost_rank = ZERO_LOST_FAIL };
        struct zero_layout *l = fake_layout();
        struct zero_options options;
        struct zero_client *c = NULL;

        fake_start(&f, check_needs);
        options = fake_options(&f);
        options.incarnation = 3;
        cr_assert_eq(zero_connect(&options, &c), ZERO_OK);
        OK(zero_attach(c, l, &needs));
        zero_layout_free(l);
        cr_assert_eq(zero_step(c, &one_set, NULL), ZERO_EABORTED);
        fake_close(&f, c);
}

static void only_hello(struct fake *d)
{
        fake_hello(d);
        fake_expect_end(d);
}

Test(successor, a_wish_that_is_none_is_refused_here)
{
        struct zero_needs needs = { 1, 1, ZERO_FP32, ZERO_FP32, .on_lost_rank = 7 };
        struct zero_layout *l = fake_layout();
        struct zero_client *c;

        fake_start(&f, only_hello);
        c = fake_connect(&f);
        cr_assert_eq(zero_attach(c, l, &needs), ZERO_EINVAL);
        zero_layout_free(l);
        fake_close(&f, c);
}

/* ---- daemons that tell nonsense ------------------------------------------------ */

static void lie(struct fake *d)
{
        const struct fake_job *told = d->data;

        d->job = *told;
        fake_begin(d);
        fake_expect_end(d);
}

static void lie_later(struct fake *d)
{
        fake_begin(d);
        fake_expect(d, ZERO__REQUEST__BODY_STEP);
        fake_hang_up(d);
        lie(d);
}

static void expect_refused(const struct fake_job *told, const char *why)
{
        struct zero_needs needs = { 1, 1, ZERO_FP32, ZERO_FP32 };
        struct zero_layout *l = fake_layout();
        struct zero_client *c;

        f.data = told;
        fake_start(&f, lie);
        c = fake_connect(&f);
        cr_assert_eq(zero_attach(c, l, &needs), ZERO_ECLOSED);
        cr_assert(strstr(zero_error(c), why), "%s", zero_error(c));
        cr_assert_null(zero_client_layout(c));
        fake_close(&f, c);
        zero_layout_free(l);
        c = fake_open(&f, lie_later, 1);
        cr_assert_eq(zero_step(c, &one_set, NULL), ZERO_ECLOSED);
        cr_assert(strstr(zero_error(c), why), "%s", zero_error(c));
        fake_close(&f, c);
}

static struct fake_job truth(void)
{
        return (struct fake_job){ .version = 7, .attempt = 20, .gather_bytes = FAKE_GATHER };
}

Test(successor, a_count_for_other_than_every_group_closes)
{
        struct fake_job told = truth();

        told.n_accepted = FAKE_GROUPS - 1;
        expect_refused(&told, "micro-batches of 3 groups");
        told.n_accepted = FAKE_GROUPS + 1;
        expect_refused(&told, "micro-batches of 5 groups");
}

Test(successor, a_blob_beyond_the_limit_closes)
{
        static const uint8_t large[ZERO_BLOB_MAX + 1];
        struct fake_job told = truth();

        told.blob = large;
        told.blob_bytes = sizeof(large);
        expect_refused(&told, "8193 bytes");
}

Test(successor, a_result_of_no_attempt_or_one_to_come_closes)
{
        Zero__StepReply last = ZERO__STEP_REPLY__INIT;
        struct fake_job told = truth();

        told.last = &last;
        expect_refused(&told, "result of attempt 0");
        told.last_attempt = 20;
        expect_refused(&told, "result of attempt 20 in attempt 20");
}
