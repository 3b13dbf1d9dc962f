/*
 * CUDA's runtime and the driver's memory management, as far as the C files of cuda/ use them, over
 * host memory: what these files ask for, in which order and with what, is seen without a GPU.
 *
 * Strict: what the documentation forbids, or leaves undefined, fails the test at once; so does what
 * it allows and the plugin must not do, as giving memory back while work on it is under way.  A
 * thread without a context that makes a call which needs one gets the first GPU's, as in CUDA.
 * Processes are not told apart: a handle may be opened where it was made.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
        FAKE_GPUS = 2,
        FAKE_UNIT = 2 << 20, /* granularity of memory that is exported */
        FAKE_NO_CONTEXT = -1,
};

struct fake_runtime {
        int calls;              /* so far, of those that can fail */
        int fail_at, fail_with; /* which of them does, and how; 0: none */
        bool failed;            /* it has */
        bool no_descriptors;    /* memory is exported by no descriptor */
        bool no_handles;        /* nor by a legacy handle */
        bool old_driver;        /* it has no entry points to look up */
        bool event_pending;     /* what events stand for is not done */
        int sticky;             /* every wait for a GPU says so */
        unsigned begun;         /* GPUs that have a context: a bit each */
        int begins;             /* calls of cudaInitDevice() */
};

extern struct fake_runtime fake;

/* The calling thread's GPU. */
int fake_current(void);
void fake_set_current(int gpu);
/* Work on the GPU has been enqueued that nobody has waited for. */
void fake_enqueue(int gpu);
/* Nothing is left of all that was made. */
void fake_must_be_empty(void);

/* ---- between fake_runtime.c and fake_driver.c ---------------------------------- */

enum fake_kind { NONE, RESERVED, MAPPED, ACCESSIBLE, ALLOCATED, OPENED, HOST };

struct fake_range {
        enum fake_kind kind;
        uintptr_t at;
        size_t bytes;
        int fd, gpu;
};

/* The next call that can fail: its status. */
int fake_next(void);
/* The GPU of a call that works on the thread's. */
int fake_in_use(void);
bool fake_initialised(void);
bool fake_is_enqueued(int gpu);

/* Memory itself, as a descriptor. */
int fake_memory_new(size_t bytes, int gpu);
size_t fake_memory_bytes(int fd);
struct fake_range *fake_range_new(enum fake_kind kind, size_t bytes, int fd, int gpu);
void fake_range_free(struct fake_range *r);
/* The range that begins there, or that it lies in; NULL. */
struct fake_range *fake_range_at(const void *memory);
struct fake_range *fake_range_of(const void *memory);
/* No range and no handle is left. */
void fake_driver_must_be_empty(void);
