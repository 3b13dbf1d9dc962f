/* The calls of a step: what is sent, what is waited for, what is counted. */
#include <criterion/criterion.h>

#include "fake.h"

static const struct zero_adamw adamw = { 1e-3, 0.9, 0.999, 1e-8, 0.01 };
static const struct zero_step one_set = { .sets = &adamw, .n_sets = 1 };

static struct fake f;

/* A client with some push slots, and a daemon that follows the script. */
static struct zero_client *begin(void (*script)(struct fake *fake), uint32_t push_groups)
{
        fake_start(&f, script);
        return fake_client(&f, push_groups);
}

static void end(struct zero_client *c)
{
        zero_close(c);
        fake_stop(&f);
}

#define OK(call) cr_assert_eq(call, ZERO_OK, "%s", zero_error(c))

/* ---- fetch, prefetch, release ------------------------------------------ */

static void fetch_once(struct fake *d)
{
        fake_begin(d);
        d->gather[4096] = 42;
        MUST(fake_expect(d, ZERO__REQUEST__BODY_FETCH)->fetch->group == FAKE_FP32);
        MUST(d->request->fetch->version == 7);
        fake_fetched(d, d->request->seq, false, 4096);
        MUST(fake_expect(d, ZERO__REQUEST__BODY_RELEASE)->release->group == FAKE_FP32);
        fake_ok(d, d->request->seq);
        fake_expect_end(d);
}

Test(step, nested_fetches_ask_once_and_release_once)
{
        struct zero_client *c = begin(fetch_once, 1);
        const void *a = NULL, *b = NULL;

        OK(zero_fetch(c, FAKE_FP32, NULL, &a));
        OK(zero_fetch(c, FAKE_FP32, NULL, &b));
        cr_assert_eq(a, b);
        cr_assert_eq(*(const uint8_t *)a, 42);
        OK(zero_release(c, FAKE_FP32, NULL));
        OK(zero_release(c, FAKE_FP32, NULL));
        end(c);
}

static void fetch_served(struct fake *d)
{
        fake_begin(d);
        d->serve[256] = 17;
        fake_expect(d, ZERO__REQUEST__BODY_FETCH);
        fake_fetched(d, d->request->seq, true, 256);
        fake_expect_end(d);
}

Test(step, view_may_lie_in_the_serve_segment)
{
        struct zero_client *c = begin(fetch_served, 1);
        const void *view = NULL;

        OK(zero_fetch(c, FAKE_BF16, NULL, &view));
        cr_assert_eq(*(const uint8_t *)view, 17);
        end(c);
}

static void fetch_outside(struct fake *d)
{
        fake_begin(d);
        fake_expect(d, ZERO__REQUEST__BODY_FETCH);
        fake_fetched(d, d->request->seq, false, FAKE_GATHER - 4);
        fake_expect_end(d);
}

Test(step, view_outside_the_window_closes)
{
        struct zero_client *c = begin(fetch_outside, 1);
        const void *view = NULL;

        cr_assert_eq(zero_fetch(c, FAKE_FP32, NULL, &view), ZERO_ECLOSED);
        cr_assert_null(view);
        end(c);
}

static void fetch_far_outside(struct fake *d)
{
        fake_begin(d);
        fake_expect(d, ZERO__REQUEST__BODY_FETCH);
        fake_fetched(d, d->request->seq, false, UINT64_MAX - 100);
        fake_expect_end(d);
}

Test(step, offset_that_overflows_closes)
{
        struct zero_client *c = begin(fetch_far_outside, 1);
        const void *view = NULL;

        cr_assert_eq(zero_fetch(c, FAKE_FP32, NULL, &view), ZERO_ECLOSED);
        end(c);
}

static void refuse_fetch(struct fake *d)
{
        fake_begin(d);
        fake_expect(d, ZERO__REQUEST__BODY_FETCH);
        fake_refuse(d, d->request->seq, ZERO_EDEADLINE, "waiting for node b: group 'h.0'");
        fake_expect(d, ZERO__REQUEST__BODY_FETCH);
        fake_fetched(d, d->request->seq, false, 0);
        fake_expect_end(d);
}

