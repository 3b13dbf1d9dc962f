/* Fetch, prefetch, release: what is sent, what is waited for, what is counted. */
#include <criterion/criterion.h>

#include "fake.h"

static struct fake f;

#define OK(call) cr_assert_eq(call, ZERO_OK, "%s", zero_error(c))

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

Test(fetch, nested_fetches_ask_once_and_release_once)
{
        struct zero_client *c = fake_open(&f, fetch_once, 1);
        const void *a = NULL, *b = NULL;

        OK(zero_fetch(c, FAKE_FP32, &a));
        OK(zero_fetch(c, FAKE_FP32, &b));
        cr_assert_eq(a, b);
        cr_assert_eq(*(const uint8_t *)a, 42);
        OK(zero_release(c, FAKE_FP32, NULL));
        OK(zero_release(c, FAKE_FP32, NULL));
        fake_close(&f, c);
}

static void fetch_served(struct fake *d)
{
        fake_begin(d);
        d->serve[256] = 17;
        fake_expect(d, ZERO__REQUEST__BODY_FETCH);
        fake_fetched(d, d->request->seq, true, 256);
        fake_expect_end(d);
}

Test(fetch, view_may_lie_in_the_serve_segment)
{
        struct zero_client *c = fake_open(&f, fetch_served, 1);
        const void *view = NULL;

        OK(zero_fetch(c, FAKE_BF16, &view));
        cr_assert_eq(*(const uint8_t *)view, 17);
        fake_close(&f, c);
}

static void fetch_outside(struct fake *d)
{
        fake_begin(d);
        fake_expect(d, ZERO__REQUEST__BODY_FETCH);
        fake_fetched(d, d->request->seq, false, FAKE_GATHER - 4);
        fake_expect_end(d);
}

Test(fetch, view_outside_the_window_closes)
{
        struct zero_client *c = fake_open(&f, fetch_outside, 1);
        const void *view = NULL;

        cr_assert_eq(zero_fetch(c, FAKE_FP32, &view), ZERO_ECLOSED);
        cr_assert_null(view);
        fake_close(&f, c);
}

static void fetch_far_outside(struct fake *d)
{
        fake_begin(d);
        fake_expect(d, ZERO__REQUEST__BODY_FETCH);
        fake_fetched(d, d->request->seq, false, UINT64_MAX - 100);
        fake_expect_end(d);
}

