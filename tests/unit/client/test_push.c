/* Gradients: slots, micro-batches, presence, and pushes that are refused later. */
#include <criterion/criterion.h>

#include "fake.h"

static struct fake f;

#define OK(call) cr_assert_eq(call, ZERO_OK, "%s", zero_error(c))

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

Test(push, micro_batches_are_counted_and_end_with_the_last)
{
        struct zero_client *c = fake_open(&f, take_pushes, 1);
        void *grad;

        for (int i = 0; i < 3; i++) {
                OK(zero_grad(c, FAKE_FP32, &grad));
                *(uint8_t *)grad = (uint8_t)(100 + i);
                OK(zero_push(c, FAKE_FP32, NULL, i == 2, NULL));
        }
        cr_assert_eq(zero_grad(c, FAKE_FP32, &grad), ZERO_EORDER);
        cr_assert_eq(zero_push(c, FAKE_FP32, NULL, true, NULL), ZERO_EORDER);
        fake_close(&f, c);
}

Test(push, same_memory_until_the_push)
{
        struct zero_client *c = fake_open(&f, fake_only_begin, 2);
        void *a = NULL, *b = NULL, *other = NULL;

        OK(zero_grad(c, FAKE_FP32, &a));
        OK(zero_grad(c, FAKE_BF16, &other));
        OK(zero_grad(c, FAKE_FP32, &b));
        cr_assert_eq(a, b);
        cr_assert_neq(a, other);
        fake_close(&f, c);
}

Test(push, push_without_memory_is_refused)
{
        struct zero_client *c = fake_open(&f, fake_only_begin, 1);

        cr_assert_eq(zero_push(c, FAKE_FP32, NULL, true, NULL), ZERO_EORDER);
        fake_close(&f, c);
}

Test(push, only_trainable_groups_of_this_rank_are_pushed)
{
        struct zero_client *c = fake_open(&f, fake_only_begin, ZERO_ALL);
        void *grad;

        cr_assert_eq(zero_grad(c, FAKE_FROZEN, &grad), ZERO_EINVAL);
        cr_assert_eq(zero_grad(c, FAKE_OTHERS, &grad), ZERO_ERANK);
        fake_close(&f, c);
}

Test(push, all_slots_kept_by_the_caller_is_an_error_at_once)
{
        struct zero_client *c = fake_open(&f, fake_only_begin, 1);
        void *grad;

        OK(zero_grad(c, FAKE_FP32, &grad));
        cr_assert_eq(zero_grad(c, FAKE_BF16, &grad), ZERO_EORDER);
        cr_assert(strstr(zero_error(c), "push_groups"), "%s", zero_error(c));
        fake_close(&f, c);
}

/* Answers a push only after the next request, which proves that the client did not wait for the
 * answer. */
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

