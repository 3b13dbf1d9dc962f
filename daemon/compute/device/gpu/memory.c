/*
 * GPU memory of this process: allocated, named, and found again by address.
 *
 * Memory that is given back is forgotten at once, and a chore frees it, because the driver waits
 * for the GPU then.  It counts as free: an allocation that finds no memory waits for the chore.
 *
 * All compute threads call gpu_of() for every operand of every operation, so it takes no lock.  It
 * reads the table of ranges as it is.  `changes` is odd during a change, and a result counts only
 * if `changes` was the same even number before and after.
 */
#include "daemon/compute/device/gpu/core.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"

enum { WHAT_MAX = 120, NOBODY = -1 };

struct given {
        struct gpu_chore chore; /* frees it */
        bool shared;
        uint32_t gpu;
        struct zero_cuda_share share; /* only `memory`, unless shared */
        char what[WHAT_MAX + 1];
};

struct range {
        _Atomic uintptr_t begin, end;
        _Atomic int gpu;
        struct given *given; /* this and the next one: under the mutex */
        int64_t user;        /* who is charged; or NOBODY */
};

/* Sorted by address.  A table that became too small stays until gpus_close(), because somebody
 * may be reading it. */
struct table {
        struct table *smaller;
        uint32_t capacity;
        _Atomic uint32_t n;
        struct range ranges[];
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* for changes */
static _Atomic(struct table *) table;
static _Atomic uint32_t changes;

/* ---- where an address lies --------------------------------------------------- */

/* Ranges of t that begin at or below the address. */
static uint32_t ranges_below(struct table *t, uint32_t n, uintptr_t address)
{
        uint32_t low = 0, high = n;

        while (low < high) {
                uint32_t middle = (low + high) / 2;

                if (atomic_load_explicit(&t->ranges[middle].begin, memory_order_acquire) <= address)
                        low = middle + 1;
                else
                        high = middle;
        }
        return low;
}

static int find(struct table *t, uintptr_t address)
{
        uint32_t n = atomic_load_explicit(&t->n, memory_order_acquire);
        uint32_t below = ranges_below(t, n < t->capacity ? n : t->capacity, address);
        struct range *r = &t->ranges[below ? below - 1 : 0];

        if (below == 0 || atomic_load_explicit(&r->end, memory_order_acquire) <= address)
                return GPU_NONE;
        return atomic_load_explicit(&r->gpu, memory_order_acquire);
}

int gpu_of(const void *memory)
{
        for (;;) {
                uint32_t before = atomic_load_explicit(&changes, memory_order_acquire);
                struct table *t = atomic_load_explicit(&table, memory_order_acquire);
                int gpu = t ? find(t, (uintptr_t)memory) : GPU_NONE;

                /* every load above acquires, so this one comes after them */
                if (before % 2 == 0 &&
                    atomic_load_explicit(&changes, memory_order_relaxed) == before)
                        return gpu;
        }
}

/* ---- changes of the table, with the mutex -------------------------------------- */

static void change_begin(void)
{
        atomic_store_explicit(&changes, changes + 1, memory_order_relaxed);
}

static void change_end(void)
{
        atomic_store_explicit(&changes, changes + 1, memory_order_release);
}

/* Release stores, so they come after change_begin()'s. */
static void range_move(struct range *to, struct range *from)
{
        atomic_store_explicit(&to->begin, from->begin, memory_order_release);
        atomic_store_explicit(&to->end, from->end, memory_order_release);
        atomic_store_explicit(&to->gpu, from->gpu, memory_order_release);
        to->given = from->given;
        to->user = from->user;
}

/* Makes room for one more; -ENOMEM. */
static int table_grow(void)
{
        struct table *old = table, *new;
        uint32_t n = old ? old->n : 0, capacity = old ? 2 * old->capacity : 64;

        if (old && n < old->capacity)
                return 0;
        new = calloc(1, sizeof *new + capacity * sizeof new->ranges[0]);
        if (!new)
                return -ENOMEM;
        new->smaller = old;
        new->capacity = capacity;
        new->n = n;
        for (uint32_t i = 0; i < n; i++)
                range_move(&new->ranges[i], &old->ranges[i]);
        atomic_store_explicit(&table, new, memory_order_release);
        return 0;
}

static int range_add(struct given *given)
{
        uintptr_t begin = (uintptr_t)given->share.memory;
        struct range new = { begin, begin + given->share.bytes, (int)given->gpu, given, NOBODY };
        struct table *t;
        uint32_t at;
        int r;

        pthread_mutex_lock(&mutex);
        r = table_grow();
        if (r == 0) {
                t = table;
                at = ranges_below(t, t->n, new.begin);
                change_begin();
                for (uint32_t i = t->n; i > at; i--)
                        range_move(&t->ranges[i], &t->ranges[i - 1]);
                range_move(&t->ranges[at], &new);
                atomic_store_explicit(&t->n, t->n + 1, memory_order_release);
                change_end();
        }
        pthread_mutex_unlock(&mutex);
        return r;
}

static struct given *range_remove(const void *memory)
{
        struct given *given;
        struct table *t;
        uint32_t at;

