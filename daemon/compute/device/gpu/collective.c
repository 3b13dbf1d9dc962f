/*
 * Moves bytes between GPUs by NCCL.
 *
 * There is one communicator, made when it is first needed.  It is replaced by a larger one when
 * bytes go to or from a GPU that it lacks.  One thread at a time leads: it carries out everything
 * that all threads have asked for by then, as one NCCL group.  So the chunks of several owners go
 * at once, and all GPUs see the same order.  Threads that ask meanwhile wait; then one of them
 * leads.
 *
 * A failure or a missed deadline ends the use of NCCL until gpus_close().  It is logged, and the
 * threads that asked copy instead (false), with the same result.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/compute/device/gpu/core.h"
#include "daemon/floor/base/log.h"
#include "proto/cleanup.h"
#include "proto/list.h"
#include "proto/sure.h"

enum { SPIN_NS = 200000, PAUSE_NS = 20000, NS_PER_MS = 1000000 };

/* On the stack of the asking thread. */
struct request {
        struct list link;
        const struct move *moves; /* NULL: a broadcast */
        uint32_t n_moves;
        const struct peer *peers;
        uint32_t n_peers;
        size_t n;
        uint64_t gpus; /* bits of GPUs */
        enum { NOT_DONE, DONE } state;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
/* Under the mutex. */
static struct list requests = { &requests, &requests };
static bool led;
static struct gpu_collectives told;

/* Written before other threads ask, and after NCCL has failed. */
static _Atomic bool usable;
static bool always; /* for a single move, too, which NCCL does no better than a copy */
static uint32_t deadline_ms;

/* Belongs to the thread that leads. */
static struct {
        void *nccl; /* NULL: none yet */
        uint64_t gpus;
        uint32_t n, member[GPUS_MAX], gpu[GPUS_MAX]; /* gpu[member[i]] == i */
        void *streams[GPUS_MAX];                     /* [member] */
} comm;

static uint64_t now_ns(void)
{
        struct timespec t;

        clock_gettime(CLOCK_MONOTONIC, &t);
        return (uint64_t)t.tv_sec * 1000 * NS_PER_MS + (uint64_t)t.tv_nsec;
}

/* ---- the communicator ------------------------------------------------------------------ */

static void streams_free(void)
{
        for (uint32_t i = 0; i < comm.n; i++)
                if (comm.streams[i] && gpu_use(comm.gpu[i]) == 0)
                        gpu_plugin->stream_free(comm.streams[i]);
}

/* Call while nothing is in flight. */
static void comm_end(void)
{
        if (comm.nccl)
                gpu_plugin->comm_free(comm.nccl);
        streams_free();
        memset(&comm, 0, sizeof comm);
}

/* Afterwards NCCL writes to no memory, so copies may. */
static void comm_break(void)
{
        if (comm.nccl)
                gpu_plugin->comm_abort(comm.nccl);
        for (uint32_t i = 0; i < comm.n; i++)
                if (comm.streams[i])
                        gpu_must(comm.gpu[i], "what NCCL had begun cannot be ended",
                                 gpu_plugin->stream_wait(comm.streams[i]));
        streams_free();
        memset(&comm, 0, sizeof comm);
}

static int comm_make(uint64_t gpus)
{
        int ordinals[GPUS_MAX], r = 0;

        comm_end();
        for (uint32_t i = 0; i < gpus_count() && r == 0; i++) {
                if (!(gpus >> i & 1))
                        continue;
                ordinals[comm.n] = gpu_ordinal(i);
                comm.member[i] = comm.n;
                comm.gpu[comm.n] = i;
                r = gpu_use(i);
                if (r == 0)
                        r = gpu_plugin->stream_new(&comm.streams[comm.n]);
                gpu_must(i, "a stream cannot be made", r);
                comm.n++;
        }
        comm.gpus = gpus;
        return gpu_plugin->comm_new(ordinals, comm.n, &comm.nccl);
}

/* Makes sure that the communicator has these GPUs. */
static int comm_for(uint64_t gpus)
{
        if (comm.nccl && (gpus & ~comm.gpus) == 0)
                return 0;
        return comm_make(gpus | comm.gpus);
}

/* ---- in one go --------------------------------------------------------------------- */

static int enqueue_moves(const struct list *batch)
{
        CLEANUP(cleanup_free) struct zero_cuda_move *moves = NULL;
        uint32_t n = 0;

        list_for_each (batch, item)
                n += CONTAINER_OF(item, struct request, link)->n_moves;
        if (n == 0)
                return 0;
        moves = sure_realloc(NULL, n * sizeof *moves);
        n = 0;
        list_for_each (batch, item) {
                const struct request *q = CONTAINER_OF(item, struct request, link);

                for (uint32_t i = 0; i < q->n_moves; i++) {
                        const struct move *m = &q->moves[i];

                        moves[n++] =
                                (struct zero_cuda_move){ m->dst, m->src, m->n, comm.member[m->to],
                                                         comm.member[m->from] };
                }
        }
        return gpu_plugin->exchange(comm.nccl, moves, n, comm.streams);
}

/* All members take part. */
static int enqueue_broadcast(const struct request *q)
{
        uint32_t root = comm.member[q->peers[0].gpu];
        void *dst[GPUS_MAX];

        for (uint32_t i = 0; i < q->n_peers; i++)
                dst[comm.member[q->peers[i].gpu]] = q->peers[i].memory;
        return gpu_plugin->broadcast(comm.nccl, root, dst[root], dst, q->n, comm.streams);
}

static int wait_done(void)
{
        uint64_t begin = now_ns(), waited;
        int done;

        while ((done = gpu_plugin->comm_done(comm.nccl, comm.streams)) == 0) {
                waited = now_ns() - begin;
                if (waited > (uint64_t)deadline_ms * NS_PER_MS)
                        return -ETIMEDOUT;
                if (waited < SPIN_NS)
                        sched_yield();
                else
                        nanosleep(&(struct timespec){ .tv_nsec = PAUSE_NS }, NULL);
        }
        return done < 0 ? done : 0;
}

static void give_up(const char *what, int r)
{
        char why[sizeof told.why];

        if (r == -ETIMEDOUT)
                snprintf(why, sizeof why, "%s was not done in %u ms", what, deadline_ms);
        else
                snprintf(why, sizeof why, "%s: %.300s", what, gpu_plugin->nccl_error());
        comm_break();
        usable = false;
        pthread_mutex_lock(&mutex);
        told.nccl = false;
        memcpy(told.why, why, sizeof why);
        pthread_mutex_unlock(&mutex);
        log_warning("NCCL: %s; from here on bytes are copied from GPU to GPU", why);
}

static int enqueue(struct list *batch, const char **ret_what)
{
        int r;

        *ret_what = "an exchange";
        r = enqueue_moves(batch);
        list_for_each (batch, item) {
                struct request *q = CONTAINER_OF(item, struct request, link);

                if (r < 0)
                        break;
                q->state = q->moves || q->gpus == comm.gpus ? DONE : NOT_DONE;
                if (q->moves || q->state == NOT_DONE)
                        continue;
                *ret_what = "a broadcast";
                r = enqueue_broadcast(q);
        }
        return r;
}

/* false: the result does not count. */
static bool batch_run(struct list *batch)
{
        const char *what = "the communicator";
        uint64_t gpus = 0;
        int r;

        list_for_each (batch, item)
                gpus |= CONTAINER_OF(item, struct request, link)->gpus;
        r = comm_for(gpus);
        if (r == 0)
                r = enqueue(batch, &what);
        if (r == 0) {
                what = "what was enqueued";
                r = wait_done();
        }
        if (r < 0)
                give_up(what, r);
        return r == 0;
}

/* ---- who leads ------------------------------------------------------------------- */

/* The caller holds the mutex, which this releases meanwhile. */
static void lead(void)
{
        struct list batch = requests;
        bool done;

        /* from here on the list has another head */
        batch.next->prev = batch.prev->next = &batch;
        list_init(&requests);
        led = true;
        pthread_mutex_unlock(&mutex);
        done = usable && batch_run(&batch);
        pthread_mutex_lock(&mutex);
        list_for_each (&batch, item) {
                struct request *q = CONTAINER_OF(item, struct request, link);

                list_remove(item);
                if (!done)
                        q->state = NOT_DONE;
                told.moves += q->state == DONE ? q->n_moves + (q->n_peers > 0) : 0;
        }
        led = false;
        pthread_cond_broadcast(&changed);
}

static bool ask(struct request *q)
{
        pthread_mutex_lock(&mutex);
        list_insert(&requests, &q->link);
        while (!list_empty(&q->link)) {
                if (led)
                        pthread_cond_wait(&changed, &mutex);
                else
                        lead();
        }
        pthread_mutex_unlock(&mutex);
        return q->state == DONE;
}

bool collective_exchange(const struct move *moves, uint32_t n_moves)
{
        struct request q = { .moves = moves, .n_moves = n_moves };

        if (!usable || n_moves < (always ? 1 : 2))
                return false;
        for (uint32_t i = 0; i < n_moves; i++)
                q.gpus |= UINT64_C(1) << moves[i].to | UINT64_C(1) << moves[i].from;
        return ask(&q);
}

bool collective_broadcast(const struct peer *peers, uint32_t n_peers, size_t n)
{
        struct request q = { .peers = peers, .n_peers = n_peers, .n = n };

        if (!usable || n_peers < (always ? 2 : 3))
                return false;
        for (uint32_t i = 0; i < n_peers; i++)
                q.gpus |= UINT64_C(1) << peers[i].gpu;
        return ask(&q);
}

/* ---- opened and closed ----------------------------------------------------------------- */

/* Makes a communicator of all GPUs, so that a failure shows before anybody relies on it. */
static int make_now(struct fault *fault)
{
        uint64_t all = 0;
        int r = 0;

        for (uint32_t i = 0; i < gpus_count() && r == 0; i++) {
                all |= UINT64_C(1) << i;
                r = gpu_usable(i, fault);
        }
        if (r || comm_for(all) == 0)
                return r;
        fault_set(fault, ZERO_EGPU,
                  "gpu_collectives = nccl: there can be no communicator: %.300s; the option's "
                  "default copies then",
                  gpu_plugin->nccl_error());
        comm_break();
        return ZERO_EGPU;
}

int gpu_collectives_open(enum gpu_collectives_by by, uint32_t deadline, struct fault *fault)
{
        int r;

        memset(&told, 0, sizeof told);
        deadline_ms = deadline;
        always = by == GPU_BY_NCCL;
        if (by == GPU_BY_COPIES || gpus_count() < 2)
                return 0;
        r = gpu_plugin->nccl_open(&told.version);
        if (r < 0 && always)
                return fault_set(fault, ZERO_EGPU,
                                 "gpu_collectives = nccl: %.300s: install NCCL, or name its "
                                 "directory in LD_LIBRARY_PATH",
                                 gpu_plugin->nccl_error());
        if (r < 0) {
                snprintf(told.why, sizeof told.why, "%.300s", gpu_plugin->nccl_error());
                log_info("no NCCL, bytes are copied from GPU to GPU: %s", told.why);
                return 0;
        }
        if (always && (r = make_now(fault)))
                return r;
        told.nccl = true;
        usable = true;
        return 0;
}

void gpu_collectives(struct gpu_collectives *ret)
{
        pthread_mutex_lock(&mutex);
        *ret = told;
        pthread_mutex_unlock(&mutex);
}

void collective_close(void)
{
        comm_end();
        usable = false;
}
