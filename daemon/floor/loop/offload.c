/*
 * offload.c - the pool of compute threads behind offload.h.
 *
 * A lane's queue is a list of users.  Each user is the first of its tasks, which knows the last
 * one: to submit a task takes no memory.
 *
 * The mutex guards all queues and `stop`.  `pending`, `closing`, the close callback and who hears
 * of CPU time belong to the loop thread.  Workers end only when nothing is pending, so during
 * closing a done() may still submit tasks.  The last worker to leave wakes the loop, which joins
 * threads that have already left and closes the wake-up handle.
 */
#include "daemon/floor/loop/offload.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* With nice 10 a thread gets a tenth of what one without it gets. */
static const struct {
        const char *thread;
        int nice;
} lanes[OFFLOAD_LANES] = {
        [OFFLOAD_STEP] = { "compute", 0 },
        [OFFLOAD_READ] = { "read", 10 },
        [OFFLOAD_MAKE] = { "make", 0 },
};

struct queue {
        struct offload_task *first, **last;
};

struct lane {
        struct offload_task *first; /* of the user whose turn it is, linked by next_user */
        pthread_cond_t wanted;      /* a task was queued, or stop */
};

struct worker {
        struct offload *offload;
        enum offload_lane lane;
        uint32_t index;
        pthread_t thread;
};

struct offload {
        uv_async_t async;
        pthread_mutex_t mutex;
        struct lane lanes[OFFLOAD_LANES];
        struct queue completed;
        bool stop;
        uint32_t running;         /* workers that have not left */
        uint32_t pending, making; /* making: of OFFLOAD_MAKE */
        bool closing;
        void (*closed)(void *arg);
        void *closed_arg;
        void (*ran)(void *arg, uint32_t user, uint64_t ns);
        void *ran_arg;
        uint32_t n_workers; /* of a lane */
        struct worker workers[];
};

static void queue_init(struct queue *q)
{
        q->first = NULL;
        q->last = &q->first;
}

static void queue_put(struct queue *q, struct offload_task *task)
{
        task->next = NULL;
        *q->last = task;
        q->last = &task->next;
}

static struct offload_task *queue_take(struct queue *q)
{
        struct offload_task *task = q->first;

        q->first = task->next;
        if (!q->first)
                q->last = &q->first;
        return task;
}

/* Behind the user's other tasks, or behind all users. */
static void lane_put(struct lane *lane, struct offload_task *task)
{
        struct offload_task **at = &lane->first;

        while (*at && (*at)->user != task->user)
                at = &(*at)->next_user;
        task->next = task->next_user = NULL;
        if (*at) {
                (*at)->last->next = task;
                (*at)->last = task;
                return;
        }
        task->last = task;
        *at = task;
}

/* The user's next task waits behind all other users. */
static struct offload_task *lane_take(struct lane *lane)
{
        struct offload_task *task = lane->first, *next = task->next, **at = &lane->first;

        lane->first = task->next_user;
        if (!next)
                return task;
        while (*at)
                at = &(*at)->next_user;
        next->last = task->last;
        next->next_user = NULL;
        *at = next;
        return task;
}

/* The caller holds the mutex.  NULL: the worker must end. */
static struct offload_task *wait_for_task(struct offload *o, struct lane *lane)
{
        while (!lane->first && !o->stop)
                pthread_cond_wait(&lane->wanted, &o->mutex);
        return lane->first ? lane_take(lane) : NULL;
}

static uint64_t cpu_now(void)
{
        struct timespec now;

        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
        return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void task_run(struct offload_task *task, uint32_t worker)
{
        uint64_t begin = task->lane == OFFLOAD_READ ? cpu_now() : 0;

        task->run(task, worker);
        if (task->lane == OFFLOAD_READ)
                task->cpu_ns = cpu_now() - begin;
}

static void *worker_main(void *arg)
{
        struct worker *w = arg;
        struct offload *o = w->offload;
        struct offload_task *task;

        if (lanes[w->lane].nice) /* Linux: of this thread alone */
                (void)!nice(lanes[w->lane].nice);
        pthread_mutex_lock(&o->mutex);
        while ((task = wait_for_task(o, &o->lanes[w->lane]))) {
                pthread_mutex_unlock(&o->mutex);
                task_run(task, w->index);
                pthread_mutex_lock(&o->mutex);
                queue_put(&o->completed, task);
                uv_async_send(&o->async);
        }
        if (--o->running == 0)
                uv_async_send(&o->async);
        pthread_mutex_unlock(&o->mutex);
        return NULL;
}

static uint32_t all_workers(const struct offload *o)
{
        return OFFLOAD_LANES * o->n_workers;
}

/* Signals belong to the loop thread: workers block them all. */
static int start_worker(struct offload *o, uint32_t i)
{
        struct worker *w = &o->workers[i];
        char name[16];
        sigset_t all, old;
        int r;

        w->offload = o;
        w->lane = (enum offload_lane)(i / o->n_workers);
        w->index = i % o->n_workers;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &old);
        r = pthread_create(&w->thread, NULL, worker_main, w);
        pthread_sigmask(SIG_SETMASK, &old, NULL);
        if (r)
                return -r;
        snprintf(name, sizeof(name), "%s-%u", lanes[w->lane].thread, w->index);
        pthread_setname_np(w->thread, name);
        return 0;
}

