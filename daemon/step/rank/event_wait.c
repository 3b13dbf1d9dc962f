/*
 * The thread behind event_wait.h.
 *
 * The loop thread makes and frees waits; while a wait is in one of the thread's lists, the thread
 * writes only its `status`.  A dropped wait returns like any other, but its callback is not called.
 * The waits of a rank hold its events.  The thread closes dropped events when the last wait has
 * ended, as the last thing it does with them.
 *
 * The mutex guards `todo`, `finished`, `stop`, `left` and `awake`.
 */
#include "daemon/step/rank/event_wait.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>

#include "proto/cleanup.h"
#include "proto/list.h"
#include "proto/sure.h"

/*
 * How often the thread looks at events.  While something has just happened, it looks as often as a
 * look and a timer stay cheap; the longer nothing happens, the less often.
 */
enum { PERIOD_MIN_NS = 20000, PERIOD_MAX_NS = 400000, PERIOD_PART = 16 };

struct held {
        struct list link; /* event_waits.held */
        struct place_events *events;
        uint32_t n_waits;
        _Atomic bool dropped;
};

struct wait {
        struct wait *next;
        struct held *held;
        uint32_t index;
        uint64_t deadline_ms;
        event_waited *done; /* NULL: close the events */
        void *arg;
        int status;
};

struct event_waits {
        uv_async_t async;
        pthread_t thread;
        pthread_mutex_t mutex;
        pthread_cond_t wanted; /* todo is not empty, or stop */
        struct wait *todo, *finished;
        bool stop, left; /* left: the thread is done with this struct */
        bool awake;      /* async may be sent */
        struct list held;
        uint32_t pending; /* waits and closings that the thread has */
        bool closing;
        void (*closed)(void *arg);
        void *closed_arg;
};

/* ---- the thread ----------------------------------------------------------------- */

/* True: the wait is over, with w->status. */
static bool look(struct wait *w, uint64_t now_ms)
{
        int r;

        if (!w->done) {
                place_events_close(w->held->events);
                return true;
        }
        if (w->held->dropped) {
                w->status = -ECANCELED;
                return true;
        }
        r = place_event_done(w->held->events, w->index);
        w->status = r == 1 ? 0 : r < 0 ? r : -ETIMEDOUT;
        return r != 0 || now_ms >= w->deadline_ms;
}

/* Takes the waits that are over out of *active. */
static struct wait *look_at_all(struct wait **active)
{
        uint64_t now_ms = uv_hrtime() / 1000000;
        struct wait *over = NULL;

        for (struct wait **at = active, *w; (w = *at);) {
                if (!look(w, now_ms)) {
                        at = &w->next;
                        continue;
                }
                *at = w->next;
                w->next = over;
                over = w;
        }
        return over;
}

static struct wait *join(struct wait *first, struct wait *rest)
{
        struct wait **end = &first;

        while (*end)
                end = &(*end)->next;
        *end = rest;
        return first;
}

/* The caller holds the mutex. */
static void sleep_a_while(struct event_waits *w, uint64_t quiet_ns)
{
        uint64_t period = quiet_ns / PERIOD_PART, until;
        struct timespec t;

        period = period < PERIOD_MIN_NS ? PERIOD_MIN_NS : period;
        until = uv_hrtime() + (period < PERIOD_MAX_NS ? period : PERIOD_MAX_NS);
        t = (struct timespec){ (time_t)(until / 1000000000), (long)(until % 1000000000) };
        pthread_cond_timedwait(&w->wanted, &w->mutex, &t);
}

static void *waits_main(void *arg)
{
        struct event_waits *w = arg;
        struct wait *active = NULL, *over;
        uint64_t changed_ns = 0;

        pthread_setname_np(pthread_self(), "event-waits");
        prctl(PR_SET_TIMERSLACK, 1UL);
        pthread_mutex_lock(&w->mutex);
        while (active || w->todo || !w->stop) {
                if (!active && !w->todo)
                        pthread_cond_wait(&w->wanted, &w->mutex);
                else if (!w->todo)
                        sleep_a_while(w, uv_hrtime() - changed_ns);
                if (w->todo)
                        changed_ns = uv_hrtime();
                active = join(w->todo, active);
                w->todo = NULL;
                pthread_mutex_unlock(&w->mutex);
                over = look_at_all(&active);
                pthread_mutex_lock(&w->mutex);
                if (over) {
                        changed_ns = uv_hrtime();
                        w->finished = join(over, w->finished);
                        uv_async_send(&w->async);
                }
        }
        w->left = true;
        if (w->awake)
                uv_async_send(&w->async);
        pthread_mutex_unlock(&w->mutex);
        return NULL;
}

/* ---- the loop thread ---------------------------------------------------------------- */

static void submit(struct event_waits *w, struct wait *wait)
{
        w->pending++;
        pthread_mutex_lock(&w->mutex);
        assert(!w->left);
        wait->next = w->todo;
        w->todo = wait;
        pthread_cond_signal(&w->wanted);
        pthread_mutex_unlock(&w->mutex);
}

static void held_free(struct held *h)
{
        list_remove(&h->link);
        free(h);
}

/* The last wait for these events has ended; spare is its memory. */
static void held_idle(struct event_waits *w, struct held *h, struct wait *spare)
{
        if (h->dropped) {
                *spare = (struct wait){ .held = h };
                submit(w, spare);
                return;
        }
        held_free(h);
        free(spare);
}

