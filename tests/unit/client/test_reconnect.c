/*
 * Reconnecting to a daemon that went away: how long the client tries, which refusals it tries
 * again, how the rank names itself, and how a wait ends.
 */
#include <criterion/criterion.h>
#include <sys/mman.h>

#include "fake.h"

static const struct zero_set adamw = { .adamw = { 1e-3, 0.9, 0.999, 1e-8, 0.01 } };
static const struct zero_step_options one_set = { .sets = &adamw, .n_sets = 1 };
static Zero__StepReply result_20;
static struct fake f;

#define OK(call) cr_assert_eq(call, ZERO_OK, "%s", zero_error(c))

static void setup(void)
{
        result_20 = (Zero__StepReply)ZERO__STEP_REPLY__INIT;
        result_20.version = 8;
        result_20.attempt = 21;
}

TestSuite(reconnect, .init = setup);

static void answer_fetch(struct fake *d)
{
        fake_expect(d, ZERO__REQUEST__BODY_FETCH);
        fake_fetched(d, d->request->seq, false, 0);
}

static void stay_away(struct fake *d)
{
        fake_begin(d);
        fake_go_away(d);
        pthread_barrier_wait((pthread_barrier_t *)d->data);
        fake_come_back(d);
        fake_begin(d);
        MUST(d->request->attach->resume);
        answer_fetch(d);
        fake_expect_end(d);
}

static struct zero_client *impatient(uint32_t timeout_ms)
{
        struct zero_needs needs = { 2, 1, ZERO_FP32, ZERO_FP32 };
        struct zero_options options = fake_options(&f);
        struct zero_layout *l = fake_layout();
        struct zero_client *c = NULL;

        options.timeout_ms = timeout_ms;
        cr_assert_eq(zero_connect(&options, &c), ZERO_OK);
        OK(zero_attach(c, l, &needs));
        zero_layout_free(l);
        return c;
}

Test(reconnect, the_deadline_says_what_was_waited_for_and_the_next_call_tries_again)
{
        pthread_barrier_t away;
        struct zero_client *c;
        const void *view;

        pthread_barrier_init(&away, NULL, 2);
        f.data = &away;
        fake_start(&f, stay_away);
        c = impatient(100);
        cr_assert_eq(zero_fetch(c, FAKE_FP32, &view), ZERO_EDEADLINE);
        cr_assert(strstr(zero_error(c), "rank 0 into job 'job' within 100 ms: cannot connect to"),
                  "%s", zero_error(c));
        cr_assert_eq(zero_steps(c), 7u);
        cr_assert_eq(zero_fetch(c, FAKE_FP32, &view), ZERO_EDEADLINE);
        pthread_barrier_wait(&away);
        for (int i = 0, r = ZERO_EDEADLINE; i < 50 && r == ZERO_EDEADLINE; i++)
                r = zero_fetch(c, FAKE_FP32, &view);
        OK(zero_fetch(c, FAKE_FP32, &view));
        fake_close(&f, c);
        pthread_barrier_destroy(&away);
}

static void silent_then_back(struct fake *d)
{
        fake_begin(d);
        fake_expect(d, ZERO__REQUEST__BODY_STEP);
        fake_expect_end(d);
        fake_hang_up(d);
        d->job.last = &result_20;
        d->job.last_attempt = 20;
        d->job.version = 8;
        d->job.attempt = 21;
        fake_begin(d);
        fake_expect_end(d);
}

Test(reconnect, a_silent_daemon_is_given_up_and_asked_anew_by_the_next_call)
{
        struct zero_result result = { 0 };
        struct zero_client *c;

        fake_start(&f, silent_then_back);
        c = impatient(1);
        cr_assert_eq(zero_step(c, &one_set, NULL), ZERO_EDEADLINE);
        cr_assert(strstr(zero_error(c), "did not answer"));
        for (int i = 0, r = ZERO_EDEADLINE; i < 50 && r == ZERO_EDEADLINE; i++)
                r = zero_step(c, &one_set, &result);
        cr_assert_eq(result.version, 8u, "%s", zero_error(c));
        fake_close(&f, c);
}

static void get_late(struct fake *d)
{
        uint8_t *late;

        fake_begin(d);
        fake_expect(d, ZERO__REQUEST__BODY_GET);
        fake_expect_end(d);
        late = mremap(d->session, 0, FAKE_TRANSFER, MREMAP_MAYMOVE); /* another view of it */
        MUST(late != MAP_FAILED);
        fake_hang_up(d);
        fake_begin(d);
        MUST(d->request->attach->resume);
        fake_expect(d, ZERO__REQUEST__BODY_GET);
        memset(d->session, 0x3f, FAKE_TRANSFER);
        memset(late, 0x22, FAKE_TRANSFER);
        fake_ok(d, d->request->seq);
        fake_expect_end(d);
        munmap(late, FAKE_TRANSFER);
}

