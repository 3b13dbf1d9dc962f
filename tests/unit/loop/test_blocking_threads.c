/* Lanes under load, as a plain executable: the thread sanitizer can watch it. */
#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "daemon/floor/loop/blocking.h"

enum { HUNG = 6, A_USER = 4, CHAINS = 40, LENGTH = 50 };

struct item {
        struct blocking_work work;
        enum lane lane;
        uint32_t left; /* of a chain */
        uint64_t value;
        bool done;
};

static uv_loop_t loop;
static struct blocking *blocking;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t opened = PTHREAD_COND_INITIALIZER;
static bool open_now;
static uint32_t n_done;
static bool closed;

static void hang_run(struct blocking_work *work)
{
        pthread_mutex_lock(&mutex);
        while (!open_now)
                pthread_cond_wait(&opened, &mutex);
        pthread_mutex_unlock(&mutex);
}

static void gate_open(void)
{
        pthread_mutex_lock(&mutex);
        open_now = true;
        pthread_cond_broadcast(&opened);
        pthread_mutex_unlock(&mutex);
}

static void count_run(struct blocking_work *work)
{
        struct item *item = (struct item *)work;

        item->value = item->value * 3 + 1;
}

static void item_done(struct blocking_work *work)
{
        struct item *item = (struct item *)work;

        n_done++;
        item->done = true;
        if (item->left && --item->left)
                blocking_submit(blocking, item->lane, work);
}

static void submit(struct item *item, enum lane lane, void (*run)(struct blocking_work *),
                   uint32_t uid)
{
        *item = (struct item){ .work = { .run = run,
                                         .done = item_done,
                                         .what = "to count",
                                         .of = "sheep",
                                         .uid = uid },
                               .lane = lane,
                               .left = item->left };
        blocking_submit(blocking, lane, &item->work);
}

static void on_closed(void *arg)
{
        closed = true;
}

static void begin(void)
{
        int r = uv_loop_init(&loop) || blocking_new(&loop, &blocking);

        assert(!r);
        n_done = 0;
        open_now = closed = false;
}

static void finish(uint32_t expected)
{
        int r;

        blocking_close(blocking, on_closed, NULL);
        uv_run(&loop, UV_RUN_DEFAULT);
        assert(closed && n_done == expected);
        r = uv_loop_close(&loop);
        assert(r == 0);
}

static void wait_for(const bool *done)
{
        while (!*done)
                uv_run(&loop, UV_RUN_ONCE);
}

/* Until as many are at work; threads begin in their own time. */
static struct lane_load load_with(uint32_t working)
{
        struct lane_load load;

        do {
                load = blocking_load(blocking, LANE_CHECKPOINTS);
                uv_sleep(1);
        } while (load.working < working);
        return load;
}

/* One user's work hangs: another's goes on in the same lane, and everybody's in the others. */
static void hung_work_holds_up_its_user_alone(void)
{
        struct item hung[HUNG] = { 0 }, other = { 0 }, lanes[LANES] = { 0 };
        struct lane_load load;

        begin();
        for (int i = 0; i < HUNG; i++)
                submit(&hung[i], LANE_CHECKPOINTS, hang_run, 1);
        load = load_with(A_USER);
        assert(load.working == A_USER && load.waiting == HUNG - A_USER);
        assert(strcmp(load.oldest, "to count sheep of user 1") == 0);
        assert(blocking_has(blocking, LANE_CHECKPOINTS, hung[0].work.what, "sheep"));
        assert(!blocking_has(blocking, LANE_CHECKPOINTS, hung[0].work.what, "goats"));
        assert(!blocking_has(blocking, LANE_VOTES, hung[0].work.what, "sheep"));
        submit(&other, LANE_CHECKPOINTS, count_run, 2);
        wait_for(&other.done);
        for (enum lane lane = 0; lane < LANES; lane++) {
                if (lane == LANE_CHECKPOINTS)
                        continue;
                submit(&lanes[lane], lane, count_run, 1);
                wait_for(&lanes[lane].done);
        }
        for (int i = 0; i < HUNG; i++)
                assert(!hung[i].done);
        gate_open();
        finish(HUNG + LANES);
}

static void chains_end(void)
{
        static struct item items[CHAINS];
        uint64_t expected = 0;

        begin();
        for (uint32_t i = 0; i < LENGTH; i++)
                expected = expected * 3 + 1;
        for (uint32_t i = 0; i < CHAINS; i++) {
                items[i].left = LENGTH;
                submit(&items[i], i % LANES, count_run, i % 3);
        }
        finish(CHAINS * LENGTH);
        for (uint32_t i = 0; i < CHAINS; i++)
                assert(items[i].value == expected);
}

static void nothing_to_do(void)
{
        begin();
        finish(0);
}

int main(void)
{
        nothing_to_do();
        hung_work_holds_up_its_user_alone();
        chains_end();
        printf("Synthesis: Tested: 3 | Passing: 3 | Failing: 0 | Crashing: 0\n");
        return 0;
}