        pthread_mutex_lock(&mutex);
        t = table;
        at = t ? ranges_below(t, t->n, (uintptr_t)memory) : 0;
        assert(at > 0 && t->ranges[at - 1].begin == (uintptr_t)memory); /* it was given out */
        given = t->ranges[at - 1].given;
        change_begin();
        for (uint32_t i = at; i < t->n; i++)
                range_move(&t->ranges[i - 1], &t->ranges[i]);
        atomic_store_explicit(&t->n, t->n - 1, memory_order_release);
        change_end();
        pthread_mutex_unlock(&mutex);
        return given;
}

bool gpu_memory_empty(void)
{
        return !table || table->n == 0;
}

void gpu_memory_reset(void)
{
        for (struct table *t = table, *smaller; t; t = smaller) {
                smaller = t->smaller;
                free(t);
        }
        table = NULL;
}

void gpu_each(uint32_t gpu, void (*each)(void *arg, const char *what, uint64_t bytes), void *arg)
{
        struct table *t;

        pthread_mutex_lock(&mutex);
        t = table;
        for (uint32_t i = 0; t && i < t->n; i++)
                if (t->ranges[i].gpu == (int)gpu)
                        each(arg, t->ranges[i].given->what, t->ranges[i].end - t->ranges[i].begin);
        pthread_mutex_unlock(&mutex);
}

void place_charge(const void *memory, uint32_t user)
{
        struct range *r;

        pthread_mutex_lock(&mutex);
        r = &table->ranges[ranges_below(table, table->n, (uintptr_t)memory) - 1];
        assert(r->begin == (uintptr_t)memory); /* it was given out */
        r->user = user;
        pthread_mutex_unlock(&mutex);
}

uint64_t place_charged(uint32_t place, uint32_t user)
{
        uint64_t bytes = 0;
        struct table *t;

        pthread_mutex_lock(&mutex);
        t = table;
        for (uint32_t i = 0; t && i < t->n; i++)
                if (t->ranges[i].gpu == (int)place_gpu(place) && t->ranges[i].user == user)
                        bytes += t->ranges[i].end - t->ranges[i].begin;
        pthread_mutex_unlock(&mutex);
        return bytes;
}

/* ---- memory -------------------------------------------------------------------- */

int gpu_memory(uint32_t gpu, uint64_t *ret_free, uint64_t *ret_total)
{
        int r = gpu_use(gpu);

        gpu_chores_wait();
        return r ? r : gpu_plugin->memory(ret_free, ret_total);
}

static int refuse(const struct given *g, struct fault *fault)
{
        uint64_t left = 0, total = 0;

        gpu_memory(g->gpu, &left, &total);
        return fault_set(fault, ZERO_ENOMEM,
                         "GPU %u (%s) has not the memory for %.200s: %.1f MiB are needed, %.1f of "
                         "its %.1f MiB are free",
                         g->gpu, gpu_info(g->gpu)->name, g->what, (double)g->share.bytes / 0x1p20,
                         (double)left / 0x1p20, (double)total / 0x1p20);
}

/* The GPU must be selected. */
static int driver_gives(struct given *g)
{
        uint64_t bytes = g->share.bytes;

        return g->shared ? gpu_plugin->share_new(bytes, &g->share)
                         : gpu_plugin->alloc(bytes, &g->share.memory);
}

static void given_free(struct given *g)
{
        gpu_must(g->gpu, "memory cannot be freed", gpu_use(g->gpu));
        if (g->shared)
                gpu_plugin->share_free(&g->share);
        else
                gpu_plugin->free(g->share.memory);
        free(g);
}

static void run_free(struct gpu_chore *chore)
{
        given_free(CONTAINER_OF(chore, struct given, chore));
}

static struct given *given_alloc(uint32_t gpu, uint64_t bytes, const char *what, bool shared)
{
        struct given *g = calloc(1, sizeof *g);

        assert(bytes > 0);
        if (!g)
                return NULL;
        g->chore.run = run_free;
        g->gpu = gpu;
        g->shared = shared;
        g->share.bytes = bytes;
        g->share.fd = -1;
        snprintf(g->what, sizeof g->what, "%s", what);
        return g;
}

/* For both kinds of memory. */
static int given_new(uint32_t gpu, uint64_t bytes, const char *what, bool shared,
                     const struct given **ret, struct fault *fault)
{
        CLEANUP(cleanup_free) struct given *g = given_alloc(gpu, bytes, what, shared);
        int r = gpu_usable(gpu, fault);

        if (r)
                return r;
        r = g ? driver_gives(g) : 0;
        if (r == -ENOMEM) { /* waits until what was given back is free */
                gpu_chores_wait();
                r = driver_gives(g);
        }
        if (r == -ENOMEM)
                return refuse(g, fault);
        if (r == -ENOTSUP)
                return fault_set(
                        fault, ZERO_EGPU,
                        "the driver of GPU %u (%s) shares memory with no other process, as "
                        "in some containers: keep windows and states in host memory",
                        gpu, gpu_info(gpu)->name);
        gpu_must(gpu, "memory cannot be allocated", r);
        if (g && range_add(g) == 0) {
                *ret = STEAL(g);
                return 0;
        }
        if (g)
                given_free(STEAL(g));
        return fault_set(fault, ZERO_ENOMEM, "out of memory");
}

int gpu_alloc(uint32_t gpu, uint64_t bytes, const char *what, void **ret, struct fault *fault)
{
        const struct given *g;
        int r = given_new(gpu, bytes, what, false, &g, fault);

        if (r == 0)
                *ret = g->share.memory;
        return r;
}

int gpu_share(uint32_t gpu, uint64_t bytes, const char *what, struct zero_cuda_share *ret,
              struct fault *fault)
{
        const struct given *g;
        int r = given_new(gpu, bytes, what, true, &g, fault);

        if (r == 0)
                *ret = g->share;
        return r;
}

void gpu_free(void *memory)
{
        if (memory)
                gpu_chore(&range_remove(memory)->chore);
}

void gpu_unshare(struct zero_cuda_share *share)
{
        gpu_free(share->memory);
        *share = (struct zero_cuda_share){ .fd = -1 };
}