/* The next get has a window of its own, so a late answer to the first get cannot reach it. */
Test(reconnect, what_comes_for_a_get_behind_its_deadline_is_not_taken_for_another)
{
        const uint8_t none[40] = { 0 };
        uint8_t values[40] = { 0 };
        struct zero_client *c;

        fake_start(&f, get_late);
        c = impatient(1);
        cr_assert_eq(zero_get(c, 2, ZERO_PLANE_MASTER, 0, 10, values), ZERO_EDEADLINE);
        cr_assert_arr_eq(values, none, sizeof(values));
        for (int i = 0, r = ZERO_EDEADLINE; i < 50 && r == ZERO_EDEADLINE; i++)
                r = zero_get(c, 2, ZERO_PLANE_MASTER, 0, 10, values);
        for (size_t i = 0; i < sizeof(values); i++)
                cr_assert_eq(values[i], 0x3f, "byte %zu: %s", i, zero_error(c));
        fake_close(&f, c);
}

static void refuse_once(struct fake *d, int status, const char *text)
{
        fake_hello(d);
        fake_expect(d, ZERO__REQUEST__BODY_ATTACH);
        fake_refuse(d, d->request->seq, status, text);
        fake_expect_end(d);
        fake_hang_up(d);
}

static void busy_daemon(struct fake *d)
{
        fake_begin(d);
        fake_expect(d, ZERO__REQUEST__BODY_FETCH);
        fake_hang_up(d);
        refuse_once(d, ZERO_EBUSY, "job 'job' is being created: try again");
        refuse_once(d, ZERO_EPEER, "node b is not up");
        refuse_once(d, ZERO_ERANK, "rank 0 is taken");
        fake_accept(d);
        fake_hang_up(d);
        fake_hello(d);
        fake_expect(d, ZERO__REQUEST__BODY_ATTACH);
        fake_restart(d);
        answer_fetch(d);
        fake_expect_end(d);
}

Test(reconnect, a_daemon_that_is_not_ready_is_asked_again)
{
        struct zero_client *c = fake_open(&f, busy_daemon, 1);
        const void *view;

        OK(zero_fetch(c, FAKE_FP32, &view));
        fake_close(&f, c);
}

static void others_are_missing(struct fake *d)
{
        fake_begin(d);
        fake_expect(d, ZERO__REQUEST__BODY_FETCH);
        fake_hang_up(d);
        refuse_once(d, ZERO_EDEADLINE, "waiting for rank 1 on b");
        fake_begin(d);
        answer_fetch(d);
        fake_expect_end(d);
}

Test(reconnect, the_daemon_says_whom_it_waits_for)
{
        struct zero_client *c = fake_open(&f, others_are_missing, 1);
        const void *view;

        cr_assert_eq(zero_fetch(c, FAKE_FP32, &view), ZERO_EDEADLINE);
        cr_assert_str_eq(zero_error(c), "waiting for rank 1 on b");
        OK(zero_fetch(c, FAKE_FP32, &view));
        fake_close(&f, c);
}

static void drop_job(struct fake *d)
{
        fake_begin(d);
        fake_expect(d, ZERO__REQUEST__BODY_FETCH);
        fake_hang_up(d);
        refuse_once(d, ZERO_ENOJOB, "job 'job' was dropped");
}

Test(reconnect, a_refusal_that_stays_is_final)
{
        struct zero_client *c = fake_open(&f, drop_job, 1);
        const void *view;

        cr_assert_eq(zero_fetch(c, FAKE_FP32, &view), ZERO_ENOJOB);
        cr_assert_str_eq(zero_error(c), "job 'job' was dropped");
        cr_assert_eq(zero_fetch(c, FAKE_FP32, &view), ZERO_ECLOSED);
        cr_assert(strstr(zero_error(c), "job 'job' was dropped"));
        fake_close(&f, c);
}

static void fence(struct fake *d)
{
        fake_begin(d);
        answer_fetch(d);
        fake_expect(d, ZERO__REQUEST__BODY_STEP);
        fake_refuse(d, 0, ZERO_ERANK, "rank 0 is a newer process's");
        fake_hang_up(d);
}