/* The callback may drop the events or close everything, so pending falls only after it. */
static void wait_over(struct event_waits *w, struct wait *wait)
{
        struct held *h = wait->held;

        if (!wait->done) {
                held_free(h);
                free(wait);
        } else {
                if (!h->dropped)
                        wait->done(wait->arg, wait->status);
                if (--h->n_waits == 0)
                        held_idle(w, h, wait);
                else
                        free(wait);
        }
        w->pending--;
}

static void waits_free(struct event_waits *w)
{
        assert(!w->todo && !w->finished && list_empty(&w->held));
        pthread_cond_destroy(&w->wanted);
        pthread_mutex_destroy(&w->mutex);
        free(w);
}

static void on_closed(uv_handle_t *handle)
{
        struct event_waits *w = handle->data;
        void (*closed)(void *arg) = w->closed;
        void *arg = w->closed_arg;

        waits_free(w);
        closed(arg);
}

static void close_when_idle(struct event_waits *w)
{
        bool left;

        if (!w->closing || w->pending > 0)
                return;
        pthread_mutex_lock(&w->mutex);
        w->stop = true;
        pthread_cond_signal(&w->wanted);
        left = w->left;
        pthread_mutex_unlock(&w->mutex);
        if (!left || uv_is_closing((uv_handle_t *)&w->async))
                return;
        pthread_join(w->thread, NULL);
        uv_close((uv_handle_t *)&w->async, on_closed);
}

static void on_async(uv_async_t *async)
{
        struct event_waits *w = async->data;
        struct wait *finished;

        pthread_mutex_lock(&w->mutex);
        finished = w->finished;
        w->finished = NULL;
        pthread_mutex_unlock(&w->mutex);
        for (struct wait *next; finished; finished = next) {
                next = finished->next;
                wait_over(w, finished);
        }
        close_when_idle(w);
}

static void condition_init(pthread_cond_t *condition)
{
        pthread_condattr_t attributes;

        pthread_condattr_init(&attributes);
        pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC); /* the clock of uv_hrtime() */
        pthread_cond_init(condition, &attributes);
        pthread_condattr_destroy(&attributes);
}

/* The thread blocks all signals: they belong to the loop thread. */
static int start_thread(struct event_waits *w)
{
        sigset_t all, old;
        int r;

        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &old);
        r = pthread_create(&w->thread, NULL, waits_main, w);
        pthread_sigmask(SIG_SETMASK, &old, NULL);
        return -r;
}

int event_waits_new(uv_loop_t *loop, struct event_waits **ret)
{
        struct event_waits *w = calloc(1, sizeof *w);
        int r;

        if (!w)
                return -ENOMEM;
        list_init(&w->held);
        w->async.data = w;
        pthread_mutex_init(&w->mutex, NULL);
        condition_init(&w->wanted);
        r = start_thread(w);
        if (r < 0) {
                waits_free(w);
                return r;
        }
        r = uv_async_init(loop, &w->async, on_async);
        pthread_mutex_lock(&w->mutex);
        w->awake = r == 0;
        w->stop = r < 0;
        pthread_cond_signal(&w->wanted);
        pthread_mutex_unlock(&w->mutex);
        if (r < 0) {
                pthread_join(w->thread, NULL);
                waits_free(w);
                return r;
        }
        *ret = w;
        return 0;
}

static struct held *held_find(struct event_waits *w, const struct place_events *events)
{
        list_for_each (&w->held, item) {
                struct held *h = CONTAINER_OF(item, struct held, link);

                if (h->events == events && !h->dropped)
                        return h;
        }
        return NULL;
}

static struct held *held_new(struct event_waits *w, struct place_events *events)
{
        struct held *h = sure_realloc(NULL, sizeof *h);

        *h = (struct held){ .events = events };
        list_insert(&w->held, &h->link);
        return h;
}

int event_wait(struct event_waits *w, struct place_events *events, uint32_t index,
               uint64_t deadline_ms, event_waited *done, void *arg, struct fault *fault)
{
        struct held *h = held_find(w, events);
        struct wait *wait;

        assert(!w->closing);
        if (index >= place_events_count(events))
                return fault_set(fault, ZERO_EINVAL,
                                 "the message names event %u, but the rank has %u events", index,
                                 place_events_count(events));
        if (h && h->n_waits >= EVENT_WAITS_MAX)
                return fault_set(fault, ZERO_EBUSY,
                                 "%u messages wait for events of this rank already", h->n_waits);
        wait = malloc(sizeof *wait);
        if (!wait)
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        if (!h)
                h = held_new(w, events);
        *wait = (struct wait){
                .held = h, .index = index, .deadline_ms = deadline_ms, .done = done, .arg = arg
        };
        h->n_waits++;
        submit(w, wait);
        return 0;
}

void event_waits_drop(struct event_waits *w, struct place_events *events)
{
        struct held *h = events ? held_find(w, events) : NULL;
        struct wait *wait;

        if (!events)
                return;
        if (h) {
                h->dropped = true;
                return;
        }
        h = held_new(w, events);
        wait = sure_realloc(NULL, sizeof *wait);
        *wait = (struct wait){ 0 };
        h->dropped = true;
        held_idle(w, h, wait);
}

void event_waits_close(struct event_waits *w, void (*closed)(void *arg), void *arg)
{
        assert(!w->closing);
        w->closing = true;
        w->closed = closed;
        w->closed_arg = arg;
        list_for_each (&w->held, item)
                assert(CONTAINER_OF(item, struct held, link)->dropped);
        close_when_idle(w);
}