Test(step, refused_fetch_holds_nothing_and_may_be_repeated)
{
        struct zero_client *c = begin(refuse_fetch, 1);
        const void *view = NULL;

        cr_assert_eq(zero_fetch(c, FAKE_FP32, NULL, &view), ZERO_EDEADLINE);
        cr_assert_str_eq(zero_error(c), "waiting for node b: group 'h.0'");
        cr_assert_eq(zero_release(c, FAKE_FP32, NULL), ZERO_ENOTHELD);
        OK(zero_fetch(c, FAKE_FP32, NULL, &view));
        end(c);
}

static void only_begin(struct fake *d)
{
        fake_begin(d);
        fake_expect_end(d);
}

Test(step, release_without_fetch_is_found_here)
{
        struct zero_client *c = begin(only_begin, 1);

        cr_assert_eq(zero_release(c, FAKE_FP32, NULL), ZERO_ENOTHELD);
        cr_assert(strstr(zero_error(c), "h.0"));
        end(c);
}

Test(step, unknown_group_is_found_here)
{
        struct zero_client *c = begin(only_begin, 1);
        const void *view;
        void *grad;

        cr_assert_eq(zero_fetch(c, FAKE_GROUPS, NULL, &view), ZERO_ENOGROUP);
        cr_assert_eq(zero_prefetch(c, ZERO_ALL), ZERO_ENOGROUP);
        cr_assert_eq(zero_release(c, FAKE_GROUPS, NULL), ZERO_ENOGROUP);
        cr_assert_eq(zero_grad(c, FAKE_GROUPS, &grad), ZERO_ENOGROUP);
        cr_assert_eq(zero_push(c, FAKE_GROUPS, NULL, true, NULL), ZERO_ENOGROUP);
        end(c);
}

static void never_answer_prefetch(struct fake *d)
{
        fake_begin(d);
        MUST(fake_expect(d, ZERO__REQUEST__BODY_PREFETCH)->prefetch->version == 7);
        fake_expect(d, ZERO__REQUEST__BODY_FETCH);
        fake_fetched(d, d->request->seq, false, 0);
        fake_expect_end(d);
}

Test(step, prefetch_does_not_wait)
{
        struct zero_client *c = begin(never_answer_prefetch, 1);
        const void *view;

        OK(zero_prefetch(c, FAKE_FP32));
        OK(zero_fetch(c, FAKE_BF16, NULL, &view));
        OK(zero_prefetch(c, FAKE_BF16)); /* held: nothing is asked */
        end(c);
}

static void refuse_prefetch(struct fake *d)
{
        fake_begin(d);
        fake_expect(d, ZERO__REQUEST__BODY_PREFETCH);
        fake_refuse(d, d->request->seq, ZERO_EPEER, "node b is down");
        fake_expect(d, ZERO__REQUEST__BODY_FETCH);
        fake_fetched(d, d->request->seq, false, 0);
        fake_expect(d, ZERO__REQUEST__BODY_FETCH);
        fake_fetched(d, d->request->seq, false, 0);
        fake_expect_end(d);
}

Test(step, failed_prefetch_is_no_error)
{
        struct zero_client *c = begin(refuse_prefetch, 1);
        const void *view;

        OK(zero_prefetch(c, FAKE_FP32));
        OK(zero_fetch(c, FAKE_BF16, NULL, &view));
        OK(zero_fetch(c, FAKE_FP32, NULL, &view));
        end(c);
}

static void answer_in_reverse(struct fake *d)
{
        uint64_t seq[4];

        fake_begin(d);
        for (int i = 0; i < 3; i++)
                seq[i] = fake_expect(d, ZERO__REQUEST__BODY_PREFETCH)->seq;
        seq[3] = fake_expect(d, ZERO__REQUEST__BODY_FETCH)->seq;
        fake_fetched(d, seq[3], false, 0);
        for (int i = 2; i >= 0; i--)
                fake_ok(d, seq[i]);
        fake_expect(d, ZERO__REQUEST__BODY_FETCH);
        fake_fetched(d, d->request->seq, false, 0);
        fake_expect_end(d);
}

Test(step, replies_may_come_in_any_order)
{
        struct zero_client *c = begin(answer_in_reverse, 1);
        const void *view;

        OK(zero_prefetch(c, FAKE_BF16));
        OK(zero_prefetch(c, FAKE_FP32));
        OK(zero_prefetch(c, FAKE_FROZEN));
        OK(zero_fetch(c, FAKE_FP32, NULL, &view));
        OK(zero_fetch(c, FAKE_BF16, NULL, &view));
        end(c);
}