/* The caller holds the mutex. */
static void tell_to_stop(struct offload *o)
{
        o->stop = true;
        for (uint32_t i = 0; i < OFFLOAD_LANES; i++)
                pthread_cond_broadcast(&o->lanes[i].wanted);
}

static void stop_workers(struct offload *o)
{
        pthread_mutex_lock(&o->mutex);
        tell_to_stop(o);
        pthread_mutex_unlock(&o->mutex);
}

static void join_workers(struct offload *o, uint32_t n)
{
        for (uint32_t i = 0; i < n; i++)
                pthread_join(o->workers[i].thread, NULL);
}

static void offload_free(struct offload *o)
{
        assert(!o->completed.first && o->pending == 0);
        for (uint32_t i = 0; i < OFFLOAD_LANES; i++) {
                assert(!o->lanes[i].first);
                pthread_cond_destroy(&o->lanes[i].wanted);
        }
        pthread_mutex_destroy(&o->mutex);
        free(o);
}

static void on_closed(uv_handle_t *handle)
{
        struct offload *o = handle->data;

        if (o->closed)
                o->closed(o->closed_arg);
        offload_free(o);
}

static void close_when_idle(struct offload *o)
{
        bool all_left;

        if (!o->closing || o->pending > 0)
                return;
        pthread_mutex_lock(&o->mutex);
        tell_to_stop(o);
        all_left = o->running == 0;
        pthread_mutex_unlock(&o->mutex);
        if (!all_left || uv_is_closing((uv_handle_t *)&o->async))
                return;
        join_workers(o, all_workers(o));
        uv_close((uv_handle_t *)&o->async, on_closed);
}

static void on_async(uv_async_t *async)
{
        struct offload *o = async->data;
        struct queue completed;

        queue_init(&completed);
        pthread_mutex_lock(&o->mutex);
        if (o->completed.first)
                completed = o->completed;
        queue_init(&o->completed);
        pthread_mutex_unlock(&o->mutex);
        while (completed.first) {
                struct offload_task *task = queue_take(&completed);
                bool made = task->lane == OFFLOAD_MAKE; /* done() may free the task */

                if (o->ran && task->lane == OFFLOAD_READ)
                        o->ran(o->ran_arg, task->user, task->cpu_ns / o->n_workers);
                task->done(task);
                o->pending--;
                o->making -= made;
        }
        close_when_idle(o);
}

static int offload_start(struct offload *o, uv_loop_t *loop)
{
        uint32_t n = 0;
        int r = 0;

        /* no worker touches the handle before the first task */
        o->running = all_workers(o);
        while (n < all_workers(o) && (r = start_worker(o, n)) == 0)
                n++;
        if (r == 0)
                r = uv_async_init(loop, &o->async, on_async);
        if (r == 0)
                return 0;
        o->running = UINT32_MAX; /* so that no worker is the last: there is no handle to wake */
        stop_workers(o);
        join_workers(o, n);
        return r;
}

int offload_new(uv_loop_t *loop, uint32_t workers, struct offload **ret)
{
        struct offload *o;
        int r;

        if (workers == 0)
                return -EINVAL;
        o = calloc(1, sizeof(*o) + (size_t)OFFLOAD_LANES * workers * sizeof(o->workers[0]));
        if (!o)
                return -ENOMEM;
        o->n_workers = workers;
        o->async.data = o;
        pthread_mutex_init(&o->mutex, NULL);
        for (uint32_t i = 0; i < OFFLOAD_LANES; i++)
                pthread_cond_init(&o->lanes[i].wanted, NULL);
        queue_init(&o->completed);
        r = offload_start(o, loop);
        if (r) {
                offload_free(o);
                return r;
        }
        *ret = o;
        return 0;
}

uint32_t offload_workers(const struct offload *offload)
{
        return offload->n_workers;
}

void offload_submit(struct offload *offload, enum offload_lane lane, uint32_t user,
                    struct offload_task *task)
{
        task->lane = lane;
        task->user = user;
        offload->pending++;
        offload->making += lane == OFFLOAD_MAKE;
        pthread_mutex_lock(&offload->mutex);
        assert(!offload->stop);
        lane_put(&offload->lanes[lane], task);
        pthread_cond_signal(&offload->lanes[lane].wanted);
        pthread_mutex_unlock(&offload->mutex);
}

void offload_watch(struct offload *offload, void (*ran)(void *arg, uint32_t user, uint64_t ns),
                   void *arg)
{
        offload->ran = ran;
        offload->ran_arg = arg;
}

uint32_t offload_pending(const struct offload *offload)
{
        return offload->pending;
}

uint32_t offload_making(const struct offload *offload)
{
        return offload->making;
}

void offload_close(struct offload *offload, void (*closed)(void *arg), void *arg)
{
        assert(!offload->closing);
        offload->closing = true;
        offload->closed = closed;
        offload->closed_arg = arg;
        close_when_idle(offload);
}
