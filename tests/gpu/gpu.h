/*
 * What the programs for a real GPU share: the plugin's tables, and memory on both sides.
 *
 * A program is called NAME PLUGIN [--quick | --small].  --quick leaves checks out; what it measures
 * stays of full size.  --small is for stand-ins, where figures say nothing.  It exits 77 where
 * there is no GPU, and 1 with a sentence at the first thing that is wrong.  It goes by the plugin's
 * tables alone, so that it runs by the fake plugins too, which shows that the program itself is
 * right.
 */
#pragma once

#include <stdbool.h>

#include "cuda/zero_cuda.h"

enum { GPU_NONE = 77 };

struct gpu {
        const struct zero_cuda_plugin *ops;
        const struct zero_gpu_client *client;
        void *stream;
        bool quick; /* few checks: shows that it runs */
        bool small; /* few and small figures too */
};

_Noreturn void die(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* r is 0, else the process ends. */
void must(int r, const char *what);

/* Loads the plugin without touching the GPU: a process may still fork after it. */
void gpu_load(int argc, char *argv[], struct gpu *ret_gpu);
/* Takes GPU 0, and a stream. */
void gpu_start(struct gpu *gpu);
void gpu_wait(const struct gpu *gpu);
void *gpu_new(const struct gpu *gpu, size_t bytes);
/* Between GPU and host; waits. */
void gpu_move(const struct gpu *gpu, void *dst, const void *src, size_t n);

/* A reproducible generator (splitmix64). */
uint64_t dice(uint64_t *state);

/* An array on both sides, `offset` elements past a 256-byte boundary, with a margin around it. */
struct twin {
        enum zero_dtype dtype;
        size_t n, bytes;
        uint8_t *host_memory, *gpu_memory;
        void *host, *gpu; /* element 0 */
};

/* Filled on both sides with arbitrary bits, half of them ordinary numbers. */
struct twin twin_new(const struct gpu *gpu, enum zero_dtype dtype, size_t n, size_t offset,
                     uint64_t *state);
/* An update in place of the first ones: the planes of the rule. */
void update_in_place(struct update_piece *update, const struct twin *t);
void twin_free(const struct gpu *gpu, struct twin *t);
/* Both sides are equal to the bit, margins too, or both elements are NaN. */
bool twin_same(const struct gpu *gpu, const struct twin *t);
