/*
 * What every implementation of bulk.h must do; built once for each path.
 *
 * Two sides live in one loop.  Every test ends at zero: each op has ended exactly once,
 * both peers are gone, and the loop closes clean.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/conformance/bulk/bulk_path.h"

/* The path under test: BULK_PATH comes from the build. */
static const struct bulk_path_ops *const path = &BULK_PATH;

enum { DEADLINE_MS = 20000, OPS_MAX = 1024 };

/* An op's outcome; ended counts calls of done. */
struct outcome {
        int ended, status;
};

static struct pair {
        uv_loop_t loop;
        uv_timer_t deadline;
        struct bulk_path *path;
        struct bulk_peer *peer[2];
        int broken[2], closed[2];
        struct outcome send[OPS_MAX], land[OPS_MAX];
        int ended;  /* of all ops */
        int inside; /* a call of the path is running */
} pair;

static void on_broken(void *arg, const char *why)
{
        cr_assert(why && *why);
        cr_assert_eq(pair.inside, 0, "no callback inside a call");
        pair.broken[*(int *)arg]++;
}

static void on_done(void *arg, int status)
{
        struct outcome *outcome = arg;

        cr_assert_eq(pair.inside, 0, "no callback inside a call");
        outcome->ended++;
        outcome->status = status;
        pair.ended++;
}

static void on_closed(void *arg)
{
        cr_assert_eq(pair.inside, 0, "no callback inside a call");
        pair.closed[*(int *)arg]++;
}

static void on_deadline(uv_timer_t *timer)
{
        cr_assert_fail("deadline passed");
}

static int side_number[2] = { 0, 1 };

static void loop_open(void)
{
        signal(SIGPIPE, SIG_IGN); /* as the daemon does */
        uv_loop_init(&pair.loop);
        uv_timer_init(&pair.loop, &pair.deadline);
        uv_timer_start(&pair.deadline, on_deadline, DEADLINE_MS, 0);
}

static void adopt(int side)
{
        pair.peer[side]->broken = on_broken;
        pair.peer[side]->broken_arg = &side_number[side];
}

static void pair_open_tokens(uint64_t a, uint64_t b)
{
        loop_open();
        path->pair(&pair.loop, (uint64_t[]){ a, b }, &pair.path, pair.peer);
        adopt(0);
        adopt(1);
}

static void pair_open(void)
{
        pair_open_tokens(0x1234567890abcdef, 0x1234567890abcdef);
}

static void close_side(int side)
{
        pair.inside++;
        pair.peer[side]->ops->close(pair.peer[side], on_closed, &side_number[side]);
        pair.inside--;
        pair.peer[side] = NULL;
}

static void run_until(const int *counter, int value)
{
        while (*counter < value)
                uv_run(&pair.loop, UV_RUN_ONCE);
}

/* Everything that can still happen by itself has happened. */
static void settle(void)
{
        for (int i = 0; i < 100; i++)
                uv_run(&pair.loop, UV_RUN_NOWAIT);
}

static void pair_close(void)
{
        for (int i = 0; i < 2; i++) {
                if (!pair.peer[i])
                        continue;
                close_side(i);
                run_until(&pair.closed[i], 1);
        }
        if (pair.path)
                path->free(pair.path);
        uv_close((uv_handle_t *)&pair.deadline, NULL);
        uv_run(&pair.loop, UV_RUN_DEFAULT);
        cr_assert_eq(uv_loop_close(&pair.loop), 0);
        cr_assert_leq(pair.closed[0], 1);
        cr_assert_leq(pair.closed[1], 1);
}

static int send_from(int side, uint64_t transfer, const void *p, size_t n, struct outcome *outcome)
{
        int r;

        pair.inside++;
        r = pair.peer[side]->ops->send(pair.peer[side], transfer, p, n, on_done, outcome);
        pair.inside--;
        return r;
}

static int expect_at(int side, uint64_t transfer, void *p, size_t n, struct outcome *outcome)
{
        int r;

        pair.inside++;
        r = pair.peer[side]->ops->expect(pair.peer[side], transfer, p, n, on_done, outcome);
        pair.inside--;
        return r;
}

static void forget_at(int side, uint64_t transfer)
{
        pair.inside++;
        pair.peer[side]->ops->forget(pair.peer[side], transfer);
        pair.inside--;
}

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

/* ---- two processes ---- */

static pid_t other_side(const struct bulk_rendezvous *at, void (*act)(void))
{
        pid_t child = fork();

        if (child)
                return child;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        loop_open();
        path->side(&pair.loop, at, 1, 7, &pair.path, &pair.peer[1]);
        act();
        _exit(0);
}

static uint8_t bulk_out[4 << 20], bulk_in[4 << 20];

static void ignore(void *arg, int status)
{
}

/* Sends and expects without end, and never gets to an end. */
static void load_without_end(void)
{
        struct bulk_peer *peer = pair.peer[1];

        for (uint64_t i = 0; i < 40; i++) {
                peer->ops->expect(peer, i, bulk_in, sizeof bulk_in, ignore, NULL);
                peer->ops->send(peer, i, bulk_out, sizeof bulk_out, ignore, NULL);
        }
        uv_run(&pair.loop, UV_RUN_DEFAULT);
}

static void rendezvous(struct bulk_rendezvous *ret)
{
        cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ret->fd), 0);
        memset(ret->key, 3, sizeof ret->key);
}

/* After the signal the peer is closed at once, and every op ends once. */
static void loses_its_peer_to(int signal)
{
        enum { N = 40 };
        struct bulk_rendezvous at;
        uint64_t begun;
        pid_t child;

        if (!path->remote)
                cr_skip_test("both ends are in one process");
        rendezvous(&at);
        child = other_side(&at, load_without_end);
        loop_open();
        path->side(&pair.loop, &at, 0, 7, &pair.path, &pair.peer[0]);
        adopt(0);
        for (uint64_t i = 0; i < N; i++) {
                cr_assert_eq(expect_at(0, i, bulk_in, sizeof bulk_in, &pair.land[i]), 0);
                cr_assert_eq(send_from(0, i, bulk_out, sizeof bulk_out, &pair.send[i]), 0);
        }
        run_until(&pair.ended, 3);
        kill(child, signal);
        if (signal == SIGKILL)
                waitpid(child, NULL, 0);
        for (int i = 0; i < 20; i++)
                uv_run(&pair.loop, UV_RUN_NOWAIT);
        begun = uv_hrtime();
        close_side(0);
        run_until(&pair.closed[0], 1);
        cr_assert_lt(uv_hrtime() - begun, 1000000000u, "closing waited for the other side");
        for (int i = 0; i < N; i++) {
                cr_assert_eq(pair.land[i].ended, 1);
                cr_assert_eq(pair.send[i].ended, 1);
        }
        pair_close();
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
}

Test(bulk, a_killed_peer_is_closed_at_once)
{
        loses_its_peer_to(SIGKILL);
}

Test(bulk, a_stopped_peer_is_closed_at_once)
{
        loses_its_peer_to(SIGSTOP);
}
