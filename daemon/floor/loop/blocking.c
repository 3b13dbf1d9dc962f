/*
 * Lanes of threads; see blocking.h.
 *
 * The mutex guards the lists and counts of lanes, and `completed`.  `pending`, `closing` and the
 * close callback belong to the loop thread.  A lane has no idle threads: each one works, or is
 * about to look for work.  So work begins when a thread ends something, or when it is submitted.
 * If no thread can be made, a timer tries again.
 */
#include "daemon/floor/loop/blocking.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"

enum { RETRY_MS = 100 };

/*
 * A hung disk keeps threads, so checkpoints have many: with 4 a user, 8 users have to hang before
 * a ninth waits.  4 write as fast as most disks.  Hashing and freeing are the CPU's work: few
 * threads, so that steps keep theirs.
 */
static const struct {
        const char *name;
        uint32_t threads, a_user;
        enum lane_stop stop;
} rules[LANES] = {
        [LANE_VOTES] = { "votes", 2, 2, LANE_LEFT },
        [LANE_DRIVERS] = { "drivers", 16, 4, LANE_FATAL },
        [LANE_LOOKS] = { "looks", 4, 2, LANE_LEFT },
        [LANE_MEMORY] = { "memory", 4, 2, LANE_AWAITED },
        [LANE_BASES] = { "bases", 2, 1, LANE_AWAITED },
        [LANE_CHECKPOINTS] = { "checkpoints", 32, 4, LANE_LEFT },
        [LANE_PLACES] = { "places", 32, 4, LANE_LEFT },
        [LANE_FILES] = { "files", 4, 4, LANE_LEFT },
};

struct crew {
        struct blocking *blocking;
        struct list waiting, working;
        uint32_t n_threads;
};

struct blocking {
        uv_async_t async;
        uv_timer_t retry;
        pthread_mutex_t mutex;
        pthread_attr_t detached;
        struct crew crews[LANES];
        struct list completed;
        uint32_t pending;
        uint32_t handles;
        bool closing;
        void (*closed)(void *arg);
        void *closed_arg;
};

/* ---- with the mutex ---- */

static uint32_t works_for(const struct crew *c, uint32_t uid)
{
        uint32_t n = 0;

        list_for_each ((struct list *)&c->working, item) {
                n += CONTAINER_OF(item, struct blocking_work, link)->uid == uid;
        }
        return n;
}

/* The oldest work whose user has a thread left; NULL: none. */
static struct blocking_work *next_work(struct crew *c)
{
        uint32_t most = rules[c - c->blocking->crews].a_user;

        list_for_each (&c->waiting, item) {
                struct blocking_work *work = CONTAINER_OF(item, struct blocking_work, link);

                if (works_for(c, work->uid) < most)
                        return work;
        }
        return NULL;
}

static int crew_call(struct crew *c);

static void *crew_main(void *arg)
{
        struct crew *c = arg;
        struct blocking *b = c->blocking;
        struct blocking_work *work;

        pthread_mutex_lock(&b->mutex);
        while ((work = next_work(c))) {
                list_remove(&work->link);
                list_insert(&c->working, &work->link);
                work->began_ns = uv_hrtime();
                (void)crew_call(
                        c); /* for what else may begin, where a thread could not be made before */
                pthread_mutex_unlock(&b->mutex);
                work->run(work);
                pthread_mutex_lock(&b->mutex);
                list_remove(&work->link);
                list_insert(&b->completed, &work->link);
                uv_async_send(&b->async);
        }
        c->n_threads--;
        uv_async_send(&b->async);
        pthread_mutex_unlock(&b->mutex);
        return NULL;
}

/* Signals belong to the loop thread. */
static int thread_new(struct crew *c)
{
        struct blocking *b = c->blocking;
        char name[16];
        sigset_t all, old;
        pthread_t thread;
        int r;

        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &old);
        r = pthread_create(&thread, &b->detached, crew_main, c);
        pthread_sigmask(SIG_SETMASK, &old, NULL);
        if (r)
                return -r;
        c->n_threads++;
        snprintf(name, sizeof name, "%s", rules[c - b->crews].name);
        pthread_setname_np(thread, name); /* it cannot have ended: the mutex is ours */
        return 0;
}

/* A thread for work that may begin; -EAGAIN: there is none yet. */
static int crew_call(struct crew *c)
{
        if (c->n_threads >= rules[c - c->blocking->crews].threads || !next_work(c))
                return 0;
        return thread_new(c);
}

/* ---- on the loop thread ---- */

static void on_retry(uv_timer_t *timer);

static void crews_call(struct blocking *b)
{
        int failed = 0;

        pthread_mutex_lock(&b->mutex);
        for (int i = 0; i < LANES; i++)
                failed |= crew_call(&b->crews[i]);
        pthread_mutex_unlock(&b->mutex);
        if (failed)
                uv_timer_start(&b->retry, on_retry, RETRY_MS, 0);
}

static void on_retry(uv_timer_t *timer)
{
        crews_call(timer->data);
}

