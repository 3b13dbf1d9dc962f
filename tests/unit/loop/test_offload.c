/* The pool of compute threads. */
#include <criterion/criterion.h>

#include "daemon/loop/offload.h"
#include "tasks.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>

enum { TASKS = 100 };

static struct offload *offload;
static uv_loop_t loop;
static struct offload_task tasks[TASKS];
static uint32_t started[TASKS], n_started, n_done;
static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static bool closed;

static void open_pool(uint32_t workers)
{
        uv_loop_init(&loop);
        cr_assert_eq(offload_new(&loop, workers, &offload), 0);
}

static void mark_closed(void *arg)
{
        closed = true;
}

/* Ends at zero: every handle closed. */
static void close_pool(void)
{
        offload_close(offload, mark_closed, NULL);
        uv_run(&loop, UV_RUN_DEFAULT);
        cr_assert(closed);
        cr_assert_eq(uv_loop_close(&loop), 0);
}

static void note_start(struct offload_task *task, uint32_t worker)
{
        pthread_mutex_lock(&gate);
        started[n_started++] = (uint32_t)(task - tasks);
        pthread_mutex_unlock(&gate);
}

static void note_done(struct offload_task *task)
{
        n_done++;
}

static void submit_all(void)
{
        for (uint32_t i = 0; i < TASKS; i++) {
                tasks[i] = (struct offload_task){ note_start, note_done, NULL };
                offload_submit(offload, &tasks[i]);
        }
}

static uint32_t count_threads(void)
{
        DIR *dir = opendir("/proc/self/task");
        uint32_t n = 0;

        while (readdir(dir))
                n++;
        closedir(dir);
        return n - 2; /* . and .. */
}

Test(offload, no_workers_is_refused)
{
        uv_loop_init(&loop);
        cr_assert_eq(offload_new(&loop, 0, &offload), -EINVAL);
        cr_assert_eq(uv_loop_close(&loop), 0);
}

Test(offload, tasks_start_in_order_of_submission)
{
        open_pool(1);
        submit_all();
        close_pool();
        cr_assert_eq(n_started, TASKS);
        for (uint32_t i = 0; i < TASKS; i++)
                cr_assert_eq(started[i], i);
}

Test(offload, done_is_not_called_before_the_loop_runs)
{
        open_pool(2);
        submit_all();
        cr_assert_eq(n_done, 0);
        cr_assert_eq(offload_pending(offload), TASKS);
        close_pool();
        cr_assert_eq(n_done, TASKS);
}

static void block(struct offload_task *task, uint32_t worker)
{
        pthread_mutex_lock(&gate);
        pthread_mutex_unlock(&gate);
}

static void nothing(struct offload_task *task, uint32_t worker)
{
}

static struct offload_task *order[2];

static void note_order(struct offload_task *task)
{
        order[n_done++] = task;
        if (n_done == 1)
                pthread_mutex_unlock(&gate);
}

/* The first task waits until the second one is through. */
Test(offload, done_comes_in_the_order_of_completion)
{
        struct offload_task first = { block, note_order, NULL };
        struct offload_task second = { nothing, note_order, NULL };

        open_pool(2);
        pthread_mutex_lock(&gate);
        offload_submit(offload, &first);
        offload_submit(offload, &second);
        while (n_done < 2)
                uv_run(&loop, UV_RUN_ONCE);
        cr_assert_eq(order[0], &second);
        cr_assert_eq(order[1], &first);
        close_pool();
}

Test(offload, chains_go_on_while_closing)
{
        tasks_run(3, 10, 20);
}

Test(offload, no_thread_is_left)
{
        uint32_t before = count_threads();

        open_pool(5);
        cr_assert_eq(count_threads(), before + 5);
        close_pool();
        cr_assert_eq(count_threads(), before);
}

static sigset_t mask_of_worker;

static void note_mask(struct offload_task *task, uint32_t worker)
{
        pthread_sigmask(SIG_SETMASK, NULL, &mask_of_worker);
}

Test(offload, workers_take_no_signals)
{
        struct offload_task task = { note_mask, note_done, NULL };

        open_pool(1);
        offload_submit(offload, &task);
        close_pool();
        cr_assert(sigismember(&mask_of_worker, SIGTERM) && sigismember(&mask_of_worker, SIGHUP));
}
