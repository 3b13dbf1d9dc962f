#include "tasks.h"

#include <assert.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>

#include "daemon/floor/loop/offload.h"

struct task {
        struct offload_task task;
        struct load *load;
        uint32_t left;   /* of its chain */
        uint32_t worker; /* that ran it */
        uint64_t value;  /* written by run(), read by done(): no other synchronisation */
};

struct load {
        struct offload *offload;
        pthread_t loop_thread;
        uint32_t done, submitted;
        bool closed;
};

static void run(struct offload_task *t, uint32_t worker)
{
        struct task *task = (struct task *)t;

        assert(!pthread_equal(pthread_self(), task->load->loop_thread));
        task->worker = worker;
        task->value = task->value * 3 + 1;
}

static void submit(struct task *task)
{
        task->load->submitted++;
        offload_submit(task->load->offload, (enum offload_lane)(task->left % OFFLOAD_LANES),
                       task->left % 4, &task->task);
}

static void done(struct offload_task *t)
{
        struct task *task = (struct task *)t;
        struct load *load = task->load;

        assert(pthread_equal(pthread_self(), load->loop_thread));
        assert(task->worker < offload_workers(load->offload));
        assert(!load->closed);
        load->done++;
        if (--task->left > 0)
                submit(task);
}

static void closed(void *arg)
{
        struct load *load = arg;

        assert(!load->closed && load->done == load->submitted);
        load->closed = true;
}

static uint64_t expected(uint32_t length)
{
        uint64_t x = 0;

        while (length--)
                x = x * 3 + 1;
        return x;
}

void tasks_run(uint32_t workers, uint32_t chains, uint32_t length)
{
        struct load load = { .loop_thread = pthread_self() };
        struct task *tasks = calloc(chains, sizeof(*tasks));
        uv_loop_t loop;
        int r;

        assert(tasks);
        uv_loop_init(&loop);
        r = offload_new(&loop, workers, &load.offload);
        assert(r == 0 && offload_workers(load.offload) == workers);
        for (uint32_t i = 0; i < chains; i++) {
                tasks[i] =
                        (struct task){ { .run = run, .done = done }, &load, length, UINT32_MAX, 0 };
                submit(&tasks[i]);
        }
        assert(offload_pending(load.offload) == chains);
        offload_close(load.offload, closed, &load);
        uv_run(&loop, UV_RUN_DEFAULT);
        assert(load.closed && load.done == chains * length);
        for (uint32_t i = 0; i < chains; i++)
                assert(tasks[i].value == expected(length));
        r = uv_loop_close(&loop);
        assert(r == 0);
        free(tasks);
}