static void blocking_free(struct blocking *b)
{
        pthread_attr_destroy(&b->detached);
        pthread_mutex_destroy(&b->mutex);
        free(b);
}

static void on_closed(uv_handle_t *handle)
{
        struct blocking *b = handle->data;

        if (--b->handles)
                return;
        b->closed(b->closed_arg);
        blocking_free(b);
}

static void close_when_idle(struct blocking *b)
{
        uint32_t threads = 0;

        if (!b->closing || b->pending || uv_is_closing((uv_handle_t *)&b->async))
                return;
        pthread_mutex_lock(&b->mutex);
        for (int i = 0; i < LANES; i++)
                threads += b->crews[i].n_threads;
        pthread_mutex_unlock(&b->mutex);
        if (threads)
                return;
        uv_close((uv_handle_t *)&b->async, on_closed);
        uv_close((uv_handle_t *)&b->retry, on_closed);
}

static struct blocking_work *completed_take(struct blocking *b)
{
        struct blocking_work *work = NULL;

        pthread_mutex_lock(&b->mutex);
        if (!list_empty(&b->completed)) {
                work = CONTAINER_OF(b->completed.next, struct blocking_work, link);
                list_remove(&work->link);
        }
        pthread_mutex_unlock(&b->mutex);
        return work;
}

static void on_async(uv_async_t *async)
{
        struct blocking *b = async->data;

        for (struct blocking_work *work; (work = completed_take(b));) {
                work->done(work);
                b->pending--;
        }
        close_when_idle(b);
}

void blocking_submit(struct blocking *b, enum lane lane, struct blocking_work *work)
{
        b->pending++;
        work->began_ns = 0;
        list_init(&work->link);
        pthread_mutex_lock(&b->mutex);
        list_insert(&b->crews[lane].waiting, &work->link);
        pthread_mutex_unlock(&b->mutex);
        crews_call(b);
}

static bool list_has(const struct list *works, const char *what, const char *of)
{
        list_for_each ((struct list *)works, item) {
                const struct blocking_work *work = CONTAINER_OF(item, struct blocking_work, link);

                if (work->what == what && strcmp(work->of, of) == 0)
                        return true;
        }
        return false;
}

bool blocking_has(struct blocking *b, enum lane lane, const char *what, const char *of)
{
        const struct crew *c = &b->crews[lane];
        bool has;

        pthread_mutex_lock(&b->mutex);
        has = list_has(&c->waiting, what, of) || list_has(&c->working, what, of) ||
              list_has(&b->completed, what, of);
        pthread_mutex_unlock(&b->mutex);
        return has;
}

struct lane_load blocking_load(struct blocking *b, enum lane lane)
{
        const struct crew *c = &b->crews[lane];
        struct lane_load load = { rules[lane].name, rules[lane].stop, 0, 0, 0, "" };

        pthread_mutex_lock(&b->mutex);
        list_for_each ((struct list *)&c->working, item) {
                const struct blocking_work *work = CONTAINER_OF(item, struct blocking_work, link);

                if (load.working++)
                        continue;
                load.oldest_ms = (uv_hrtime() - work->began_ns) / 1000000;
                if (work->of)
                        snprintf(load.oldest, sizeof load.oldest, "%s %.80s of user %u", work->what,
                                 work->of, work->uid);
                else
                        snprintf(load.oldest, sizeof load.oldest, "%s", work->what);
        }
        list_for_each ((struct list *)&c->waiting, item) {
                load.waiting++;
        }
        pthread_mutex_unlock(&b->mutex);
        return load;
}

uint32_t blocking_waits(struct blocking *b, enum lane lane, uint32_t uid)
{
        uint32_t n = 0;

        pthread_mutex_lock(&b->mutex);
        list_for_each (&b->crews[lane].waiting, item) {
                n += CONTAINER_OF(item, struct blocking_work, link)->uid == uid;
        }
        pthread_mutex_unlock(&b->mutex);
        return n;
}

/* ---- start and stop ---- */

int blocking_new(uv_loop_t *loop, struct blocking **ret)
{
        struct blocking *b = calloc(1, sizeof *b);
        int r;

        if (!b)
                return -ENOMEM;
        r = uv_async_init(loop, &b->async, on_async);
        if (r) {
                free(b);
                return r;
        }
        uv_timer_init(loop, &b->retry);
        b->async.data = b->retry.data = b;
        b->handles = 2;
        pthread_mutex_init(&b->mutex, NULL);
        pthread_attr_init(&b->detached);
        pthread_attr_setdetachstate(&b->detached, PTHREAD_CREATE_DETACHED);
        list_init(&b->completed);
        for (int i = 0; i < LANES; i++) {
                b->crews[i].blocking = b;
                list_init(&b->crews[i].waiting);
                list_init(&b->crews[i].working);
        }
        *ret = b;
        return 0;
}

void blocking_close(struct blocking *b, void (*closed)(void *arg), void *arg)
{
        assert(!b->closing);
        b->closing = true;
        b->closed = closed;
        b->closed_arg = arg;
        close_when_idle(b);
}
