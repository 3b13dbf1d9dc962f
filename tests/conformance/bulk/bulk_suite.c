/*
 * What every implementation of bulk.h must do; built once for each path.
 *
 * Two sides live in one loop.  Every test ends at zero: each op has ended exactly once,
 * both peers are gone, and the loop closes clean.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/conformance/bulk/pair.h"

static void fill(uint8_t *p, size_t n, uint64_t seed)
{
        for (size_t i = 0; i < n; i++) {
                seed = seed * 6364136223846793005u + 1442695040888963407u;
                p[i] = (uint8_t)(seed >> 56);
        }
}

static uint8_t *filled(size_t n, uint64_t seed)
{
        uint8_t *p = malloc(n + 1);

        cr_assert(p);
        fill(p, n, seed);
        return p;
}

/* One payload each way, byte for byte, nothing written behind its end. */
static void one_of_size(size_t n)
{
        uint8_t *out = filled(n, n + 1), *in = malloc(n + 1);

        pair_open();
        for (int from = 0; from < 2; from++) {
                memset(in, 0x55, n + 1);
                cr_assert_eq(expect_at(!from, 7, in, n, &pair.land[from]), 0);
                cr_assert_eq(send_from(from, 7, out, n, &pair.send[from]), 0);
                run_until(&pair.ended, 2 * (from + 1));
                cr_assert_eq(pair.land[from].ended, 1);
                cr_assert_eq(pair.land[from].status, 0);
                cr_assert_eq(pair.send[from].status, 0);
                cr_assert_eq(memcmp(in, out, n), 0, "%zu bytes differ", n);
                cr_assert_eq(in[n], 0x55);
                cr_assert_eq(pair.peer[from]->sent_bytes, n);
                cr_assert_eq(pair.peer[!from]->received_bytes, n);
        }
        pair_close();
        free(out);
        free(in);
}