Test(push, grad_waits_for_a_slot_and_push_does_not)
{
        struct zero_client *c = fake_open(&f, answer_push_late, 1);
        void *grad;

        OK(zero_grad(c, FAKE_FP32, &grad));
        OK(zero_push(c, FAKE_FP32, NULL, true, NULL));
        OK(zero_prefetch(c, FAKE_FP32));
        OK(zero_grad(c, FAKE_BF16, &grad));
        OK(zero_push(c, FAKE_BF16, NULL, true, NULL));
        fake_close(&f, c);
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

Test(push, whole_window_has_one_slot_a_group)
{
        struct zero_client *c = fake_open(&f, whole_window, ZERO_ALL);
        void *a = NULL, *b = NULL;

        OK(zero_grad(c, FAKE_FP32, &a));
        OK(zero_push(c, FAKE_FP32, NULL, false, NULL));
        OK(zero_grad(c, FAKE_BF16, &b));
        OK(zero_push(c, FAKE_BF16, NULL, true, NULL));
        OK(zero_grad(c, FAKE_FP32, &b)); /* waits for its own slot */
        cr_assert_eq(a, b);
        OK(zero_push(c, FAKE_FP32, NULL, true, NULL));
        fake_close(&f, c);
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

Test(push, presence_is_sent_without_frozen_tensors)
{
        struct zero_client *c = fake_open(&f, check_present, 1);
        const uint8_t both[] = { 200, 1 };
        void *grad;

        OK(zero_grad(c, FAKE_BF16, &grad));
        OK(zero_push(c, FAKE_BF16, both, false, NULL));
        OK(zero_grad(c, FAKE_BF16, &grad));
        OK(zero_push(c, FAKE_BF16, NULL, true, NULL));
        fake_close(&f, c);
}

static void take_empty(struct fake *d)
{
        fake_begin(d);
        MUST(fake_expect(d, ZERO__REQUEST__BODY_PUSH)->push->empty);
        MUST(!d->request->push->last && d->request->push->micro_batch == 0);
        MUST(fake_expect(d, ZERO__REQUEST__BODY_PUSH)->push->empty);
        MUST(d->request->push->last && d->request->push->micro_batch == 1);
        MUST(!fake_expect(d, ZERO__REQUEST__BODY_PUSH)->push->empty);
        MUST(d->request->push->group == FAKE_FP32);
        for (uint64_t seq = d->request->seq - 2; seq <= d->request->seq; seq++)
                fake_ok(d, seq);
        fake_expect_end(d);
}

Test(push, a_push_without_data_needs_no_slot)
{
        struct zero_client *c = fake_open(&f, take_empty, 1);
        const uint8_t frozen_only[] = { 0, 1 };
        const uint8_t some[] = { 1, 1 };
        void *grad;

        cr_assert_eq(zero_push(c, FAKE_BF16, some, false, NULL), ZERO_EORDER);
        OK(zero_push(c, FAKE_BF16, frozen_only, false, NULL));
        OK(zero_grad(c, FAKE_BF16, &grad));
        OK(zero_push(c, FAKE_BF16, frozen_only, true, NULL));
        OK(zero_grad(c, FAKE_FP32, &grad)); /* the only slot, though nothing was acknowledged */
        OK(zero_push(c, FAKE_FP32, NULL, true, NULL));
        fake_close(&f, c);
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

Test(push, refused_push_is_told_once_by_a_later_call)
{
        struct zero_client *c = fake_open(&f, refuse_push, 1);
        const void *view;
        void *grad;

        OK(zero_grad(c, FAKE_FP32, &grad));
        OK(zero_push(c, FAKE_FP32, NULL, true, NULL));
        OK(zero_fetch(c, FAKE_FP32, &view)); /* brings the refusal in */
        cr_assert_eq(zero_fetch(c, FAKE_BF16, &view), ZERO_EQUOTA);
        cr_assert_str_eq(zero_error(c), "too much");
        OK(zero_fetch(c, FAKE_BF16, &view));
        fake_close(&f, c);
}

static void keep_push(struct fake *d)
{
        fake_begin(d);
        fake_expect(d, ZERO__REQUEST__BODY_PUSH);
        fake_expect_end(d);
}

Test(push, waiting_for_a_slot_ends_at_the_deadline)
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
        fake_close(&f, c);
}

static void stop_with_pushes(struct fake *d)
{
        fake_begin(d);
        fake_expect(d, ZERO__REQUEST__BODY_PUSH);
        fake_refuse(d, 0, ZERO_EPERM, "not you");
        fake_hang_up(d);
}

Test(push, gradient_memory_outlives_the_connection)
{
        struct zero_client *c = fake_open(&f, stop_with_pushes, 1);
        void *grad, *none;

        OK(zero_grad(c, FAKE_FP32, &grad));
        OK(zero_push(c, FAKE_FP32, NULL, true, NULL));
        cr_assert_eq(zero_grad(c, FAKE_BF16, &none), ZERO_ECLOSED);
        memset(grad, 1, 3000 * sizeof(float));
        cr_assert_eq(zero_push(c, FAKE_FP32, NULL, true, NULL), ZERO_ECLOSED);
        fake_close(&f, c);
}
