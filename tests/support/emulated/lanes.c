/*
 * Coroutines by ucontext.  A lane that comes to a shuffle or a barrier posts what it has and
 * yields; it goes on when all lanes of its warp, or of the block, have come to the same.  If nobody
 * can go on, the kernel is wrong and the process ends.
 */
#include "tests/support/emulated/lanes.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

enum { STACK = 32768 };

enum lane_state { READY, AT_SHUFFLE, AT_BARRIER, DONE };

struct lane {
        ucontext_t context;
        enum lane_state state;
        double posted, seen;
        char stack[STACK];
};

struct lanes_place lanes_now;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct lane lanes[LANES_BLOCK];
static ucontext_t scheduler;
static void (*run_thread)(void *argument);
static void *run_argument;

static void yield(enum lane_state state)
{
        struct lane *self = &lanes[lanes_now.thread.x];

        self->state = state;
        swapcontext(&self->context, &scheduler);
}

static void enter(void)
{
        run_thread(run_argument);
        yield(DONE);
}

void lanes_barrier(void)
{
        yield(AT_BARRIER);
}

double lanes_shuffle_down(double x, unsigned by, unsigned team)
{
        unsigned self = lanes_now.thread.x, from = self + by;

        lanes[self].posted = x;
        yield(AT_SHUFFLE);
        return from / team == self / team ? lanes[from].seen : x;
}

double lanes_greatest(double x, unsigned team)
{
        unsigned self = lanes_now.thread.x, first = self / team * team;

        lanes[self].posted = x;
        yield(AT_SHUFFLE);
        for (unsigned i = first; i < first + team; i++)
                x = lanes[i].seen > x ? lanes[i].seen : x;
        return x;
}

static bool all(unsigned first, unsigned n, enum lane_state state)
{
        for (unsigned i = first; i < first + n; i++)
                if (lanes[i].state != state)
                        return false;
        return true;
}

/* What they see of each other is what they had posted when the last one came. */
static void resume(unsigned first, unsigned n)
{
        for (unsigned i = first; i < first + n; i++)
                lanes[i].seen = lanes[i].posted;
        for (unsigned i = first; i < first + n; i++) {
                lanes_now.thread.x = i;
                swapcontext(&scheduler, &lanes[i].context);
        }
}

static void run_block(void)
{
        for (unsigned i = 0; i < LANES_BLOCK; i++) {
                lanes[i].state = READY;
                getcontext(&lanes[i].context);
                lanes[i].context.uc_stack.ss_sp = lanes[i].stack;
                lanes[i].context.uc_stack.ss_size = STACK;
                makecontext(&lanes[i].context, enter, 0);
        }
        resume(0, LANES_BLOCK);
        while (!all(0, LANES_BLOCK, DONE)) {
                bool moved = all(0, LANES_BLOCK, AT_BARRIER);

                if (moved)
                        resume(0, LANES_BLOCK);
                for (unsigned w = 0; w < LANES_BLOCK; w += LANES_WARP)
                        if (all(w, LANES_WARP, AT_SHUFFLE)) {
                                resume(w, LANES_WARP);
                                moved = true;
                        }
                if (!moved) {
                        fputs("emulated GPU: threads wait for different things\n", stderr);
                        abort();
                }
        }
}

void lanes_run(unsigned blocks, void (*thread)(void *argument), void *argument)
{
        pthread_mutex_lock(&mutex);
        run_thread = thread;
        run_argument = argument;
        lanes_now.grid.x = blocks;
        for (unsigned b = 0; b < blocks; b++) {
                lanes_now.block.x = b;
                run_block();
        }
        pthread_mutex_unlock(&mutex);
}
