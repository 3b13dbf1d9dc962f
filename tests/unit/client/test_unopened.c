/*
 * Events that the daemon cannot open: messages name no event, and the client sends each when the
 * work before it is done, or not at all.
 */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <time.h>

#include "fake.h"
#include "cuda/zero_cuda.h"

enum { DELAY_MS = 40, BRIEF_MS = 500, LONG_MS = 10000 };

static const struct zero_set adamw = { .adamw = { 1e-3, 0.9, 0.999, 1e-8, 0.01 } };
static struct fake f;
static struct zero_sync now; /* the default stream */

#define OK(call) cr_assert_eq(call, ZERO_OK, "%s", zero_error(c))

static void set_up(void)
{
        setenv("ZEROD_CUDA_PLUGIN", FAKE_GPU, 1);
        setenv("FAKE_GPU_DELAY_MS", "0",
               1); /* a new variable moves environ under threads that read it */
}

TestSuite(unopened, .init = set_up);

static void delay(const char *ms)
{
        setenv("FAKE_GPU_DELAY_MS", ms, 1);
}

static const struct zero_cuda_plugin *plugin(void)
{
        void *library = dlopen(FAKE_GPU, RTLD_NOW);
        zero_cuda_plugin_fn *table = (zero_cuda_plugin_fn *)dlsym(library, ZERO_CUDA_PLUGIN_SYMBOL);

        return table();
}

static void begin(struct fake *d)
{
        d->job.no_events = true;
        fake_begin(d);
}

static void show(struct fake *d)
{
        fake_expect(d, ZERO__REQUEST__BODY_FETCH);
        fake_fetched(d, d->request->seq, false, 0);
}

/* ---- waiting ----------------------------------------------------------------------- */

/* Ends the work of the n-th message's event, which this test can open. */
static void is_done(void *const events[static ZERO_GPU_EVENTS], int n, uint32_t named)
{
        MUST(named == 0);
        MUST(plugin()->event_done(events[n]) == 1);
}

static void see_nothing_under_way(struct fake *d)
{
        void *events[ZERO_GPU_EVENTS];

        begin(d);
        for (int i = 0; i < ZERO_GPU_EVENTS; i++)
                MUST(plugin()->event_open(d->request->attach->events[i].data, &events[i]) == 0);
        show(d);
        fake_expect(d, ZERO__REQUEST__BODY_RELEASE);
        is_done(events, 0, d->request->release->event);
        fake_ok(d, d->request->seq);
        fake_expect(d, ZERO__REQUEST__BODY_PUSH);
        is_done(events, 1, d->request->push->event);
        fake_ok(d, d->request->seq);
        fake_expect(d, ZERO__REQUEST__BODY_STEP);
        is_done(events, 2, d->request->step->event);
        fake_stepped(d, d->request->seq, ZERO_OK, 8, 21);
        fake_expect_end(d);
        for (int i = 0; i < ZERO_GPU_EVENTS; i++)
                plugin()->event_free(events[i]);
}

