/*
 * The pool of compute threads.  The loop thread submits a task; a worker calls run(), then the loop
 * thread calls done(), in the order of completion.  The task's memory belongs to the pool until
 * done() is called, and a task cannot be cancelled.  Tasks start in the order of submission.
 */
#pragma once

#include <stdint.h>
#include <uv.h>

struct offload;

struct offload_task {
        void (*run)(struct offload_task *task, uint32_t worker); /* worker: 0 to workers - 1 */
        void (*done)(struct offload_task *task);
        struct offload_task *next; /* private */
};

int offload_new(uv_loop_t *loop, uint32_t workers, struct offload **ret);
uint32_t offload_workers(const struct offload *offload);
void offload_submit(struct offload *offload, struct offload_task *task);
/* How many tasks were submitted and are not done yet. */
uint32_t offload_pending(const struct offload *offload);
/*
 * Marks the pool for closing; workers end when the queue is empty.  closed() is called on the loop
 * thread after the last done(); then the pool is freed.
 */
void offload_close(struct offload *offload, void (*closed)(void *arg), void *arg);
