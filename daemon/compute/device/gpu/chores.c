/*
 * Work for which the driver may need time and nobody waits: memory is freed, and host memory is
 * pinned ahead of need.  One thread does it in the order of the requests.  Any thread may request
 * it, even the loop's.
 *
 * Invariant: `asked` counts the chores that were queued, and `done` those that are over; both under
 * the mutex.
 */
#include "daemon/compute/device/gpu/core.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "daemon/floor/base/log.h"

enum { CLOSE_S = 10 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wanted = PTHREAD_COND_INITIALIZER; /* a chore was queued, or stop */
static pthread_cond_t over = PTHREAD_COND_INITIALIZER;   /* a chore is done */
static struct gpu_chore *first, **last = &first;
static uint64_t asked, done;
static bool open, stop;
static pthread_t thread;

/* The caller holds the mutex.  NULL: the thread has to end. */
static struct gpu_chore *next(void)
{
        struct gpu_chore *chore;

        while (!first && !stop)
                pthread_cond_wait(&wanted, &mutex);
        chore = first;
        if (chore)
                first = chore->next;
        if (!first)
                last = &first;
        return chore;
}

static void *chores_main(void *arg)
{
        struct gpu_chore *chore;

        pthread_setname_np(pthread_self(), "gpu-chores");
        pthread_mutex_lock(&mutex);
        while ((chore = next())) {
                pthread_mutex_unlock(&mutex);
                chore->run(chore);
                pthread_mutex_lock(&mutex);
                done++;
                pthread_cond_broadcast(&over);
        }
        pthread_mutex_unlock(&mutex);
        return NULL;
}

/* The thread blocks all signals: they belong to the loop thread. */
int gpu_chores_open(void)
{
        sigset_t all, old;
        int r;

        assert(!open);
        stop = false;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &old);
        r = pthread_create(&thread, NULL, chores_main, NULL);
        pthread_sigmask(SIG_SETMASK, &old, NULL);
        open = r == 0;
        return -r;
}

void gpu_chore(struct gpu_chore *chore)
{
        chore->next = NULL;
        pthread_mutex_lock(&mutex);
        assert(open && !stop);
        asked++;
        *last = chore;
        last = &chore->next;
        pthread_cond_signal(&wanted);
        pthread_mutex_unlock(&mutex);
}

void gpu_chores_wait(void)
{
        uint64_t until;

        pthread_mutex_lock(&mutex);
        until = asked;
        while (done < until)
                pthread_cond_wait(&over, &mutex);
        pthread_mutex_unlock(&mutex);
}

/* A GPU whose work does not end keeps its memory until the process has ended. */
static void give_up(void)
{
        log_error("memory of GPUs was not given back within %d s, since work on them has not "
                  "ended: the process ends now; states in files are whole, states on GPUs are lost",
                  CLOSE_S);
        _exit(1);
}

void gpu_chores_close(void)
{
        struct timespec deadline;

        if (!open)
                return;
        clock_gettime(CLOCK_REALTIME, &deadline); /* the clock of the condition */
        deadline.tv_sec += CLOSE_S;
        pthread_mutex_lock(&mutex);
        stop = true;
        pthread_cond_signal(&wanted);
        while (done < asked)
                if (pthread_cond_timedwait(&over, &mutex, &deadline) == ETIMEDOUT)
                        give_up();
        pthread_mutex_unlock(&mutex);
        pthread_join(thread, NULL);
        open = false;
}