#define SIZE_TEST(name, n)      \
        Test(bulk, size_##name) \
        {                       \
                one_of_size(n); \
        }
SIZE_TEST(zero, 0)
SIZE_TEST(one, 1)
SIZE_TEST(eight, 8)
SIZE_TEST(below_a_page, 4095)
SIZE_TEST(eager_and_more, 9000)
SIZE_TEST(behind_the_stage, 16384 + 48)
SIZE_TEST(64_KiB, 65536)
SIZE_TEST(1_MiB, 1 << 20)
SIZE_TEST(64_MiB, 64 << 20)

/* Sizes around every threshold, both ways at once, in an order unlike that of the expecting. */
Test(bulk, many_in_flight_in_any_order)
{
        enum { N = 400 };
        static const size_t sizes[] = { 0, 1, 100, 4096, 8208, 8209, 16383, 16384, 100000, 300001 };
        uint8_t *in[2][N], *out[2][N];

        pair_open();
        for (int i = 0; i < N; i++) {
                size_t n = sizes[i % 10];
                for (int from = 0; from < 2; from++) {
                        out[from][i] = filled(n, (uint64_t)i * 2 + (uint64_t)from);
                        in[from][i] = calloc(1, n + 1);
                        cr_assert_eq(expect_at(!from, (uint64_t)i << 40 | (uint64_t)i, in[from][i],
                                               n, &pair.land[from * N + i]),
                                     0);
                }
        }
        for (int k = 0; k < N; k++) {
                int i = (k * 149 + 77) % N; /* a permutation */
                for (int from = 0; from < 2; from++)
                        cr_assert_eq(send_from(from, (uint64_t)i << 40 | (uint64_t)i, out[from][i],
                                               sizes[i % 10], &pair.send[from * N + i]),
                                     0);
                if (k % 7 == 0)
                        uv_run(&pair.loop, UV_RUN_NOWAIT);
        }
        run_until(&pair.ended, 4 * N);
        for (int i = 0; i < 2 * N; i++) {
                cr_assert_eq(pair.land[i].ended, 1);
                cr_assert_eq(pair.land[i].status, 0);
                cr_assert_eq(pair.send[i].status, 0);
                cr_assert_eq(memcmp(in[i / N][i % N], out[i / N][i % N], sizes[i % N % 10]), 0,
                             "payload %d differs", i);
        }
        pair_close();
        for (int i = 0; i < 2 * N; i++) {
                free(in[i / N][i % N]);
                free(out[i / N][i % N]);
        }
}

Test(bulk, a_number_in_use_is_refused_and_free_again_behind_its_payload)
{
        uint8_t a[64], b[64], out[64];

        pair_open();
        fill(out, sizeof out, 3);
        cr_assert_eq(expect_at(1, 9, a, sizeof a, &pair.land[0]), 0);
        cr_assert_eq(expect_at(1, 9, b, sizeof b, &pair.land[1]), -EEXIST);
        cr_assert_eq(send_from(0, 9, out, sizeof out, &pair.send[0]), 0);
        run_until(&pair.ended, 2);
        cr_assert_eq(expect_at(1, 9, b, sizeof b, &pair.land[1]), 0);
        cr_assert_eq(send_from(0, 9, out, sizeof out, &pair.send[1]), 0);
        run_until(&pair.ended, 4);
        cr_assert_eq(memcmp(a, out, sizeof a), 0);
        cr_assert_eq(memcmp(b, out, sizeof b), 0);
        pair_close();
}

/* A rule is broken by side 0; side 1 is told once, and what it waits for ends as cancelled. */
static void breaks(uint64_t transfer, size_t n)
{
        uint8_t *out = filled(n, 1), in[100];

        memset(in, 0x55, sizeof in);
        cr_assert_eq(expect_at(1, 5, in, sizeof in, &pair.land[0]), 0);
        cr_assert_eq(send_from(0, transfer, out, n, &pair.send[0]), 0);
        run_until(&pair.broken[1], 1);
        cr_assert_eq(pair.land[0].ended, 0);
        cr_assert_eq(expect_at(1, 6, in, 1, &pair.land[1]), -ENOTCONN);
        close_side(1);
        run_until(&pair.closed[1], 1);
        cr_assert_eq(pair.land[0].ended, 1);
        cr_assert_eq(pair.land[0].status, -ECANCELED);
        for (size_t i = 0; i < sizeof in; i++)
                cr_assert_eq(in[i], 0x55, "nothing was written");
        pair_close();
        cr_assert_eq(pair.broken[1], 1);
        cr_assert_eq(pair.send[0].ended, 1);
        free(out);
}

Test(bulk, a_payload_nobody_expects_breaks)
{
        pair_open();
        breaks(6, 100);
}

Test(bulk, a_large_payload_nobody_expects_breaks)
{
        pair_open();
        breaks(6, 1 << 20);
}

Test(bulk, a_shorter_payload_breaks)
{
        pair_open();
        breaks(5, 99);
}

Test(bulk, a_longer_payload_breaks)
{
        pair_open();
        breaks(5, 101);
}

Test(bulk, a_much_longer_payload_breaks)
{
        pair_open();
        breaks(5, 4 << 20);
}

Test(bulk, another_token_breaks)
{
        if (!path->remote)
                cr_skip_test("both ends have the one token");
        pair_open_tokens(77, 78);
        breaks(5, 100);
}

Test(bulk, a_payload_sent_twice_breaks)
{
        uint8_t out[8] = { 1 }, in[8];

        pair_open();
        cr_assert_eq(expect_at(1, 5, in, sizeof in, &pair.land[0]), 0);
        cr_assert_eq(send_from(0, 5, out, sizeof out, &pair.send[0]), 0);
        cr_assert_eq(send_from(0, 5, out, sizeof out, &pair.send[1]), 0);
        run_until(&pair.broken[1], 1);
        cr_assert_eq(pair.land[0].status, 0);
        pair_close();
        cr_assert_eq(pair.land[0].ended, 1);
}

Test(bulk, forgotten_ends_as_cancelled_once)
{
        uint8_t in[8];

        pair_open();
        cr_assert_eq(expect_at(1, 5, in, sizeof in, &pair.land[0]), 0);
        forget_at(1, 5);
        forget_at(1, 5);
        forget_at(1, 6);
        run_until(&pair.ended, 1);
        settle();
        cr_assert_eq(pair.land[0].ended, 1);
        cr_assert_eq(pair.land[0].status, -ECANCELED);
        cr_assert_eq(pair.broken[1], 0);
        pair_close();
}

/* The owner had already sent when its receiver gave up. */
static void forgotten_on_its_way(size_t n, int turns)
{
        uint8_t *out = filled(n, 1), *in = malloc(n), tail_out[16] = "tail", tail_in[16] = "";

        pair_open();
        cr_assert_eq(expect_at(1, 5, in, n, &pair.land[0]), 0);
        cr_assert_eq(expect_at(1, 6, tail_in, sizeof tail_in, &pair.land[1]), 0);
        cr_assert_eq(send_from(0, 5, out, n, &pair.send[0]), 0);
        cr_assert_eq(send_from(0, 6, tail_out, sizeof tail_out, &pair.send[1]), 0);
        for (int i = 0; i < turns; i++)
                uv_run(&pair.loop, UV_RUN_NOWAIT);
        forget_at(1, 5);
        run_until(&pair.land[0].ended, 1);
        memset(in, 0x55, n);
        run_until(&pair.ended, 4);
        if (pair.land[0].status == -ECANCELED) {
                for (size_t i = 0; i < n; i++)
                        cr_assert_eq(in[i], 0x55, "written behind its end, byte %zu", i);
        }
        cr_assert_eq(memcmp(tail_in, tail_out, sizeof tail_in), 0);
        cr_assert_eq(pair.broken[1], 0);
        pair_close();
        cr_assert_eq(pair.land[0].ended, 1);
        free(in);
        free(out);
}

Test(bulk, forgotten_before_it_lands_is_dropped)
{
        forgotten_on_its_way(8 << 20, 0);
}

Test(bulk, forgotten_small_before_it_lands_is_dropped)
{
        forgotten_on_its_way(10, 0);
}

Test(bulk, forgotten_while_it_lands_is_dropped)
{
        forgotten_on_its_way(64 << 20, 3);
}

Test(bulk, close_ends_what_was_sent_in_the_same_moment)
{
        enum { N = 40 };
        uint8_t *out = filled(64, 3);

        pair_open();
        for (int i = 0; i < N; i++)
                cr_assert_eq(send_from(0, (uint64_t)i, out, 64, &pair.send[i]), 0);
        close_side(0);
        run_until(&pair.closed[0], 1);
        for (int i = 0; i < N; i++) {
                cr_assert_eq(pair.send[i].ended, 1);
                cr_assert(pair.send[i].status == -ECANCELED || pair.send[i].status == 0);
        }
        pair_close();
        free(out);
}

static bool memory_ended;

static void *some_malloc(size_t n)
{
        return memory_ended ? NULL : malloc(n);
}

static void *some_calloc(size_t n, size_t size)
{
        return memory_ended ? NULL : calloc(n, size);
}

static void *some_realloc(void *p, size_t n)
{
        return memory_ended ? NULL : realloc(p, n);
}

/* A path that cannot send for lack of memory says so, once for each payload. */
Test(bulk, sends_end_when_the_loop_has_no_memory)
{
        enum { N = 40 };
        uint8_t *out = filled(64, 4), in[N][64];
        int failed = 0;

        cr_assert_eq(uv_replace_allocator(some_malloc, some_realloc, some_calloc, free), 0);
        pair_open();
        for (int i = 0; i < N; i++) {
                cr_assert_eq(expect_at(1, (uint64_t)i, in[i], 64, &pair.land[i]), 0);
                cr_assert_eq(send_from(0, (uint64_t)i, out, 64, &pair.send[i]), 0);
        }
        memory_ended = true;
        for (int i = 0; i < N; i++) {
                run_until(&pair.send[i].ended, 1);
                cr_assert(pair.send[i].status == 0 || pair.send[i].status == -EIO);
                failed += pair.send[i].status != 0;
        }
        memory_ended = false;
        settle();
        cr_assert_eq(pair.broken[0], failed > 0);
        pair_close();
        for (int i = 0; i < N; i++) {
                cr_assert_eq(pair.send[i].ended, 1);
                cr_assert_eq(pair.land[i].ended, 1);
        }
        free(out);
}

Test(bulk, close_cancels_everything_that_is_pending)
{
        enum { N = 50 };
        const size_t n = 1 << 20;
        uint8_t *out = filled(n, 2), *in = malloc(n * N);

        pair_open();
        for (int i = 0; i < N; i++) {
                cr_assert_eq(expect_at(0, 100u + (unsigned)i, in, 64, &pair.land[i]), 0);
                cr_assert_eq(expect_at(1, (uint64_t)i, in + n * (unsigned)i, n, &pair.land[N + i]),
                             0);
                cr_assert_eq(send_from(0, (uint64_t)i, out, n, &pair.send[i]), 0);
        }
        if (path->remote)
                uv_run(&pair.loop, UV_RUN_NOWAIT);
        close_side(0);
        run_until(&pair.closed[0], 1);
        for (int i = 0; i < N; i++) {
                cr_assert_eq(pair.land[i].ended, 1);
                cr_assert_eq(pair.land[i].status, -ECANCELED);
                cr_assert_eq(pair.send[i].ended, 1);
                cr_assert(pair.send[i].status == -ECANCELED || pair.send[i].status == 0);
        }
        cr_assert_eq(pair.send[N - 1].status, -ECANCELED);
        close_side(1);
        run_until(&pair.closed[1], 1);
        for (int i = N; i < 2 * N; i++) {
                cr_assert_eq(pair.land[i].ended, 1);
                cr_assert(pair.land[i].status == -ECANCELED || pair.land[i].status == 0 ||
                          pair.land[i].status == -EIO);
        }
        pair_close();
        free(in);
        free(out);
}

/* ---- announced payloads ---- */

enum { ANNOUNCED_BYTES_MAX = 300000 };

static void pair_open_announcing(void)
{
        pair_open();
        if (pair.peer[0]->announces)
                return;
        pair_close();
        cr_skip_test("this path announces nothing");
}

/* Its bytes stay where they are until they are expected, whatever their number. */
static void announced_of_size(size_t n)
{
        uint8_t *out = filled(n, n + 1), *in = calloc(1, n + 1);

        pair_open_announcing();
        cr_assert_eq(send_from(0, BULK_ANNOUNCED | 3, out, n, &pair.send[0]), 0);
        settle();
        cr_assert_eq(pair.send[0].ended, 0);
        fill(out, n, n + 2);
        cr_assert_eq(expect_at(1, BULK_ANNOUNCED | 3, in, n, &pair.land[0]), 0);
        run_until(&pair.ended, 2);
        cr_assert_eq(pair.land[0].status, 0);
        cr_assert_eq(pair.send[0].status, 0);
        cr_assert_eq(memcmp(in, out, n), 0, "%zu bytes differ", n);
        cr_assert_eq(in[n], 0);
        cr_assert_eq(pair.peer[0]->sent_bytes, n);
        cr_assert_eq(pair.peer[1]->received_bytes, n);
        pair_close();
        free(in);
        free(out);
}

Test(bulk, a_small_payload_is_announced_before_it_is_expected)
{
        announced_of_size(1);
}

Test(bulk, a_payload_is_announced_before_it_is_expected)
{
        announced_of_size(ANNOUNCED_BYTES_MAX);
}

Test(bulk, a_payload_is_expected_before_it_is_announced)
{
        static uint8_t in[5000], out[5000];

        pair_open_announcing();
        fill(out, sizeof out, 1);
        cr_assert_eq(expect_at(1, BULK_ANNOUNCED, in, sizeof in, &pair.land[0]), 0);
        settle();
        cr_assert_eq(send_from(0, BULK_ANNOUNCED, out, sizeof out, &pair.send[0]), 0);
        run_until(&pair.ended, 2);
        cr_assert_eq(memcmp(in, out, sizeof in), 0);
        pair_close();
}

/* The sender has its memory back, whether the number or the payload comes first. */
static void announced_and_forgotten(bool comes_first)
{
        static uint8_t out[50000], tail_in[4], tail_out[4] = "abc";

        pair_open_announcing();
        if (!comes_first)
                forget_at(1, BULK_ANNOUNCED | 9);
        cr_assert_eq(send_from(0, BULK_ANNOUNCED | 9, out, sizeof out, &pair.send[0]), 0);
        if (comes_first) {
                settle();
                forget_at(1, BULK_ANNOUNCED | 9);
        }
        run_until(&pair.ended, 1);
        cr_assert_eq(pair.send[0].status, 0);
        cr_assert_eq(expect_at(1, 5, tail_in, sizeof tail_in, &pair.land[0]), 0);
        cr_assert_eq(send_from(0, 5, tail_out, sizeof tail_out, &pair.send[1]), 0);
        run_until(&pair.ended, 3);
        cr_assert_eq(memcmp(tail_in, tail_out, sizeof tail_in), 0);
        cr_assert_eq(pair.broken[1], 0);
        pair_close();
}

Test(bulk, an_announced_payload_that_nobody_wants_is_dropped)
{
        announced_and_forgotten(true);
}

Test(bulk, a_payload_that_nobody_wants_is_dropped_when_it_is_announced)
{
        announced_and_forgotten(false);
}

Test(bulk, an_announced_payload_of_another_length_breaks)
{
        uint8_t out[100] = { 0 }, in[100];

        pair_open_announcing();
        cr_assert_eq(send_from(0, BULK_ANNOUNCED, out, sizeof out, &pair.send[0]), 0);
        settle();
        cr_assert_eq(expect_at(1, BULK_ANNOUNCED, in, sizeof in - 1, &pair.land[0]), 0);
        run_until(&pair.broken[1], 1);
        pair_close();
        cr_assert_eq(pair.land[0].status, -ECANCELED);
        cr_assert_eq(pair.send[0].ended, 1);
}

Test(bulk, a_payload_announced_twice_breaks)
{
        uint8_t out[8] = { 0 };

        pair_open_announcing();
        for (int i = 0; i < 2; i++)
                cr_assert_eq(send_from(0, BULK_ANNOUNCED, out, sizeof out, &pair.send[i]), 0);
        run_until(&pair.broken[1], 1);
        pair_close();
        for (int i = 0; i < 2; i++)
                cr_assert_eq(pair.send[i].ended, 1);
}

Test(bulk, too_many_announced_payloads_break)
{
        uint8_t out[8] = { 0 };

        pair_open_announcing();
        for (unsigned i = 0; i < BULK_ANNOUNCED_MAX; i++)
                cr_assert_eq(send_from(0, BULK_ANNOUNCED | i, out, sizeof out, &pair.send[i]), 0);
        settle();
        cr_assert_eq(pair.broken[1], 0);
        cr_assert_eq(send_from(0, BULK_ANNOUNCED | BULK_ANNOUNCED_MAX, out, sizeof out,
                               &pair.send[BULK_ANNOUNCED_MAX]),
                     0);
        run_until(&pair.broken[1], 1);
        pair_close();
        for (unsigned i = 0; i <= BULK_ANNOUNCED_MAX; i++)
                cr_assert_eq(pair.send[i].ended, 1);
}

/* ---- an idle path ---- */

static int turns;

static void on_turn(uv_prepare_t *prepare)
{
        turns++;
}

static void on_rested(uv_timer_t *timer)
{
        *(int *)timer->data = 1;
}

/* Nothing to do is no work: the loop turns only for its timer. */
Test(bulk, an_idle_path_lets_the_loop_sleep)
{
        static uint8_t out[300000], in[300000];
        uv_prepare_t prepare;
        uv_timer_t timer;
        int rested = 0;

        pair_open();
        cr_assert_eq(expect_at(1, 1, in, sizeof in, &pair.land[0]), 0);
        cr_assert_eq(expect_at(1, 2, in, sizeof in, &pair.land[1]), 0);
        cr_assert_eq(send_from(0, 1, out, sizeof out, &pair.send[0]), 0);
        run_until(&pair.ended, 2);
        settle();
        uv_prepare_init(&pair.loop, &prepare);
        uv_prepare_start(&prepare, on_turn);
        uv_timer_init(&pair.loop, &timer);
        timer.data = &rested;
        uv_timer_start(&timer, on_rested, 100, 0);
        run_until(&rested, 1);
        cr_assert_lt(turns, 20);
        uv_close((uv_handle_t *)&prepare, NULL);
        uv_close((uv_handle_t *)&timer, NULL);
        pair_close();
}

/* ---- an owner that acts inside its callbacks ---- */

static void close_in_done(void *arg, int status)
{
        on_done(arg, status);
        for (int i = 0; i < 2; i++) {
                if (pair.peer[i])
                        close_side(i);
        }
}

Test(bulk, a_peer_may_be_closed_from_done)
{
        static uint8_t out[100000], in[100000];
        struct bulk_peer *to;

        pair_open();
        to = pair.peer[1];
        cr_assert_eq(to->ops->expect(to, 1, in, sizeof in, close_in_done, &pair.land[0]), 0);
        cr_assert_eq(expect_at(1, 2, in, sizeof in, &pair.land[1]), 0);
        cr_assert_eq(send_from(0, 1, out, sizeof out, &pair.send[0]), 0);
        run_until(&pair.closed[0], 1);
        run_until(&pair.closed[1], 1);
        pair_close();
        cr_assert_eq(pair.land[0].ended, 1);
        cr_assert_eq(pair.land[1].ended, 1);
        cr_assert_eq(pair.land[1].status, -ECANCELED);
        cr_assert_eq(pair.send[0].ended, 1);
}