static void answer_twice(struct fake *d)
{
        fake_begin(d);
        fake_expect(d, ZERO__REQUEST__BODY_FETCH);
        fake_fetched(d, d->request->seq, false, 0);
        fake_fetched(d, d->request->seq, false, 0);
        fake_expect_end(d);
}

Test(step, second_answer_to_one_request_closes)
{
        struct zero_client *c = begin(answer_twice, 1);
        const void *view;
        int r = ZERO_OK;

        OK(zero_fetch(c, FAKE_FP32, NULL, &view));
        for (int i = 0; i < 1000 && r == ZERO_OK; i++)
                r = zero_step(c, &one_set, NULL);
        cr_assert_eq(r, ZERO_ECLOSED);
        end(c);
}

enum { MANY = 10000 };

static void answer_many(struct fake *d)
{
        fake_begin(d);
        for (int i = 0; i < MANY; i++)
                fake_ok(d, fake_expect(d, ZERO__REQUEST__BODY_PREFETCH)->seq);
        fake_fetched(d, fake_expect(d, ZERO__REQUEST__BODY_FETCH)->seq, false, 0);
        fake_expect_end(d);
}

Test(step, more_requests_than_fit_under_way_take_replies_in)
{
        struct zero_client *c = begin(answer_many, 1);
        const void *view;

        for (int i = 0; i < MANY; i++)
                OK(zero_prefetch(c, FAKE_FP32));
        OK(zero_fetch(c, FAKE_FP32, NULL, &view));
        end(c);
}

/* ---- gradients --------------------------------------------------------- */

static void take_pushes(struct fake *d)
{
        const Zero__Push *p;

        fake_begin(d);
        for (uint32_t i = 0; i < 3; i++) {
                p = fake_expect(d, ZERO__REQUEST__BODY_PUSH)->push;
                MUST(p->group == FAKE_FP32 && p->attempt == 20 && p->micro_batch == i);
                MUST(p->last == (i == 2) && p->slot == 0);
                MUST(d->session[FAKE_TRANSFER] == 100 + i);
                fake_ok(d, d->request->seq);
        }
        fake_expect_end(d);
}

Test(step, micro_batches_are_counted_and_end_with_the_last)
{
        struct zero_client *c = begin(take_pushes, 1);
        void *grad;

        for (int i = 0; i < 3; i++) {
                OK(zero_grad(c, FAKE_FP32, &grad));
                *(uint8_t *)grad = (uint8_t)(100 + i);
                OK(zero_push(c, FAKE_FP32, NULL, i == 2, NULL));
        }
        cr_assert_eq(zero_grad(c, FAKE_FP32, &grad), ZERO_EORDER);
        cr_assert_eq(zero_push(c, FAKE_FP32, NULL, true, NULL), ZERO_EORDER);
        end(c);
}

Test(step, same_memory_until_the_push)
{
        struct zero_client *c = begin(only_begin, 2);
        void *a = NULL, *b = NULL, *other = NULL;

        OK(zero_grad(c, FAKE_FP32, &a));
        OK(zero_grad(c, FAKE_BF16, &other));
        OK(zero_grad(c, FAKE_FP32, &b));
        cr_assert_eq(a, b);
        cr_assert_neq(a, other);
        end(c);
}

Test(step, push_without_memory_is_refused)
{
        struct zero_client *c = begin(only_begin, 1);

        cr_assert_eq(zero_push(c, FAKE_FP32, NULL, true, NULL), ZERO_EORDER);
        end(c);
}

Test(step, only_trainable_groups_of_this_rank_are_pushed)
{
        struct zero_client *c = begin(only_begin, ZERO_ALL);
        void *grad;

        cr_assert_eq(zero_grad(c, FAKE_FROZEN, &grad), ZERO_EINVAL);
        cr_assert_eq(zero_grad(c, FAKE_OTHERS, &grad), ZERO_ERANK);
        end(c);
}

Test(step, all_slots_kept_by_the_caller_is_an_error_at_once)
{
        struct zero_client *c = begin(only_begin, 1);
        void *grad;

        OK(zero_grad(c, FAKE_FP32, &grad));
        cr_assert_eq(zero_grad(c, FAKE_BF16, &grad), ZERO_EORDER);
        end(c);
}

