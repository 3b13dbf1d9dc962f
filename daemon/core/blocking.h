/*
 * blocking.h - work that blocks on a disk, or on a GPU's driver, on threads of its own: the compute
 * threads stay free for the step, however slow these are.
 */
#pragma once

#include <uv.h>

struct blocking_work {
        uv_work_t work;
        void (*run)(struct blocking_work *job);  /* on another thread */
        void (*done)(struct blocking_work *job); /* then on the loop thread */
};

/* The job's memory is the caller's until done() has been called. */
void blocking_submit(uv_loop_t *loop, struct blocking_work *job);
