/*
 * A thread has LANES lanes for each GPU that it has used.  It makes them at the first use and frees
 * them when it ends.  Threads of libuv's pool live as long as the process, so the last use of GPUs
 * frees lanes too.  A thread waits only for its own work, and takes a lock only for its first lane.
 */
#include "daemon/compute/device/gpu/core.h"

#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>

#include "proto/cleanup.h"
#include "proto/list.h"

struct thread {
        struct list link; /* threads */
        struct lane lanes[GPUS_MAX][LANES];
};

static pthread_key_t key;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct list threads = { &threads, &threads }; /* under the mutex */

static void thread_free(void *arg)
{
        struct thread *t = arg;

        pthread_mutex_lock(&mutex);
        list_remove(&t->link);
        pthread_mutex_unlock(&mutex);
        for (uint32_t gpu = 0; gpu < GPUS_MAX; gpu++)
                for (uint32_t i = 0; i < LANES; i++) {
                        struct lane *lane = &t->lanes[gpu][i];

                        if (lane->stream && gpu_use(gpu) == 0) {
                                gpu_plugin->stream_free(lane->stream);
                                gpu_plugin->pinned_free(lane->pinned);
                                gpu_plugin->free(lane->scratch);
                                gpu_plugin->free(lane->peers);
                        }
                }
        free(t);
}

int lanes_open(void)
{
        return -pthread_key_create(&key, thread_free);
}

void lanes_close(void)
{
        pthread_key_delete(key);
        list_for_each (&threads, item) {
                thread_free(CONTAINER_OF(item, struct thread, link));
        }
}

static struct thread *thread_get(uint32_t gpu)
{
        struct thread *t = pthread_getspecific(key);

        if (t)
                return t;
        t = calloc(1, sizeof *t);
        if (!t || pthread_setspecific(key, t))
                gpu_must(gpu, "out of memory of the host", -ENOMEM);
        pthread_mutex_lock(&mutex);
        list_insert(&threads, &t->link);
        pthread_mutex_unlock(&mutex);
        return t;
}

struct lane *lanes_of(uint32_t gpu)
{
        struct lane *lanes = thread_get(gpu)->lanes[gpu];

        gpu_must(gpu, "it cannot be used", gpu_use(gpu));
        for (uint32_t i = 0; i < LANES; i++)
                if (!lanes[i].stream)
                        gpu_must(gpu, "a stream cannot be made",
                                 gpu_plugin->stream_new(&lanes[i].stream));
        return lanes;
}

void lane_pin(uint32_t gpu, struct lane *lane)
{
        void *pinned;

        if (lane->pinned)
                return;
        gpu_must(gpu, "no pinned memory of the host", gpu_plugin->pinned_new(LANE_BYTES, &pinned));
        lane->pinned = pinned;
}

void lane_scratch(uint32_t gpu, struct lane *lane)
{
        if (!lane->scratch)
                gpu_must(gpu, "no memory for a norm",
                         gpu_plugin->alloc(LANE_SCRATCH, &lane->scratch));
}

void lane_peers(uint32_t gpu, struct lane *lane)
{
        void *peers;

        if (lane->peers)
                return;
        gpu_must(gpu, "no memory for what lies on another GPU",
                 gpu_plugin->alloc(LANE_PEERS, &peers));
        lane->peers = peers;
}

void lane_copy_peer(struct lane *lane, const struct move *m)
{
        lane->busy = true;
        gpu_must(m->to, "a copy from another GPU was refused",
                 gpu_plugin->copy_peer(m->dst, gpu_ordinal(m->to), m->src, gpu_ordinal(m->from),
                                       m->n, lane->stream));
}

void lane_wait(uint32_t gpu, struct lane *lane)
{
        if (lane->busy)
                gpu_must(gpu, "its work has failed", gpu_plugin->stream_wait(lane->stream));
        lane->busy = false;
}