Test(fetch, offset_that_overflows_closes)
{
        struct zero_client *c = fake_open(&f, fetch_far_outside, 1);
        const void *view = NULL;

        cr_assert_eq(zero_fetch(c, FAKE_FP32, &view), ZERO_ECLOSED);
        fake_close(&f, c);
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

Test(fetch, refused_fetch_holds_nothing_and_may_be_repeated)
{
        struct zero_client *c = fake_open(&f, refuse_fetch, 1);
        const void *view = NULL;

        cr_assert_eq(zero_fetch(c, FAKE_FP32, &view), ZERO_EDEADLINE);
        cr_assert_str_eq(zero_error(c), "waiting for node b: group 'h.0'");
        cr_assert_eq(zero_release(c, FAKE_FP32, NULL), ZERO_ENOTHELD);
        OK(zero_fetch(c, FAKE_FP32, &view));
        fake_close(&f, c);
}

Test(fetch, release_without_fetch_is_found_here)
{
        struct zero_client *c = fake_open(&f, fake_only_begin, 1);

        cr_assert_eq(zero_release(c, FAKE_FP32, NULL), ZERO_ENOTHELD);
        cr_assert(strstr(zero_error(c), "h.0"));
        fake_close(&f, c);
}

Test(fetch, unknown_group_is_found_here)
{
        struct zero_client *c = fake_open(&f, fake_only_begin, 1);
        const void *view;
        void *grad;

        cr_assert_eq(zero_fetch(c, FAKE_GROUPS, &view), ZERO_ENOGROUP);
        cr_assert_eq(zero_prefetch(c, ZERO_ALL), ZERO_ENOGROUP);
        cr_assert_eq(zero_release(c, FAKE_GROUPS, NULL), ZERO_ENOGROUP);
        cr_assert_eq(zero_grad(c, FAKE_GROUPS, &grad), ZERO_ENOGROUP);
        cr_assert_eq(zero_push(c, FAKE_GROUPS, NULL, true, NULL), ZERO_ENOGROUP);
        fake_close(&f, c);
}

static void never_answer_prefetch(struct fake *d)
{
        fake_begin(d);
        MUST(fake_expect(d, ZERO__REQUEST__BODY_PREFETCH)->prefetch->version == 7);
        fake_expect(d, ZERO__REQUEST__BODY_FETCH);
        fake_fetched(d, d->request->seq, false, 0);
        fake_expect_end(d);
}

Test(fetch, prefetch_does_not_wait)
{
        struct zero_client *c = fake_open(&f, never_answer_prefetch, 1);
        const void *view;

        OK(zero_prefetch(c, FAKE_FP32));
        OK(zero_fetch(c, FAKE_BF16, &view));
        OK(zero_prefetch(c, FAKE_BF16)); /* held: nothing is asked */
        fake_close(&f, c);
}

static void serve_then_gather(struct fake *d)
{
        fake_begin(d);
        for (int served = 1; served >= 0; served--) {
                fake_expect(d, ZERO__REQUEST__BODY_FETCH);
                fake_fetched(d, d->request->seq, served, 0);
                fake_expect(d, ZERO__REQUEST__BODY_RELEASE);
                fake_ok(d, d->request->seq);
        }
        fake_expect(d, ZERO__REQUEST__BODY_PREFETCH);
        fake_expect_end(d);
}

Test(fetch, prefetch_of_what_is_served_here_asks_nothing)
{
        struct zero_client *c = fake_open(&f, serve_then_gather, 1);
        const void *view;

        for (int i = 0; i < 2; i++) {
                OK(zero_fetch(c, FAKE_FP32, &view));
                OK(zero_release(c, FAKE_FP32, NULL));
                OK(zero_prefetch(c, FAKE_FP32));
        }
        fake_close(&f, c);
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

Test(fetch, failed_prefetch_is_no_error)
{
        struct zero_client *c = fake_open(&f, refuse_prefetch, 1);
        const void *view;

        OK(zero_prefetch(c, FAKE_FP32));
        OK(zero_fetch(c, FAKE_BF16, &view));
        OK(zero_fetch(c, FAKE_FP32, &view));
        fake_close(&f, c);
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

Test(fetch, replies_may_come_in_any_order)
{
        struct zero_client *c = fake_open(&f, answer_in_reverse, 1);
        const void *view;

        OK(zero_prefetch(c, FAKE_BF16));
        OK(zero_prefetch(c, FAKE_FP32));
        OK(zero_prefetch(c, FAKE_FROZEN));
        OK(zero_fetch(c, FAKE_FP32, &view));
        OK(zero_fetch(c, FAKE_BF16, &view));
        fake_close(&f, c);
}

static void answer_twice(struct fake *d)
{
        fake_begin(d);
        fake_expect(d, ZERO__REQUEST__BODY_FETCH);
        fake_fetched(d, d->request->seq, false, 0);
        fake_fetched(d, d->request->seq, false, 0);
        fake_drain(d); /* the client may have gone on before it saw the second */
}

Test(fetch, second_answer_to_one_request_closes)
{
        struct zero_client *c = fake_open(&f, answer_twice, 1);
        const void *view;

        OK(zero_fetch(c, FAKE_FP32, &view));
        cr_assert_eq(zero_fetch(c, FAKE_BF16, &view), ZERO_ECLOSED);
        fake_close(&f, c);
}

enum { MANY = 10000, UNDER_WAY = 4096 };

/* Lets as many requests come as can be under way, and answers the oldest last. */
static void answer_many(struct fake *d)
{
        static uint64_t seq[UNDER_WAY];
        int n;

        fake_begin(d);
        for (int left = MANY; left > 0; left -= n) {
                n = left < UNDER_WAY ? left : UNDER_WAY;
                for (int i = 0; i < n; i++)
                        seq[i] = fake_expect(d, ZERO__REQUEST__BODY_PREFETCH)->seq;
                for (int i = n - 1; i >= 0; i--)
                        fake_ok(d, seq[i]);
        }
        fake_fetched(d, fake_expect(d, ZERO__REQUEST__BODY_FETCH)->seq, false, 0);
        fake_expect_end(d);
}

Test(fetch, more_requests_than_can_be_under_way_wait_for_replies)
{
        struct zero_client *c = fake_open(&f, answer_many, 1);
        const void *view;

        for (int i = 0; i < MANY; i++)
                OK(zero_prefetch(c, FAKE_FP32));
        OK(zero_fetch(c, FAKE_FP32, &view));
        fake_close(&f, c);
}
