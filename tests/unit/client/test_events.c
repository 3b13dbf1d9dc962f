/*
 * Events: how the client tells the daemon of work in progress on a GPU, and what happens to events
 * and to windows on the GPU when the daemon dies.
 */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <stdio.h>

#include "fake.h"
#include "cuda/zero_cuda.h"

static const struct zero_set adamw = { .adamw = { 1e-3, 0.9, 0.999, 1e-8, 0.01 } };
static struct fake f;
static struct zero_sync now; /* the default stream */

#define OK(call) cr_assert_eq(call, ZERO_OK, "%s", zero_error(c))

enum { BYTES = 3000 * 4 }; /* of FAKE_FP32 */

static void set_up(void)
{
        setenv("ZEROD_CUDA_PLUGIN", FAKE_GPU, 1);
}

TestSuite(events, .init = set_up);

static struct zero_client *open_gpu(void (*script)(struct fake *d))
{
        return fake_open_gpu(&f, script, 5000);
}

static void show(struct fake *d, uint8_t value)
{
        fake_expect(d, ZERO__REQUEST__BODY_FETCH);
        memset(d->gather, value, BYTES);
        fake_fetched(d, d->request->seq, false, 0);
}

static const struct zero_cuda_plugin *plugin(void)
{
        void *library = dlopen(FAKE_GPU, RTLD_NOW);
        zero_cuda_plugin_fn *table = (zero_cuda_plugin_fn *)dlsym(library, ZERO_CUDA_PLUGIN_SYMBOL);

        return table();
}

/* The daemon opens the events that came with the attach. */
static void open_events(struct fake *d, void *events[static ZERO_GPU_EVENTS])
{
        for (int i = 0; i < ZERO_GPU_EVENTS; i++)
                MUST(plugin()->event_open(d->request->attach->events[i].data, &events[i]) == 0);
}

static void close_events(void *events[static ZERO_GPU_EVENTS])
{
        for (int i = 0; i < ZERO_GPU_EVENTS; i++)
                plugin()->event_free(events[i]);
}

/* Checks that the message names an event whose work is not done. */
static void under_way(void *const events[static ZERO_GPU_EVENTS], uint32_t event)
{
        MUST(event >= 1 && event <= ZERO_GPU_EVENTS);
        MUST(plugin()->event_done(events[event - 1]) == 0);
}

static void watch_events(struct fake *d)
{
        void *events[ZERO_GPU_EVENTS];

        fake_begin(d);
        open_events(d, events);
        show(d, 1);
        fake_expect(d, ZERO__REQUEST__BODY_RELEASE);
        under_way(events, d->request->release->event);
        fake_ok(d, d->request->seq);
        fake_expect(d, ZERO__REQUEST__BODY_PUSH);
        under_way(events, d->request->push->event);
        fake_ok(d, d->request->seq);
        MUST(fake_expect(d, ZERO__REQUEST__BODY_PUSH)->push->event == 0);
        fake_ok(d, d->request->seq);
        fake_expect(d, ZERO__REQUEST__BODY_STEP);
        under_way(events, d->request->step->event);
        fake_stepped(d, d->request->seq, ZERO_OK, 8, 21);
        fake_expect_end(d);
        close_events(events);
}

Test(events, release_push_and_step_name_an_event_of_their_own)
{
        struct zero_step_options step = { .sets = &adamw, .n_sets = 1, .sync = &now };
        const uint8_t none[] = { 0, 0 };
        struct zero_client *c;
        const void *view;
        void *grad;

        setenv("FAKE_GPU_DELAY_MS", "3600000", 1);
        c = open_gpu(watch_events);
        OK(zero_fetch(c, FAKE_FP32, &view));
        OK(zero_release(c, FAKE_FP32, &now));
        OK(zero_grad(c, FAKE_FP32, &grad));
        OK(zero_push(c, FAKE_FP32, NULL, true, &now));
        OK(zero_push(c, FAKE_BF16, none, true, &now)); /* nothing was written */
        OK(zero_step(c, &step, NULL));
        fake_close(&f, c);
}

static void see_no_events(struct fake *d)
{
        fake_begin(d);
        show(d, 1);
        MUST(fake_expect(d, ZERO__REQUEST__BODY_RELEASE)->release->event == 0);
        fake_ok(d, d->request->seq);
        MUST(fake_expect(d, ZERO__REQUEST__BODY_STEP)->step->event == 0);
        fake_stepped(d, d->request->seq, ZERO_OK, 8, 21);
        fake_expect_end(d);
}

Test(events, without_a_stream_no_event_is_named)
{
        struct zero_step_options step = { .sets = &adamw, .n_sets = 1 };
        struct zero_client *c = open_gpu(see_no_events);
        const void *view;

        OK(zero_fetch(c, FAKE_FP32, &view));
        OK(zero_release(c, FAKE_FP32, NULL));
        OK(zero_step(c, &step, NULL));
        fake_close(&f, c);
}

Test(events, in_host_memory_a_stream_means_nothing)
{
        struct zero_step_options step = { .sets = &adamw, .n_sets = 1, .sync = &now };
        struct zero_client *c = fake_open(&f, see_no_events, 1);
        const void *view;

        OK(zero_fetch(c, FAKE_FP32, &view));
        OK(zero_release(c, FAKE_FP32, &now));
        OK(zero_step(c, &step, NULL));
        fake_close(&f, c);
}

static void see_one_release(struct fake *d)
{
        fake_begin(d);
        show(d, 1);
        MUST(fake_expect(d, ZERO__REQUEST__BODY_RELEASE)->release->event == 1);
        fake_ok(d, d->request->seq);
        fake_expect_end(d);
}

