/*
 * The threads of a GPU's blocks, in turn on one thread of the CPU.  Blocks run one after another;
 * the threads of a block are coroutines that wait for each other where the kernel says so.
 */
#pragma once

#include <stddef.h>

enum { LANES_BLOCK = 256, LANES_WARP = 32 };

/* Who is running: what CUDA calls threadIdx, blockIdx and gridDim. */
struct lanes_index {
        unsigned x;
};

struct lanes_place {
        struct lanes_index thread, block, grid;
};

extern struct lanes_place lanes_now;

/* Calls thread(argument) for each thread of each block.  One call at a time in the process. */
void lanes_run(unsigned blocks, void (*thread)(void *argument), void *argument);
/* The value of the lane `by` further in its team of lanes, or x itself beyond its end. */
double lanes_shuffle_down(double x, unsigned by, unsigned team);
/* The greatest value of the lane's team. */
double lanes_greatest(double x, unsigned team);
void lanes_barrier(void);