Test(reconnect, a_fenced_rank_does_not_come_back)
{
        struct zero_client *c = fake_open(&f, fence, 1);
        const void *view;

        OK(zero_fetch(c, FAKE_FP32, &view));
        cr_assert_eq(zero_step(c, &one_set, NULL), ZERO_ERANK);
        cr_assert(strstr(zero_error(c), "a newer process's"));
        cr_assert_eq(zero_fetch(c, FAKE_BF16, &view), ZERO_ECLOSED);
        cr_assert_eq(*(const uint8_t *)view, 0, "still mapped");
        fake_close(&f, c);
}

static void say_rubbish(struct fake *d)
{
        fake_begin(d);
        fake_expect(d, ZERO__REQUEST__BODY_FETCH);
        fake_send(d, "\xff\xff\xff\xff", 4);
        fake_expect_end(d);
}

Test(reconnect, a_daemon_that_breaks_the_protocol_is_not_asked_again)
{
        struct zero_client *c = fake_open(&f, say_rubbish, 1);
        const void *view;

        cr_assert_eq(zero_fetch(c, FAKE_FP32, &view), ZERO_ECLOSED);
        fake_close(&f, c);
}

static void die_in_attach(struct fake *d)
{
        fake_hello(d);
        fake_expect(d, ZERO__REQUEST__BODY_ATTACH);
        fake_hang_up(d);
        fake_accept(d);
        fake_hang_up(d);
        fake_begin(d);
        MUST(!d->request->attach->resume);
        fake_expect_end(d);
}

Test(reconnect, attaching_is_tried_again)
{
        struct zero_client *c = fake_open(&f, die_in_attach, 1);

        cr_assert_eq(zero_steps(c), 7u);
        fake_close(&f, c);
}

static void check_identity(struct fake *d)
{
        const Zero__Attach *a;
        const Zero__Hello *h;

        fake_begin(d);
        fake_expect(d, ZERO__REQUEST__BODY_FETCH);
        fake_hang_up(d);
        fake_accept(d);
        h = fake_expect(d, ZERO__REQUEST__BODY_HELLO)->hello;
        MUST(d->request->seq == 1);
        MUST(h->protocol == ZERO__HELLO__PROTOCOL__VERSION && strcmp(h->job, "job") == 0 &&
             h->rank == 0);
        MUST(h->world_size == 2 && h->local_world_size == 2 && h->timeout_ms == 5000);
        fake_hang_up(d);
        fake_begin(d);
        a = d->request->attach;
        MUST(a->resume && a->hold_groups == 2 && a->push_groups == 1);
        MUST(a->grad_dtype == ZERO_FP32 && a->layout->n_groups == FAKE_GROUPS);
        answer_fetch(d);
        fake_expect_end(d);
}

Test(reconnect, the_rank_comes_as_who_it_was)
{
        struct zero_client *c = fake_open(&f, check_identity, 1);
        const void *view;

        OK(zero_fetch(c, FAKE_FP32, &view));
        fake_close(&f, c);
}

static void never_answer(struct fake *d)
{
        fake_begin(d);
        fake_expect(d, ZERO__REQUEST__BODY_STEP);
        pthread_barrier_wait((pthread_barrier_t *)d->data);
        fake_expect_end(d);
}

static void *interrupter(void *data)
{
        pthread_barrier_wait((pthread_barrier_t *)f.data);
        zero_interrupt(data);
        return NULL;
}

Test(reconnect, an_interrupted_call_ends_for_good)
{
        pthread_barrier_t asked;
        struct zero_client *c;
        pthread_t thread;

        pthread_barrier_init(&asked, NULL, 2);
        f.data = &asked;
        c = fake_open(&f, never_answer, 1);
        cr_assert_eq(pthread_create(&thread, NULL, interrupter, c), 0);
        cr_assert_eq(zero_step(c, &one_set, NULL), ZERO_ECLOSED);
        cr_assert(strstr(zero_error(c), "interrupted"));
        cr_assert_eq(zero_step(c, &one_set, NULL), ZERO_ECLOSED);
        pthread_join(thread, NULL);
        fake_close(&f, c);
        pthread_barrier_destroy(&asked);
}

static void see_no_bye(struct fake *d)
{
        fake_begin(d);
        MUST(fake_drain(d) == 0);
}

Test(reconnect, an_interrupted_client_leaves_without_a_word)
{
        struct zero_client *c = fake_open(&f, see_no_bye, 1);

        zero_interrupt(c);
        fake_close(&f, c);
}

static void be_gone(struct fake *d)
{
        fake_begin(d);
        fake_go_away(d);
}

Test(reconnect, a_wait_for_the_daemon_can_be_interrupted)
{
        struct zero_client *c = fake_open(&f, be_gone, 1);

        zero_interrupt(c);
        cr_assert_eq(zero_step(c, &one_set, NULL), ZERO_ECLOSED);
        fake_close(&f, c);
}
