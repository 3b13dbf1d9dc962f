#include "tests/conformance/bulk/pair.h"

#include <criterion/criterion.h>
#include <signal.h>

enum { DEADLINE_MS = 20000 };

const struct bulk_path_ops *const path = &BULK_PATH;
struct pair pair;

static void on_broken(void *arg, const char *why)
{
        cr_assert(why && *why);
        cr_assert_eq(pair.inside, 0, "no callback inside a call");
        pair.broken[*(int *)arg]++;
}

void on_done(void *arg, int status)
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

void loop_open(void)
{
        signal(SIGPIPE, SIG_IGN); /* as the daemon does */
        uv_loop_init(&pair.loop);
        uv_timer_init(&pair.loop, &pair.deadline);
        uv_timer_start(&pair.deadline, on_deadline, DEADLINE_MS, 0);
}

void adopt(int side)
{
        pair.peer[side]->broken = on_broken;
        pair.peer[side]->broken_arg = &side_number[side];
}

void pair_open_tokens(uint64_t a, uint64_t b)
{
        loop_open();
        path->pair(&pair.loop, (uint64_t[]){ a, b }, &pair.path, pair.peer);
        adopt(0);
        adopt(1);
}

void pair_open(void)
{
        pair_open_tokens(0x1234567890abcdef, 0x1234567890abcdef);
}

void close_side(int side)
{
        pair.inside++;
        pair.peer[side]->ops->close(pair.peer[side], on_closed, &side_number[side]);
        pair.inside--;
        pair.peer[side] = NULL;
}

void run_until(const int *counter, int value)
{
        while (*counter < value)
                uv_run(&pair.loop, UV_RUN_ONCE);
}

void settle(void)
{
        for (int i = 0; i < 100; i++)
                uv_run(&pair.loop, UV_RUN_NOWAIT);
}

void pair_close(void)
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

int send_from(int side, uint64_t transfer, const void *p, size_t n, struct outcome *outcome)
{
        int r;

        pair.inside++;
        r = pair.peer[side]->ops->send(pair.peer[side], transfer, p, n, on_done, outcome);
        pair.inside--;
        return r;
}

int expect_at(int side, uint64_t transfer, void *p, size_t n, struct outcome *outcome)
{
        int r;

        pair.inside++;
        r = pair.peer[side]->ops->expect(pair.peer[side], transfer, p, n, on_done, outcome);
        pair.inside--;
        return r;
}

void forget_at(int side, uint64_t transfer)
{
        pair.inside++;
        pair.peer[side]->ops->forget(pair.peer[side], transfer);
        pair.inside--;
}
