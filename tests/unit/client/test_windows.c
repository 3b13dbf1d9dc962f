/*
 * A caller's pointers when the daemon dies: addresses stay valid, the dead daemon's memory is
 * freed, and nothing piles up.
 */
#include <criterion/criterion.h>
#include <dirent.h>
#include <stdio.h>

#include "fake.h"

static const struct zero_set adamw = { .adamw = { 1e-3, 0.9, 0.999, 1e-8, 0.01 } };
static const struct zero_step_options one_set = { .sets = &adamw, .n_sets = 1 };
static struct fake f;

#define OK(call) cr_assert_eq(call, ZERO_OK, "%s", zero_error(c))
#define ABORTED(call) cr_assert_eq(call, ZERO_EABORTED, "%s", zero_error(c))

enum { BYTES = 3000 * 4 }; /* of FAKE_FP32 */

static unsigned open_fds(void)
{
        DIR *d = opendir("/proc/self/fd");
        unsigned n = 0;

        while (readdir(d))
                n++;
        closedir(d);
        return n;
}

/* Mappings of this process; of memory files only, if asked. */
static unsigned mappings(bool files_only)
{
        FILE *maps = fopen("/proc/self/maps", "r");
        char line[512];
        unsigned n = 0;

        while (fgets(line, sizeof(line), maps))
                n += !files_only || strstr(line, "memfd:");
        fclose(maps);
        return n;
}

/* Answers a fetch: the group is at the start of the gather window, which is full of this byte. */
static void show(struct fake *d, uint8_t value)
{
        fake_expect(d, ZERO__REQUEST__BODY_FETCH);
        memset(d->gather, value, BYTES);
        fake_fetched(d, d->request->seq, false, 0);
}

static void restart_in_step(struct fake *d)
{
        fake_expect(d, ZERO__REQUEST__BODY_STEP);
        d->job.attempt++;
        fake_restart(d);
}

static void same_sizes(struct fake *d)
{
        const Zero__Push *p;

        fake_begin(d);
        show(d, 1);
        fake_expect(d, ZERO__REQUEST__BODY_PUSH);
        restart_in_step(d);
        show(d, 2);
        p = fake_expect(d, ZERO__REQUEST__BODY_PUSH)->push;
        MUST(p->slot == 0 && d->session[FAKE_TRANSFER] == 77);
        fake_ok(d, d->request->seq);
        fake_expect_end(d);
}

Test(windows, a_new_daemon_s_windows_take_the_addresses_of_the_old)
{
        struct zero_client *c = fake_open(&f, same_sizes, 1);
        const void *view, *again;
        void *grad, *later;

        OK(zero_fetch(c, FAKE_FP32, &view));
        OK(zero_grad(c, FAKE_FP32, &grad));
        OK(zero_push(c, FAKE_FP32, NULL, true, NULL));
        ABORTED(zero_step(c, &one_set, NULL));
        OK(zero_fetch(c, FAKE_FP32, &again));
        OK(zero_grad(c, FAKE_FP32, &later));
        cr_assert_eq(again, view);
        cr_assert_eq(later, grad);
        cr_assert_eq(*(const uint8_t *)view, 2);
        *(uint8_t *)grad = 77;
        OK(zero_push(c, FAKE_FP32, NULL, true, NULL));
        fake_close(&f, c);
}

static void other_sizes(struct fake *d)
{
        fake_begin(d);
        memset(d->gather, 1, d->gather_bytes);
        show(d, 1);
        d->job.gather_bytes = FAKE_GATHER / 2;
        restart_in_step(d);
        show(d, 2);
        d->job.gather_bytes = 2 * FAKE_GATHER;
        restart_in_step(d);
        show(d, 3);
        d->job.gather_bytes = 0;
        restart_in_step(d);
        d->job.gather_bytes = FAKE_GATHER;
        restart_in_step(d);
        show(d, 4);
        fake_expect_end(d);
}

