/*
 * offload.c - the pool of compute threads behind offload.h.
 *
 * The mutex guards both queues and `stop`.  `pending`, `closing` and the close callback belong to
 * the loop thread.  Workers end only when nothing is pending, so during closing a done() may still
 * submit tasks.  The last worker to leave wakes the loop, which joins threads that have already
 * left and closes the wake-up handle.
 */
#include "daemon/loop/offload.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

struct queue {
        struct offload_task *first, **last;
};

struct worker {
        struct offload *offload;
        uint32_t index;
        pthread_t thread;
};

struct offload {
        uv_async_t async;
        pthread_mutex_t mutex;
        pthread_cond_t wanted; /* a task was queued, or stop */
        struct queue todo, completed;
        bool stop;
        uint32_t running; /* workers that have not left */
        uint32_t pending;
        bool closing;
        void (*closed)(void *arg);
        void *closed_arg;
        uint32_t n_workers;
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

/* The caller holds the mutex.  NULL: the worker must end. */
static struct offload_task *wait_for_task(struct offload *o)
{
        while (!o->todo.first && !o->stop)
                pthread_cond_wait(&o->wanted, &o->mutex);
        return o->todo.first ? queue_take(&o->todo) : NULL;
}

static void *worker_main(void *arg)
{
        struct worker *w = arg;
        struct offload *o = w->offload;
        struct offload_task *task;

        pthread_mutex_lock(&o->mutex);
        while ((task = wait_for_task(o))) {
                pthread_mutex_unlock(&o->mutex);
                task->run(task, w->index);
                pthread_mutex_lock(&o->mutex);
                queue_put(&o->completed, task);
                uv_async_send(&o->async);
        }
        if (--o->running == 0)
                uv_async_send(&o->async);
        pthread_mutex_unlock(&o->mutex);
        return NULL;
}

/* Signals belong to the loop thread: workers block them all. */
static int start_worker(struct offload *o, uint32_t index)
{
        struct worker *w = &o->workers[index];
        char name[16];
        sigset_t all, old;
        int r;

        w->offload = o;
        w->index = index;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &old);
        r = pthread_create(&w->thread, NULL, worker_main, w);
        pthread_sigmask(SIG_SETMASK, &old, NULL);
        if (r)
                return -r;
        snprintf(name, sizeof(name), "compute-%u", index);
        pthread_setname_np(w->thread, name);
        return 0;
}

static void stop_workers(struct offload *o)
{
        pthread_mutex_lock(&o->mutex);
        o->stop = true;
        pthread_cond_broadcast(&o->wanted);
        pthread_mutex_unlock(&o->mutex);
}

static void join_workers(struct offload *o, uint32_t n)
{
        for (uint32_t i = 0; i < n; i++)
                pthread_join(o->workers[i].thread, NULL);
}

static void offload_free(struct offload *o)
{
        assert(!o->todo.first && !o->completed.first && o->pending == 0);
        pthread_cond_destroy(&o->wanted);
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
        o->stop = true;
        pthread_cond_broadcast(&o->wanted);
        all_left = o->running == 0;
        pthread_mutex_unlock(&o->mutex);
        if (!all_left || uv_is_closing((uv_handle_t *)&o->async))
                return;
        join_workers(o, o->n_workers);
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

                task->done(task);
                o->pending--;
        }
        close_when_idle(o);
}

static int offload_start(struct offload *o, uv_loop_t *loop)
{
        uint32_t n = 0;
        int r = 0;

        /* no worker touches the handle before the first task */
        o->running = o->n_workers;
        while (n < o->n_workers && (r = start_worker(o, n)) == 0)
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
        o = calloc(1, sizeof(*o) + workers * sizeof(o->workers[0]));
        if (!o)
                return -ENOMEM;
        o->n_workers = workers;
        o->async.data = o;
        pthread_mutex_init(&o->mutex, NULL);
        pthread_cond_init(&o->wanted, NULL);
        queue_init(&o->todo);
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

void offload_submit(struct offload *offload, struct offload_task *task)
{
        offload->pending++;
        pthread_mutex_lock(&offload->mutex);
        assert(!offload->stop);
        queue_put(&offload->todo, task);
        pthread_cond_signal(&offload->wanted);
        pthread_mutex_unlock(&offload->mutex);
}

uint32_t offload_pending(const struct offload *offload)
{
        return offload->pending;
}

void offload_close(struct offload *offload, void (*closed)(void *arg), void *arg)
{
        assert(!offload->closing);
        offload->closing = true;
        offload->closed = closed;
        offload->closed_arg = arg;
        close_when_idle(offload);
}
