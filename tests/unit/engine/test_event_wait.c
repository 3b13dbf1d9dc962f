/* Waiting for the GPU work of trainers: who is called back, when, and who is not. */
#include <criterion/criterion.h>
#include <errno.h>
#include <poll.h>
#include <string.h>

#include "daemon/step/rank/event_wait.h"
#include "tests/unit/device/gpu_fixture.h"

enum { N = 4, LONG_MS = 600000 };

static uv_loop_t loop;
static struct event_waits *waits;
static const struct zero_gpu_client *trainer;
static struct place_events *events;
static void *event[N];
static struct fault fault;
static bool closed;

/* The results of the callbacks. */
static uint32_t n_told;
static int told[2 * EVENT_WAITS_MAX];
static bool inside_call;

static void begin(void)
{
        uint8_t handles[N][ZERO_GPU_HANDLE];

        gpu_fixture_open();
        trainer = gpu_fixture_trainer();
        uv_loop_init(&loop);
        cr_assert_eq(event_waits_new(&loop, &waits), 0);
        for (int i = 0; i < N; i++)
                cr_assert_eq(trainer->event_new(0, handles[i], &event[i]), 0);
        cr_assert_eq(place_events_open(gpu_place(0), (const uint8_t(*)[ZERO_GPU_HANDLE])handles, N,
                                       &events, &fault),
                     0);
}

static void on_closed(void *arg)
{
        closed = true;
}

static void end(void)
{
        event_waits_close(waits, on_closed, NULL);
        cr_assert_not(closed);
        uv_run(&loop, UV_RUN_DEFAULT);
        cr_assert(closed);
        cr_assert_eq(uv_loop_close(&loop), 0);
        for (int i = 0; i < N; i++)
                trainer->event_free(event[i]);
        gpus_close();
}

TestSuite(event_wait, .init = begin, .fini = end);

static void record(uint32_t index, const char *delay_ms)
{
        setenv("FAKE_GPU_DELAY_MS", delay_ms, 1);
        cr_assert_eq(trainer->event_record(event[index], NULL), 0);
}

static void on_done(void *arg, int status)
{
        cr_assert_not(inside_call);
        told[n_told++] = status;
        if (arg)
                *(bool *)arg = true;
}

static int wait_for(uint32_t index, uint64_t ms, bool *flag)
{
        int r;

        inside_call = true;
        uv_update_time(&loop);
        r = event_wait(waits, events, index, uv_now(&loop) + ms, on_done, flag, &fault);
        inside_call = false;
        return r;
}

static void run_until(const uint32_t n)
{
        while (n_told < n)
                uv_run(&loop, UV_RUN_ONCE);
}

Test(event_wait, tells_when_the_work_is_done)
{
        bool slow = false, quick = false;

        record(0, "200");
        record(1, "0");
        cr_assert_eq(wait_for(0, LONG_MS, &slow), 0);
        cr_assert_eq(wait_for(1, LONG_MS, &quick), 0);
        run_until(1);
        cr_assert(quick && !slow);
        run_until(2);
        cr_assert(slow && told[0] == 0 && told[1] == 0);
        event_waits_drop(waits, events);
}

Test(event_wait, may_be_for_the_same_event_again)
{
        for (uint32_t i = 1; i <= 20; i++) {
                record(0, i % 2 ? "0" : "3");
                cr_assert_eq(wait_for(0, LONG_MS, NULL), 0);
                cr_assert_eq(wait_for(0, LONG_MS, NULL), 0);
                run_until(2 * i);
        }
        event_waits_drop(waits, events);
}

Test(event_wait, ends_at_its_deadline)
{
        record(0, "3600000");
        cr_assert_eq(wait_for(0, 20, NULL), 0);
        run_until(1);
        cr_assert_eq(told[0], -ETIMEDOUT);
        event_waits_drop(waits, events);
}

Test(event_wait, is_refused_for_an_event_that_is_not_there)
{
        cr_assert_eq(wait_for(N, LONG_MS, NULL), ZERO_EINVAL);
        event_waits_drop(waits, events);
}

Test(event_wait, of_one_rank_are_bounded)
{
        record(0, "3600000");
        for (uint32_t i = 0; i < EVENT_WAITS_MAX; i++)
                cr_assert_eq(wait_for(0, LONG_MS, NULL), 0);
        cr_assert_eq(wait_for(0, LONG_MS, NULL), ZERO_EBUSY);
        event_waits_drop(waits, events);
}

static void drop_all(void *arg, int status)
{
        on_done(arg, status);
        event_waits_drop(waits, events);
}

/* The callback ends its session. */
Test(event_wait, may_be_dropped_by_who_is_told)
{
        record(0, "0");
        record(1, "3600000");
        cr_assert_eq(wait_for(1, LONG_MS, NULL), 0);
        cr_assert_eq(event_wait(waits, events, 0, uv_now(&loop) + LONG_MS, drop_all, NULL, &fault),
                     0);
        run_until(1);
        for (int i = 0; i < 5; i++)
                uv_run(&loop, UV_RUN_NOWAIT);
        cr_assert_eq(n_told, 1);
}

static void close_all(void *arg, int status)
{
        drop_all(arg, status);
        event_waits_close(waits, on_closed, NULL);
}

/* The callback ends the last session and closes everything. */
Test(event_wait_end, may_be_closed_by_who_is_told, .init = begin)
{
        record(0, "0");
        cr_assert_eq(event_wait(waits, events, 0, uv_now(&loop) + LONG_MS, close_all, NULL, &fault),
                     0);
        uv_run(&loop, UV_RUN_DEFAULT);
        cr_assert(closed && n_told == 1);
        cr_assert_eq(uv_loop_close(&loop), 0);
}

Test(event_wait_end, tells_nobody_once_its_events_are_dropped, .init = begin)
{
        record(0, "0");
        record(1, "3600000");
        cr_assert_eq(wait_for(0, LONG_MS, NULL), 0);
        cr_assert_eq(wait_for(1, LONG_MS, NULL), 0);
        event_waits_drop(waits, events);
        event_waits_drop(waits, NULL);
        end();
        cr_assert_eq(n_told, 0);
}

/* The work was done before, but the loop has not come to it. */
Test(event_wait_end, tells_nobody_what_was_done_before_the_drop, .init = begin)
{
        struct pollfd seen = { .events = POLLIN };

        uv_run(&loop, UV_RUN_NOWAIT); /* from now on the descriptor tells */
        seen.fd = uv_backend_fd(&loop);
        cr_assert_eq(poll(&seen, 1, 0), 0);
        record(0, "0");
        cr_assert_eq(wait_for(0, LONG_MS, NULL), 0);
        cr_assert_eq(poll(&seen, 1, LONG_MS), 1);
        event_waits_drop(waits, events);
        end();
        cr_assert_eq(n_told, 0);
}

static void wait_again(void *arg, int status)
{
        on_done(NULL, status);
        if (n_told < 10)
                cr_assert_eq(event_wait(waits, events, 0, uv_now(&loop) + LONG_MS, wait_again, NULL,
                                        &fault),
                             0);
}

Test(event_wait, may_be_renewed_by_who_is_told)
{
        record(0, "0");
        cr_assert_eq(
                event_wait(waits, events, 0, uv_now(&loop) + LONG_MS, wait_again, NULL, &fault), 0);
        run_until(10);
        event_waits_drop(waits, events);
}