Test(windows, new_windows_of_other_sizes_leave_the_old_ones_mapped)
{
        struct zero_client *c = fake_open(&f, other_sizes, 1);
        const void *view, *smaller, *larger, *last;
        const uint8_t *end;

        OK(zero_fetch(c, FAKE_FP32, &view));
        end = (const uint8_t *)view + FAKE_GATHER - 1;
        cr_assert_eq(*end, 1);
        ABORTED(zero_step(c, &one_set, NULL));
        OK(zero_fetch(c, FAKE_FP32, &smaller));
        cr_assert_eq(smaller, view);
        cr_assert(*(const uint8_t *)view == 2 && *end == 0);
        ABORTED(zero_step(c, &one_set, NULL));
        OK(zero_fetch(c, FAKE_FP32, &larger));
        cr_assert_neq(larger, view);
        cr_assert(*(const uint8_t *)larger == 3 && *(const uint8_t *)view == 0 && *end == 0);
        ABORTED(zero_step(c, &one_set, NULL));
        cr_assert(*(const uint8_t *)larger == 0 && *end == 0);
        ABORTED(zero_step(c, &one_set, NULL)); /* nothing was held, but a step was asked for */
        OK(zero_fetch(c, FAKE_FP32, &last));
        cr_assert_eq(last, larger);
        cr_assert(*(const uint8_t *)last == 4 && *end == 0);
        fake_close(&f, c);
}

static void take_window_away(struct fake *d)
{
        fake_begin(d);
        show(d, 1);
        d->job.gather_bytes = 0;
        restart_in_step(d);
        fake_expect(d, ZERO__REQUEST__BODY_FETCH);
        fake_fetched(d, d->request->seq, false, 0);
        fake_expect_end(d);
}

Test(windows, a_place_in_a_window_that_is_gone_closes)
{
        struct zero_client *c = fake_open(&f, take_window_away, 1);
        const void *view;

        OK(zero_fetch(c, FAKE_FP32, &view));
        ABORTED(zero_step(c, &one_set, NULL));
        cr_assert_eq(zero_fetch(c, FAKE_FP32, &view), ZERO_ECLOSED);
        fake_close(&f, c);
}

static void private_again(struct fake *d)
{
        fake_begin(d);
        show(d, 1);
        restart_in_step(d);
        show(d, 2);
        fake_expect_end(d);
}

Test(windows, private_views_come_back_at_their_address)
{
        struct zero_client *c = fake_open_private(&f, private_again);
        const void *view, *again;

        OK(zero_fetch(c, FAKE_FP32, &view));
        *(uint8_t *)view = 99;
        ABORTED(zero_step(c, &one_set, NULL));
        OK(zero_fetch(c, FAKE_FP32, &again));
        cr_assert_eq(again, view);
        cr_assert_eq(*(const uint8_t *)view, 2);
        fake_close(&f, c);
}

Test(windows, a_private_view_cannot_be_read_after_a_loss)
{
        struct zero_client *c = fake_open_private(&f, private_again);
        const void *view;

        OK(zero_fetch(c, FAKE_FP32, &view));
        ABORTED(zero_step(c, &one_set, NULL));
        cr_assert_not(fake_readable(view));
        OK(zero_fetch(c, FAKE_FP32, &view));
        cr_assert(fake_readable(view));
        fake_close(&f, c);
}

/* ---- many times ------------------------------------------------------------------ */

enum { MANY = 1000, WARM = 10 };

static void restart_often(struct fake *d)
{
        fake_begin(d);
        for (int i = 0; i < MANY; i++) {
                fake_expect(d, ZERO__REQUEST__BODY_PUSH);
                d->job.gather_bytes = FAKE_GATHER * (size_t)(1 + i % 3);
                d->job.attempt++;
                fake_restart(d);
                show(d, (uint8_t)i);
        }
        fake_expect_end(d);
}

static void lose_often(struct zero_client *c)
{
        unsigned fds = 0, all = 0, files = 0;
        const void *view;
        void *grad;

        for (int i = 0; i < MANY; i++) {
                OK(zero_grad(c, FAKE_FP32, &grad));
                OK(zero_push(c, FAKE_FP32, NULL, true, NULL));
                ABORTED(zero_fetch(c, FAKE_BF16, &view));
                OK(zero_fetch(c, FAKE_FP32, &view));
                cr_assert_eq(*(const uint8_t *)view, (uint8_t)i);
                if (i == WARM)
                        fds = open_fds(), all = mappings(false), files = mappings(true);
        }
        cr_assert_leq(open_fds(), fds + 2); /* the daemon's thread may be at work */
        cr_assert_leq(mappings(false), all + 4);
        cr_assert_leq(mappings(true), files + 2);
}

Test(windows, a_thousand_losses_leave_no_descriptor_and_no_mapping)
{
        struct zero_client *c = fake_open(&f, restart_often, 1);

        lose_often(c);
        fake_close(&f, c);
}

Test(windows, a_thousand_losses_with_private_views_leave_no_descriptor_and_no_mapping)
{
        struct zero_client *c = fake_open_private(&f, restart_often);

        lose_often(c);
        fake_close(&f, c);
}