Test(events, the_last_release_of_a_group_names_its_event)
{
        struct zero_client *c = open_gpu(see_one_release);
        const void *view;

        OK(zero_fetch(c, FAKE_FP32, &view));
        OK(zero_fetch(c, FAKE_FP32, &view));
        OK(zero_release(c, FAKE_FP32, &now));
        OK(zero_release(c, FAKE_FP32, &now));
        cr_assert_eq(zero_release(c, FAKE_FP32, &now), ZERO_ENOTHELD);
        fake_close(&f, c);
}

/* Fetches and releases until every event is named, without an answer to any; notes which release
 * named which event. */
static void take_all(struct fake *d, uint64_t seqs[static ZERO_GPU_EVENTS + 1])
{
        for (int i = 0; i < ZERO_GPU_EVENTS; i++) {
                uint32_t event;

                show(d, 1);
                event = fake_expect(d, ZERO__REQUEST__BODY_RELEASE)->release->event;
                MUST(event >= 1 && event <= ZERO_GPU_EVENTS && seqs[event] == 0);
                seqs[event] = d->request->seq;
        }
}

static void hold_all(struct zero_client *c)
{
        const void *view;

        for (int i = 0; i < ZERO_GPU_EVENTS; i++) {
                OK(zero_fetch(c, FAKE_FP32, &view));
                OK(zero_release(c, FAKE_FP32, &now));
        }
        OK(zero_fetch(c, FAKE_FP32, &view));
}

static void answer_one(struct fake *d)
{
        uint64_t seqs[ZERO_GPU_EVENTS + 1] = { 0 };

        fake_begin(d);
        take_all(d, seqs);
        show(d, 1);
        fake_ok(d, seqs[17]);
        MUST(fake_expect(d, ZERO__REQUEST__BODY_RELEASE)->release->event == 17);
        fake_expect_end(d);
}

Test(events, an_event_is_used_again_when_its_message_was_answered)
{
        struct zero_client *c = open_gpu(answer_one);

        hold_all(c);
        OK(zero_release(c, FAKE_FP32, &now));
        fake_close(&f, c);
}

static void answer_nothing(struct fake *d)
{
        uint64_t seqs[ZERO_GPU_EVENTS + 1] = { 0 };

        fake_begin(d);
        take_all(d, seqs);
        show(d, 1);
        fake_expect_end(d);
}

Test(events, events_that_are_never_answered_end_at_the_deadline)
{
        struct zero_client *c = fake_open_gpu(&f, answer_nothing, 100);

        hold_all(c);
        cr_assert_eq(zero_release(c, FAKE_FP32, &now), ZERO_EDEADLINE);
        cr_assert(strstr(zero_error(c), "64 events"), "%s", zero_error(c));
        fake_close(&f, c);
}

static void abort_meanwhile(struct fake *d)
{
        uint64_t seqs[ZERO_GPU_EVENTS + 1] = { 0 };

        fake_begin(d);
        take_all(d, seqs);
        show(d, 1);
        fake_stepped(d, seqs[5], ZERO_EABORTED, 7, 21);
        show(d, 2);
        fake_expect_end(d);
}

Test(events, an_abort_that_comes_while_an_event_is_waited_for_is_told)
{
        struct zero_client *c = open_gpu(abort_meanwhile);
        const void *view;

        hold_all(c);
        cr_assert_eq(zero_release(c, FAKE_FP32, &now), ZERO_EABORTED);
        OK(zero_fetch(c, FAKE_FP32, &view));
        fake_close(&f, c);
}

/* ---- a daemon that dies ------------------------------------------------------------ */

static void die_with_all(struct fake *d)
{
        uint64_t seqs[ZERO_GPU_EVENTS + 1] = { 0 };

        fake_begin(d);
        take_all(d, seqs);
        show(d, 1);
        d->job.attempt++;
        fake_restart(d);
        MUST(d->request->attach->n_events == ZERO_GPU_EVENTS);
        memset(seqs, 0, sizeof(seqs));
        take_all(d, seqs);
        show(d, 2);
        fake_expect_end(d);
}

Test(events, a_new_daemon_is_told_of_the_same_events_and_all_are_free)
{
        struct zero_client *c = open_gpu(die_with_all);

        hold_all(c);
        OK(zero_release(c, FAKE_FP32,
                        &now)); /* finds the daemon gone; the client holds nothing now */
        hold_all(c);
        fake_close(&f, c);
}

static unsigned memory_files(void)
{
        FILE *maps = fopen("/proc/self/maps", "r");
        char line[512];
        unsigned n = 0;

        while (fgets(line, sizeof(line), maps))
                n += strstr(line, "memfd:fake") != NULL;
        fclose(maps);
        return n;
}

enum { MANY = 100, WARM = 5 };

static void restart_often(struct fake *d)
{
        fake_begin(d);
        for (int i = 0; i < MANY; i++) {
                show(d, (uint8_t)i);
                fake_expect(d, ZERO__REQUEST__BODY_STEP);
                d->job.attempt++;
                fake_restart(d);
        }
        fake_expect_end(d);
}

Test(events, the_last_window_stays_mapped_and_older_ones_do_not)
{
        struct zero_step_options step = { .sets = &adamw, .n_sets = 1 };
        struct zero_client *c = open_gpu(restart_often);
        const uint8_t *last = NULL;
        const void *view;
        unsigned files = 0;

        for (int i = 0; i < MANY; i++) {
                OK(zero_fetch(c, FAKE_FP32, &view));
                cr_assert_eq(*(const uint8_t *)view, i);
                cr_assert(!last || *last == i - 1);
                last = view;
                cr_assert_eq(zero_step(c, &step, NULL), ZERO_EABORTED);
                if (i == WARM)
                        files = memory_files();
        }
        cr_assert_leq(memory_files(), files + 4); /* the daemon's thread may be at work */
        fake_close(&f, c);
}