/* Answers a push only when the next request proves that the client did not wait for it. */
static void answer_push_late(struct fake *d)
{
        uint64_t first;

        fake_begin(d);
        first = fake_expect(d, ZERO__REQUEST__BODY_PUSH)->seq;
        fake_expect(d, ZERO__REQUEST__BODY_PREFETCH);
        fake_ok(d, d->request->seq);
        fake_ok(d, first);
        MUST(fake_expect(d, ZERO__REQUEST__BODY_PUSH)->push->slot == 0);
        fake_ok(d, d->request->seq);
        fake_expect_end(d);
}

Test(step, grad_waits_for_a_slot_and_push_does_not)
{
        struct zero_client *c = begin(answer_push_late, 1);
        void *grad;

        OK(zero_grad(c, FAKE_FP32, &grad));
        OK(zero_push(c, FAKE_FP32, NULL, true, NULL));
        OK(zero_prefetch(c, FAKE_FP32));
        OK(zero_grad(c, FAKE_BF16, &grad));
        OK(zero_push(c, FAKE_BF16, NULL, true, NULL));
        end(c);
}

static void whole_window(struct fake *d)
{
        uint64_t a, b;

        fake_begin(d);
        MUST(fake_expect(d, ZERO__REQUEST__BODY_PUSH)->push->slot == FAKE_FP32);
        a = d->request->seq;
        MUST(fake_expect(d, ZERO__REQUEST__BODY_PUSH)->push->slot == FAKE_BF16);
        b = d->request->seq;
        fake_ok(d, b);
        fake_ok(d, a);
        MUST(fake_expect(d, ZERO__REQUEST__BODY_PUSH)->push->micro_batch == 1);
        fake_ok(d, d->request->seq);
        fake_expect_end(d);
}

Test(step, whole_window_has_one_slot_a_group)
{
        struct zero_client *c = begin(whole_window, ZERO_ALL);
        void *a = NULL, *b = NULL;

        OK(zero_grad(c, FAKE_FP32, &a));
        OK(zero_push(c, FAKE_FP32, NULL, false, NULL));
        OK(zero_grad(c, FAKE_BF16, &b));
        OK(zero_push(c, FAKE_BF16, NULL, true, NULL));
        OK(zero_grad(c, FAKE_FP32, &b)); /* waits for its own slot */
        cr_assert_eq(a, b);
        OK(zero_push(c, FAKE_FP32, NULL, true, NULL));
        end(c);
}

static void check_present(struct fake *d)
{
        const Zero__Push *p;

        fake_begin(d);
        p = fake_expect(d, ZERO__REQUEST__BODY_PUSH)->push;
        MUST(p->present.len == 2 && p->present.data[0] == 1 && p->present.data[1] == 0);
        fake_ok(d, d->request->seq);
        p = fake_expect(d, ZERO__REQUEST__BODY_PUSH)->push;
        MUST(p->present.len == 0);
        fake_ok(d, d->request->seq);
        fake_expect_end(d);
}

Test(step, presence_is_sent_without_frozen_tensors)
{
        struct zero_client *c = begin(check_present, 1);
        const uint8_t both[] = { 200, 1 };
        void *grad;

        OK(zero_grad(c, FAKE_BF16, &grad));
        OK(zero_push(c, FAKE_BF16, both, false, NULL));
        OK(zero_grad(c, FAKE_BF16, &grad));
        OK(zero_push(c, FAKE_BF16, NULL, true, NULL));
        end(c);
}

static void refuse_push(struct fake *d)
{
        fake_begin(d);
        fake_expect(d, ZERO__REQUEST__BODY_PUSH);
        fake_refuse(d, d->request->seq, ZERO_EQUOTA, "too much");
        fake_expect(d, ZERO__REQUEST__BODY_FETCH);
        fake_fetched(d, d->request->seq, false, 0);
        fake_expect(d, ZERO__REQUEST__BODY_FETCH);
        fake_fetched(d, d->request->seq, false, 0);
        fake_expect_end(d);
}

Test(step, refused_push_is_told_once_by_a_later_call)
{
        struct zero_client *c = begin(refuse_push, 1);
        const void *view;
        void *grad;

        OK(zero_grad(c, FAKE_FP32, &grad));
        OK(zero_push(c, FAKE_FP32, NULL, true, NULL));
        OK(zero_fetch(c, FAKE_FP32, NULL, &view)); /* brings the refusal in */
        cr_assert_eq(zero_fetch(c, FAKE_BF16, NULL, &view), ZERO_EQUOTA);
        cr_assert_str_eq(zero_error(c), "too much");
        OK(zero_fetch(c, FAKE_BF16, NULL, &view));
        end(c);
}

