/* Signals as events of the loop. */
#include <criterion/criterion.h>

#include "daemon/floor/loop/signals.h"

#include <signal.h>
#include <unistd.h>

static uv_loop_t loop;
static struct signals *watch;
static int stops, reloads;

static void on_stop(void *arg)
{
        stops++;
        uv_stop(&loop);
}

static void on_reload(void *arg)
{
        cr_assert_eq(arg, &loop);
        reloads++;
        uv_stop(&loop);
}

static void setup(void)
{
        struct signals_events events = { on_stop, on_reload, &loop };

        uv_loop_init(&loop);
        cr_assert_eq(signals_new(&loop, &events, &watch), 0);
}

static void teardown(void)
{
        signals_close(watch);
        uv_run(&loop, UV_RUN_DEFAULT);
        cr_assert_eq(uv_loop_close(&loop), 0);
}

/* A timer only keeps the loop alive, and ends the test if nothing comes. */
static void on_deadline(uv_timer_t *timer)
{
        cr_assert(false, "no event came");
}

static void raise_and_run(int number)
{
        uv_timer_t deadline;

        uv_timer_init(&loop, &deadline);
        uv_timer_start(&deadline, on_deadline, 10000, 0);
        kill(getpid(), number);
        uv_run(&loop, UV_RUN_DEFAULT);
        uv_close((uv_handle_t *)&deadline, NULL);
        uv_run(&loop, UV_RUN_DEFAULT);
}

TestSuite(signals, .init = setup, .fini = teardown);

Test(signals, term_and_int_stop_each_time)
{
        raise_and_run(SIGTERM);
        raise_and_run(SIGINT);
        raise_and_run(SIGTERM);
        cr_assert_eq(stops, 3);
        cr_assert_eq(reloads, 0);
}

Test(signals, hup_reloads)
{
        raise_and_run(SIGHUP);
        cr_assert_eq(reloads, 1);
        cr_assert_eq(stops, 0);
}

Test(signals, do_not_keep_the_loop_alive)
{
        cr_assert_eq(uv_run(&loop, UV_RUN_DEFAULT), 0);
}

static void handler(int number)
{
}

Test(signals, broken_processes_die_and_pipes_do_not_kill)
{
        static const int broken[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL };
        struct signals_events events = { on_stop, on_reload, &loop };
        struct signals *again;
        struct sigaction now;

        for (int i = 0; i < 4; i++)
                signal(broken[i], handler);
        cr_assert_eq(signals_new(&loop, &events, &again), 0);
        for (int i = 0; i < 4; i++) {
                sigaction(broken[i], NULL, &now);
                cr_assert_eq(now.sa_handler, SIG_DFL);
        }
        sigaction(SIGPIPE, NULL, &now);
        cr_assert_eq(now.sa_handler, SIG_IGN);
        signals_close(again);
}

Test(signals, closing_nothing_is_harmless)
{
        signals_close(NULL);
}

Test(signals, a_process_on_its_way_out_is_not_killed)
{
        signals_close(watch);
        watch = NULL;
        uv_run(&loop, UV_RUN_DEFAULT);
        kill(getpid(), SIGTERM);
        kill(getpid(), SIGINT);
        cr_assert_eq(stops, 0); /* and it is still here */
}
