/*
 * CUDA's runtime and the driver's memory management over host memory, as far as the C files of
 * cuda/ use them.  Tests see without a GPU what these files ask for, and in which order.
 *
 * Strict: a call that the documentation forbids or leaves undefined fails the test at once.  So
 * does a call that CUDA allows but the plugin must not make, such as freeing memory while work on
 * the memory is in progress.  A thread without a context gets the first GPU's when it makes a call
 * that needs one, as in CUDA.  Processes are not told apart: a handle may be opened where it was
 * made.
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
        int calls;              /* calls so far that can fail */
        int fail_at, fail_with; /* the number of the call that fails, and its status; 0: none */
        bool failed;            /* a call has failed */
        bool no_descriptors;    /* memory is not exported by descriptor */
        bool all_writable;      /* no memory is mapped for reading alone */
        bool no_handles;        /* memory is not exported by legacy handle */
        bool rdma;              /* network cards reach memory that is exported */
        bool no_attributes;     /* the driver knows none of those that it is asked for */
        bool old_driver;        /* it has no entry points to look up */
        bool no_events;         /* no event can be shared with another process */
        bool no_event_handles;  /* the same, but only the handle is refused */
        bool event_pending;     /* the work of events is not done */
        int sticky;             /* every wait for a GPU returns this status */
        unsigned begun;         /* bits of GPUs that have a context */
        int begins;             /* calls of cudaInitDevice() */
};

extern struct fake_runtime fake;

/* The calling thread's GPU. */
int fake_current(void);
void fake_set_current(int gpu);
/* Whether work on the GPU is enqueued that nobody has waited for. */
void fake_enqueue(int gpu);
/* Checks that everything that was made is gone. */
void fake_must_be_empty(void);

/* ---- between fake_runtime.c and fake_driver.c ---------------------------------- */

enum fake_kind { NONE, RESERVED, MAPPED, ACCESSIBLE, ALLOCATED, OPENED, HOST };

struct fake_range {
        enum fake_kind kind;
        uintptr_t at;
        size_t bytes;
        int fd, gpu;
};

/* Returns the status of the next call that can fail. */
int fake_next(void);
/* The GPU of a call that works on the thread's GPU. */
int fake_in_use(void);
bool fake_initialised(void);
bool fake_is_enqueued(int gpu);

/* A descriptor of the memory itself. */
int fake_memory_new(size_t bytes, int gpu);
size_t fake_memory_bytes(int fd);
struct fake_range *fake_range_new(enum fake_kind kind, size_t bytes, int fd, int gpu);
void fake_range_free(struct fake_range *r);
/* The range that begins at the address, or that contains it; NULL: none. */
struct fake_range *fake_range_at(const void *memory);
struct fake_range *fake_range_of(const void *memory);
/* Checks that no range and no handle is left. */
void fake_driver_must_be_empty(void);