static void keep_push(struct fake *d)
{
        fake_begin(d);
        fake_expect(d, ZERO__REQUEST__BODY_PUSH);
        fake_expect_end(d);
}

Test(step, waiting_for_a_slot_ends_at_the_deadline)
{
        struct zero_needs needs = { 1, 1, ZERO_FP32, ZERO_FP32 };
        struct zero_layout *l = fake_layout();
        struct zero_options options;
        struct zero_client *c = NULL;
        void *grad;

        fake_start(&f, keep_push);
        options = fake_options(&f);
        options.timeout_ms = 1;
        cr_assert_eq(zero_connect(&options, &c), ZERO_OK);
        OK(zero_attach(c, l, &needs));
        zero_layout_free(l);
        OK(zero_grad(c, FAKE_FP32, &grad));
        OK(zero_push(c, FAKE_FP32, NULL, true, NULL));
        cr_assert_eq(zero_grad(c, FAKE_BF16, &grad), ZERO_EDEADLINE);
        cr_assert(strstr(zero_error(c), "embed"));
        end(c);
}

static void die_with_pushes(struct fake *d)
{
        fake_begin(d);
        fake_expect(d, ZERO__REQUEST__BODY_PUSH);
        fake_hang_up(d);
}

Test(step, gradient_memory_outlives_the_daemon)
{
        struct zero_client *c = begin(die_with_pushes, 1);
        void *grad, *none;

        OK(zero_grad(c, FAKE_FP32, &grad));
        OK(zero_push(c, FAKE_FP32, NULL, true, NULL));
        cr_assert_eq(zero_grad(c, FAKE_BF16, &none), ZERO_ECLOSED);
        memset(grad, 1, 3000 * sizeof(float));
        cr_assert_eq(zero_step(c, &one_set, NULL), ZERO_ECLOSED);
        end(c);
}

/* ---- norm and step ----------------------------------------------------- */

static void two_steps(struct fake *d)
{
        const Zero__StepParams *p;

        fake_begin(d);
        fake_expect(d, ZERO__REQUEST__BODY_FETCH);
        fake_fetched(d, d->request->seq, false, 0);
        fake_ok(d, fake_expect(d, ZERO__REQUEST__BODY_PUSH)->seq);
        MUST(fake_expect(d, ZERO__REQUEST__BODY_STEP)->step->attempt == 20);
        p = d->request->step->params;
        MUST(p->n_sets == 1 && p->sets[0]->lr == 1e-3 && p->loss_scale == 1);
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
        struct zero_client *c = begin(two_steps, 1);
        struct zero_result result = { 0 };
        const void *view;
        void *grad;

        OK(zero_fetch(c, FAKE_FP32, NULL, &view));
        OK(zero_grad(c, FAKE_FP32, &grad));
        OK(zero_push(c, FAKE_FP32, NULL, true, NULL));
        OK(zero_step(c, &one_set, &result));
        cr_assert_eq(result.version, 8u);
        cr_assert_eq(zero_version(c), 8u);
        cr_assert_eq(zero_loss_scale(c), 1024.0);
        cr_assert_eq(result.grad_norm, 0.5);
        cr_assert_eq(zero_release(c, FAKE_FP32, NULL), ZERO_ENOTHELD);
        OK(zero_grad(c, FAKE_FP32, &grad));
        OK(zero_push(c, FAKE_FP32, NULL, true, NULL));
        OK(zero_fetch(c, FAKE_FP32, NULL, &view));
        end(c);
}

static void step_and_push_other(struct fake *d)
{
        fake_begin(d);
        fake_expect(d, ZERO__REQUEST__BODY_STEP);
        fake_stepped(d, d->request->seq, ZERO_OK, 8, 21);
        fake_ok(d, fake_expect(d, ZERO__REQUEST__BODY_PUSH)->seq);
        fake_expect_end(d);
}

