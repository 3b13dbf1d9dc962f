/*
 * The pool of compute threads.  The loop thread submits a task; a worker calls run(), then the loop
 * thread calls done(), in the order of completion.  The task's memory belongs to the pool until
 * done() is called, and a task cannot be cancelled.
 *
 * There are lanes with threads of their own.  A step never waits for a thread that does anything
 * else, and where no CPU is idle the kernel runs steps before reads.  Within a lane users are
 * served in turn, a task each, and a user's tasks start in the order of submission.
 */
#pragma once

#include <stdint.h>
#include <uv.h>

struct offload;

enum offload_lane {
        OFFLOAD_STEP, /* a step waits for it: tasks of a few milliseconds */
        OFFLOAD_READ, /* a client waits for it: tasks as short, on nice threads; work that pins
                       * groups leaves the lane once an update waits for the pins */
        OFFLOAD_MAKE, /* makes states: tasks of seconds, for which attaches and moves wait */
        OFFLOAD_LANES,
};

enum { OFFLOAD_NODE = UINT32_MAX }; /* the user of the node's own work */

struct offload_task {
        void (*run)(struct offload_task *task, uint32_t worker); /* worker: 0 to workers - 1 */
        void (*done)(struct offload_task *task);
        /* private */
        enum offload_lane lane;
        uint32_t user;
        uint64_t cpu_ns;
        struct offload_task *next, *last, *next_user;
};

/* As many workers in each lane. */
int offload_new(uv_loop_t *loop, uint32_t workers, struct offload **ret);
/* Of a lane. */
uint32_t offload_workers(const struct offload *offload);
void offload_submit(struct offload *offload, enum offload_lane lane, uint32_t user,
                    struct offload_task *task);
/* How many tasks were submitted and are not done yet. */
uint32_t offload_pending(const struct offload *offload);
/* The same of OFFLOAD_MAKE, whose tasks take as long as memory is large. */
uint32_t offload_making(const struct offload *offload);
/* ran() hears on the loop thread, before done(), what a task of OFFLOAD_READ took of a CPU, divided
 * by the lane's workers.  NULL: nobody hears. */
void offload_watch(struct offload *offload, void (*ran)(void *arg, uint32_t user, uint64_t ns),
                   void *arg);
/*
 * Marks the pool for closing; workers end when the queue is empty.  closed() is called on the loop
 * thread after the last done(); then the pool is freed.
 */
void offload_close(struct offload *offload, void (*closed)(void *arg), void *arg);
