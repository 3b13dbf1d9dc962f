/* The pool of compute threads. */
#include <criterion/criterion.h>

#include "daemon/floor/loop/offload.h"
#include "tasks.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <time.h>

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
                tasks[i] = (struct offload_task){ .run = note_start, .done = note_done };
                offload_submit(offload, OFFLOAD_STEP, 0, &tasks[i]);
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
        struct offload_task first = { .run = block, .done = note_order };
        struct offload_task second = { .run = nothing, .done = note_order };

        open_pool(2);
        pthread_mutex_lock(&gate);
        offload_submit(offload, OFFLOAD_STEP, 0, &first);
        offload_submit(offload, OFFLOAD_STEP, 0, &second);
        while (n_done < 2)
                uv_run(&loop, UV_RUN_ONCE);
        cr_assert_eq(order[0], &second);
        cr_assert_eq(order[1], &first);
        close_pool();
}

/* Keeps the only worker of a lane until the gate opens. */
static void fill_lane(enum offload_lane lane, struct offload_task *blocker)
{
        *blocker = (struct offload_task){ .run = block, .done = note_done };
        offload_submit(offload, lane, OFFLOAD_NODE, blocker);
}

/* Of 90 tasks of one user and 10 of another, the first 20 to start are of both in turn. */
Test(offload, users_of_a_lane_are_served_in_turn)
{
        struct offload_task blocker;

        open_pool(1);
        pthread_mutex_lock(&gate);
        fill_lane(OFFLOAD_READ, &blocker);
        for (uint32_t i = 0; i < TASKS; i++) {
                tasks[i] = (struct offload_task){ .run = note_start, .done = note_done };
                offload_submit(offload, OFFLOAD_READ, i < TASKS - 10 ? 7 : 8, &tasks[i]);
        }
        pthread_mutex_unlock(&gate);
        close_pool();
        cr_assert_eq(n_started, TASKS);
        for (uint32_t i = 0; i < 10; i++) {
                cr_assert_eq(started[2 * i], i);
                cr_assert_eq(started[2 * i + 1], TASKS - 10 + i);
        }
        for (uint32_t i = 20; i < TASKS; i++)
                cr_assert_eq(started[i], i - 10);
}

Test(offload, a_step_waits_for_no_read)
{
        struct offload_task blocker, step = { .run = nothing, .done = note_done };

        open_pool(1);
        pthread_mutex_lock(&gate);
        fill_lane(OFFLOAD_READ, &blocker);
        offload_submit(offload, OFFLOAD_STEP, 0, &step);
        while (n_done < 1)
                uv_run(&loop, UV_RUN_ONCE);
        pthread_mutex_unlock(&gate);
        close_pool();
        cr_assert_eq(n_done, 2);
}

static int nice_of[OFFLOAD_LANES];

static void note_nice(struct offload_task *task, uint32_t worker)
{
        nice_of[task->lane] = getpriority(PRIO_PROCESS, 0);
}

Test(offload, reads_are_nicer_than_steps)
{
        struct offload_task task[OFFLOAD_LANES];

        open_pool(1);
        for (uint32_t lane = 0; lane < OFFLOAD_LANES; lane++) {
                task[lane] = (struct offload_task){ .run = note_nice, .done = note_done };
                offload_submit(offload, (enum offload_lane)lane, 0, &task[lane]);
        }
        close_pool();
        cr_assert_eq(nice_of[OFFLOAD_STEP], getpriority(PRIO_PROCESS, 0));
        cr_assert_gt(nice_of[OFFLOAD_READ], nice_of[OFFLOAD_STEP]);
}

static uint64_t heard_ns[3];

static void hear(void *arg, uint32_t user, uint64_t ns)
{
        cr_assert_eq(arg, heard_ns);
        heard_ns[user] += ns;
}

/* Computes until its thread has had a millisecond of a CPU. */
static void compute(struct offload_task *task, uint32_t worker)
{
        struct timespec begin, now;

        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
        do
                clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
        while ((now.tv_sec - begin.tv_sec) * 1000000000 + now.tv_nsec - begin.tv_nsec < 1000000);
}

Test(offload, tells_what_each_users_reads_took)
{
        struct offload_task task[3];

        open_pool(2);
        offload_watch(offload, hear, heard_ns);
        for (uint32_t i = 0; i < 3; i++) {
                task[i] = (struct offload_task){ .run = i ? compute : nothing, .done = note_done };
                offload_submit(offload, i == 2 ? OFFLOAD_STEP : OFFLOAD_READ, i, &task[i]);
        }
        close_pool();
        cr_assert_geq(heard_ns[1], 1000000 / 2); /* of two workers */
        cr_assert_eq(heard_ns[2], 0);
}

Test(offload, chains_go_on_while_closing)
{
        tasks_run(3, 10, 20);
}

Test(offload, no_thread_is_left)
{
        uint32_t before = count_threads();

        open_pool(5);
        cr_assert_eq(count_threads(), before + OFFLOAD_LANES * 5);
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
        struct offload_task task = { .run = note_mask, .done = note_done };

        open_pool(1);
        offload_submit(offload, OFFLOAD_READ, 0, &task);
        close_pool();
        cr_assert(sigismember(&mask_of_worker, SIGTERM) && sigismember(&mask_of_worker, SIGHUP));
}