Test(step, a_step_takes_unpushed_memory_back)
{
        struct zero_client *c = begin(step_and_push_other, 1);
        void *grad;

        OK(zero_grad(c, FAKE_FP32, &grad));
        OK(zero_step(c, &one_set, NULL));
        cr_assert_eq(zero_push(c, FAKE_FP32, NULL, true, NULL), ZERO_EORDER);
        OK(zero_grad(c, FAKE_BF16, &grad));
        OK(zero_push(c, FAKE_BF16, NULL, true, NULL));
        end(c);
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
        struct zero_client *c = begin(late_rank, 1);

        cr_assert_eq(zero_step(c, &one_set, NULL), ZERO_EDEADLINE);
        cr_assert(strstr(zero_error(c), "rank 1 on b"));
        cr_assert_eq(zero_version(c), 7u);
        OK(zero_step(c, &one_set, NULL));
        end(c);
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
        struct zero_client *c = begin(abort_step, 1);
        const void *view;
        void *grad;

        OK(zero_fetch(c, FAKE_FP32, NULL, &view));
        OK(zero_grad(c, FAKE_FP32, &grad));
        OK(zero_push(c, FAKE_FP32, NULL, true, NULL));
        cr_assert_eq(zero_step(c, &one_set, NULL), ZERO_EABORTED);
        cr_assert_eq(zero_version(c), 7u);
        cr_assert_eq(zero_release(c, FAKE_FP32, NULL), ZERO_ENOTHELD);
        OK(zero_grad(c, FAKE_FP32, &grad));
        OK(zero_push(c, FAKE_FP32, NULL, true, NULL));
        end(c);
}

static void abort_pushes(struct fake *d)
{
        uint64_t a, b;

        fake_begin(d);
        a = fake_expect(d, ZERO__REQUEST__BODY_PUSH)->seq;
        b = fake_expect(d, ZERO__REQUEST__BODY_PUSH)->seq;
        fake_expect(d, ZERO__REQUEST__BODY_FETCH);
        fake_stepped(d, a, ZERO_EABORTED, 7, 21);
        fake_stepped(d, b, ZERO_EABORTED, 7, 21);
        fake_stepped(d, d->request->seq, ZERO_EABORTED, 7, 21);
        fake_expect(d, ZERO__REQUEST__BODY_FETCH);
        fake_fetched(d, d->request->seq, false, 0);
        fake_expect(d, ZERO__REQUEST__BODY_PUSH);
        MUST(d->request->push->attempt == 21);
        fake_ok(d, d->request->seq);
        fake_expect_end(d);
}

Test(step, an_abort_is_told_once_however_many_replies_bring_it)
{
        struct zero_client *c = begin(abort_pushes, 2);
        const void *view;
        void *grad;

        OK(zero_grad(c, FAKE_FP32, &grad));
        OK(zero_push(c, FAKE_FP32, NULL, true, NULL));
        OK(zero_grad(c, FAKE_BF16, &grad));
        OK(zero_push(c, FAKE_BF16, NULL, true, NULL));
        cr_assert_eq(zero_fetch(c, FAKE_FP32, NULL, &view), ZERO_EABORTED);
        OK(zero_fetch(c, FAKE_FP32, NULL, &view));
        OK(zero_grad(c, FAKE_FP32, &grad));
        OK(zero_push(c, FAKE_FP32, NULL, true, NULL));
        end(c);
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
        struct zero_client *c = begin(abort_before_push, 2);
        const void *view;
        char *json;
        void *grad;

        OK(zero_grad(c, FAKE_BF16, &grad));
        OK(zero_grad(c, FAKE_FP32, &grad));
        OK(zero_push(c, FAKE_FP32, NULL, true, NULL));
        OK(zero_fetch(c, FAKE_FP32, NULL, &view));
        OK(zero_query(c, "status", NULL, &json)); /* its answer comes after the abort */
        free(json);
        cr_assert_eq(zero_push(c, FAKE_BF16, NULL, true, NULL), ZERO_EABORTED);
        end(c);
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
        struct zero_client *c = begin(norm_then_step, 1);
        double norm = 0;
        bool finite = false;

        OK(zero_norm(c, &norm, &finite));
        cr_assert_eq(norm, 2.5);
        cr_assert(finite);
        end(c);
}

Test(step, hyperparameter_sets_are_checked_here)
{
        struct zero_client *c = begin(only_begin, 1);
        struct zero_step step = { .n_sets = ZERO_SET_MAX + 1, .sets = &adamw };

        cr_assert_eq(zero_step(c, NULL, NULL), ZERO_EINVAL);
        cr_assert_eq(zero_step(c, &step, NULL), ZERO_EINVAL);
        step = (struct zero_step){ .n_sets = 1 };
        cr_assert_eq(zero_step(c, &step, NULL), ZERO_EINVAL);
        end(c);
}
