/*
 * Host buffers for bytes in transit to and from GPUs.
 *
 * Pinning takes long.  So a chore pins ahead of need, whenever no pinned buffer is left; until it
 * is done, buffers are ordinary memory.  Pinned memory is kept for the next buffer, until
 * gpus_close().
 *
 * gpu_ops() asks of every operand in host memory if it is pinned, from any thread and without a
 * lock.  So a place of the table is written once.
 */
#include "daemon/compute/device/gpu/core.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>

#include "daemon/floor/base/buffer.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(uint8_t *) places[GPU_BUFFERS]; /* pinned; the first n */
static uint32_t n, n_used;                     /* under the mutex, as are those below */
static bool used[GPU_BUFFERS];
static bool pinning; /* a chore is on its way */
static bool refused; /* the driver pins no more */

/* The index of a buffer; GPU_BUFFERS: it has none. */
static uint32_t index_of(const void *memory)
{
        uint32_t i = 0;

        for (; i < GPU_BUFFERS; i++) {
                const uint8_t *p = atomic_load_explicit(&places[i], memory_order_acquire);

                if (!p)
                        return GPU_BUFFERS;
                if ((const uint8_t *)memory >= p && (const uint8_t *)memory < p + GPU_BUFFER)
                        return i;
        }
        return i;
}

bool gpu_is_pinned(const void *memory)
{
        return index_of(memory) < GPU_BUFFERS;
}

static void pin(struct gpu_chore *chore)
{
        void *memory = NULL;
        bool ok = gpu_use(0) == 0 && gpu_plugin->pinned_new(GPU_BUFFER, &memory) == 0;

        pthread_mutex_lock(&mutex);
        if (ok)
                atomic_store_explicit(&places[n++], memory, memory_order_release);
        refused = !ok;
        pinning = false;
        pthread_mutex_unlock(&mutex);
}

static struct gpu_chore chore = { .run = pin };

/* The caller holds the mutex.  Pins for the next buffer. */
static void pin_ahead(void)
{
        if (n_used < n || n == GPU_BUFFERS || pinning || refused)
                return;
        pinning = true;
        gpu_chore(&chore);
}

/* The caller holds the mutex.  NULL: none. */
static void *take(void)
{
        for (uint32_t i = 0; i < n; i++)
                if (!used[i]) {
                        used[i] = true;
                        n_used++;
                        return places[i];
                }
        return NULL;
}

void *gpu_buffer_new(size_t bytes)
{
        void *memory = NULL;

        if (gpu_plugin && bytes <= GPU_BUFFER) {
                pthread_mutex_lock(&mutex);
                memory = take();
                pin_ahead();
                pthread_mutex_unlock(&mutex);
        }
        return memory ? memory : buffer_new(bytes);
}

void gpu_buffer_free(void *buffer)
{
        uint32_t i = buffer ? index_of(buffer) : GPU_BUFFERS;

        if (i == GPU_BUFFERS) {
                buffer_free(buffer);
                return;
        }
        pthread_mutex_lock(&mutex);
        assert(used[i]);
        used[i] = false;
        n_used--;
        pthread_mutex_unlock(&mutex);
}

void gpu_buffers_close(void)
{
        if (n > 0)
                (void)gpu_use(0); /* as pin(): this thread may have used no GPU yet */
        for (uint32_t i = 0; i < n; i++) {
                assert(!used[i]);
                gpu_plugin->pinned_free(places[i]);
                atomic_store(&places[i], NULL);
        }
        n = 0;
        refused = false;
}
