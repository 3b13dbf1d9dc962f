/* Runs every case in turn on all threads, round after round. */
#include "tests/bench/kernels/bench.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "proto/cleanup.h"

struct worker {
        const struct bench_case *what;
        struct work work;
        size_t first, n;
        pthread_barrier_t *start;
        double begin, end, cpu;
        pthread_t thread;
};

static double seconds(clockid_t clock)
{
        struct timespec t;

        clock_gettime(clock, &t);
        return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void *work_on(void *argument)
{
        struct worker *w = argument;
        double cpu;

        pthread_barrier_wait(w->start);
        cpu = seconds(CLOCK_THREAD_CPUTIME_ID);
        w->begin = seconds(CLOCK_MONOTONIC);
        w->what->run(&w->work, w->first, w->n);
        w->end = seconds(CLOCK_MONOTONIC);
        w->cpu = seconds(CLOCK_THREAD_CPUTIME_ID) - cpu;
        return NULL;
}

/* Cuts the planes at chunks, about evenly. */
static void cut(struct worker *workers, unsigned threads, size_t elements, size_t chunk)
{
        size_t chunks = elements / chunk;

        for (unsigned i = 0; i < threads; i++) {
                workers[i].first = chunks * i / threads * chunk;
                workers[i].n = chunks * (i + 1) / threads * chunk - workers[i].first;
        }
}

static void run_once(struct worker *workers, unsigned threads, const struct bench_case *what,
                     struct sample *ret_sample)
{
        double begin = INFINITY, end = 0, cpu = 0;

        for (unsigned i = 0; i < threads; i++) {
                workers[i].what = what;
                if (pthread_create(&workers[i].thread, NULL, work_on, &workers[i]))
                        abort(); /* the others wait at the barrier */
        }
        for (unsigned i = 0; i < threads; i++) {
                pthread_join(workers[i].thread, NULL);
                begin = fmin(begin, workers[i].begin);
                end = fmax(end, workers[i].end);
                cpu += workers[i].cpu;
        }
        *ret_sample = (struct sample){ end - begin, cpu };
}

int measure(const struct work *w, unsigned threads, unsigned rounds, struct sample *samples)
{
        CLEANUP(cleanup_free) struct undo_buffer *buffers = NULL;
        struct worker workers[BENCH_THREADS_MAX] = { 0 };
        struct sample warm_up;
        pthread_barrier_t start;
        unsigned cases = n_bench_cases;

        buffers = aligned_alloc(_Alignof(struct undo_buffer), threads * sizeof(*buffers));
        if (!buffers || pthread_barrier_init(&start, NULL, threads))
                return -ENOMEM;
        cut(workers, threads, w->planes->elements, w->chunk);
        for (unsigned i = 0; i < threads; i++) {
                workers[i].work = *w;
                workers[i].work.undo = &buffers[i];
                workers[i].start = &start;
        }
        for (unsigned c = 0; c < cases; c++)
                run_once(workers, threads, &bench_cases[c], &warm_up);
        for (unsigned r = 0; r < rounds; r++)
                for (unsigned c = 0; c < cases; c++)
                        run_once(workers, threads, &bench_cases[c], &samples[r * cases + c]);
        pthread_barrier_destroy(&start);
        return 0;
}
