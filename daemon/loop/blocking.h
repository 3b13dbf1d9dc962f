/*
 * blocking.h - runs work that blocks on a disk or a GPU's driver on threads of its own, so that the
 * compute threads stay free for the step.
 */
#pragma once

#include <uv.h>

struct blocking_work {
        uv_work_t work;
        void (*run)(struct blocking_work *job);  /* on another thread */
        void (*done)(struct blocking_work *job); /* then on the loop thread */
};

/* The memory of the work belongs to the caller again once done() has been called. */
void blocking_submit(uv_loop_t *loop, struct blocking_work *job);