static int64_t now_ms(void)
{
        struct timespec t;

        clock_gettime(CLOCK_MONOTONIC, &t);
        return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

Test(unopened, release_push_and_step_are_sent_when_their_work_is_done)
{
        struct zero_step_options step = { .sets = &adamw, .n_sets = 1, .sync = &now };
        struct zero_client *c = fake_open_gpu(&f, see_nothing_under_way, LONG_MS);
        int64_t since = now_ms();
        const void *view;
        void *grad;

        delay("40");
        OK(zero_fetch(c, FAKE_FP32, &view));
        OK(zero_release(c, FAKE_FP32, &now));
        OK(zero_grad(c, FAKE_FP32, &grad));
        OK(zero_push(c, FAKE_FP32, NULL, true, &now));
        OK(zero_step(c, &step, NULL));
        cr_assert_geq(now_ms() - since, 3 * DELAY_MS - 3);
        fake_close(&f, c);
}

static void fetch_and_release(struct fake *d)
{
        begin(d);
        show(d);
        MUST(fake_expect(d, ZERO__REQUEST__BODY_RELEASE)->release->event == 0);
        fake_ok(d, d->request->seq);
        fake_expect_end(d);
}

Test(unopened, what_is_behind_no_work_does_not_wait)
{
        struct zero_client *c = fake_open_gpu(&f, fetch_and_release, LONG_MS);
        const void *view;

        delay("3600000");
        OK(zero_fetch(c, FAKE_FP32, &view));
        OK(zero_fetch(c, FAKE_FP32, &view));
        OK(zero_release(c, FAKE_FP32, &now)); /* not the last one */
        OK(zero_release(c, FAKE_FP32, NULL));
        fake_close(&f, c);
}

/* ---- work that does not end -------------------------------------------------------- */

static void one_of_each(struct fake *d)
{
        begin(d);
        show(d);
        fake_expect(d, ZERO__REQUEST__BODY_RELEASE);
        fake_ok(d, d->request->seq);
        fake_expect(d, ZERO__REQUEST__BODY_PUSH);
        fake_ok(d, d->request->seq);
        fake_expect(d, ZERO__REQUEST__BODY_STEP);
        fake_stepped(d, d->request->seq, ZERO_OK, 8, 21);
        fake_expect_end(d);
}

static void says(struct zero_client *c, int status, int expected, const char *words)
{
        cr_assert_eq(status, expected, "%d: %s", status, zero_error(c));
        cr_assert(strstr(zero_error(c), words), "%s", zero_error(c));
}

/* Nothing was sent, and the client can make the same call again. */
Test(unopened, a_deadline_names_the_work_and_leaves_all_as_it_was)
{
        struct zero_step_options step = { .sets = &adamw, .n_sets = 1, .sync = &now };
        struct zero_client *c = fake_open_gpu(&f, one_of_each, BRIEF_MS);
        const void *view;
        void *grad;

        OK(zero_fetch(c, FAKE_FP32, &view));
        OK(zero_grad(c, FAKE_FP32, &grad));
        delay("3600000");
        says(c, zero_release(c, FAKE_FP32, &now), ZERO_EDEADLINE,
             "the GPU work behind the release of group 'h.0'");
        says(c, zero_push(c, FAKE_FP32, NULL, true, &now), ZERO_EDEADLINE,
             "the GPU work behind the push of group 'h.0'");
        delay("0");
        OK(zero_release(c, FAKE_FP32, &now));
        OK(zero_push(c, FAKE_FP32, NULL, true, &now));
        delay("3600000");
        says(c, zero_step(c, &step, NULL), ZERO_EDEADLINE,
             "the GPU work behind the end of the step");
        delay("0");
        OK(zero_step(c, &step, NULL));
        fake_close(&f, c);
}

static void fetch_only(struct fake *d)
{
        begin(d);
        show(d);
        fake_expect_end(d);
}

Test(unopened, a_wait_can_be_interrupted)
{
        struct zero_client *c = fake_open_gpu(&f, fetch_only, LONG_MS);
        const void *view;

        delay("3600000");
        OK(zero_fetch(c, FAKE_FP32, &view));
        zero_interrupt(c);
        says(c, zero_release(c, FAKE_FP32, &now), ZERO_ECLOSED, "interrupted");
        fake_close(&f, c);
}

Test(unopened, a_gpu_that_fails_is_named)
{
        struct zero_client *c = fake_open_gpu(&f, fetch_only, LONG_MS);
        const void *view;
        void *stream;

        OK(zero_fetch(c, FAKE_FP32, &view));
        setenv("FAKE_GPU_FAULT", "1", 1);
        cr_assert_eq(plugin()->use(0), 0);
        cr_assert_eq(plugin()->stream_new(&stream), 0);
        cr_assert_lt(plugin()->stream_wait(stream), 0);
        says(c, zero_release(c, FAKE_FP32, &now), ZERO_EGPU,
             "cuda:0 failed in the work behind the release of group 'h.0'");
        fake_close(&f, c);
}

/* ---- another daemon ---------------------------------------------------------------- */

static void restart_able(struct fake *d)
{
        begin(d);
        show(d);
        d->job.no_events = false;
        d->job.attempt++;
        fake_restart(d);
        show(d);
        MUST(fake_expect(d, ZERO__REQUEST__BODY_RELEASE)->release->event > 0);
        fake_ok(d, d->request->seq);
        fake_expect_end(d);
}

Test(unopened, a_daemon_that_can_open_them_is_told_of_events)
{
        struct zero_client *c = fake_open_gpu(&f, restart_able, LONG_MS);
        const void *view;

        OK(zero_fetch(c, FAKE_FP32, &view));
        cr_assert_eq(zero_fetch(c, FAKE_BF16, &view), ZERO_EABORTED);
        delay("3600000");
        OK(zero_fetch(c, FAKE_FP32, &view));
        OK(zero_release(c, FAKE_FP32, &now));
        fake_close(&f, c);
}
