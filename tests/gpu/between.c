/*
 * Bytes among all GPUs by NCCL: each comes as it was, also to memory that is exported; what is
 * aborted leaves memory and GPUs usable.  One GPU is a communicator of one member.  Where there are
 * several, how long a broadcast takes by copies, against NCCL.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/gpu/gpu.h"

enum { GPUS_MAX = 64, ROUNDS = 15, LARGE = 64 << 20, LARGE_SMALL = 1 << 20, WAIT_S = 60 };

static struct gpu gpu;
static const struct zero_cuda_plugin *ops;
static uint32_t n_gpus;
static void *streams[GPUS_MAX];
static struct zero_cuda_share places[GPUS_MAX];
static uint8_t *wanted, *came;
static size_t large;

static double now(void)
{
        struct timespec t;

        clock_gettime(CLOCK_MONOTONIC, &t);
        return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void must_nccl(int r, const char *what)
{
        if (r < 0)
                die("%s: %s: %s", what, strerror(-r), ops->nccl_error());
}

static void *comm_new(void)
{
        int devices[GPUS_MAX];
        void *comm;

        for (uint32_t i = 0; i < n_gpus; i++)
                devices[i] = (int)i;
        must_nccl(ops->comm_new(devices, n_gpus, &comm), "a communicator");
        return comm;
}

static void wait_for(void *comm, const char *what)
{
        double until = now() + WAIT_S;
        int done;

        while ((done = ops->comm_done(comm, streams)) == 0)
                if (now() > until)
                        die("%s is not done in %d s", what, WAIT_S);
        must_nccl(done, what);
}

/* ---- bytes ---------------------------------------------------------------------------- */

static void move(uint32_t i, void *dst, const void *src, size_t n)
{
        must(ops->use((int)i), "use");
        must(ops->copy(dst, src, n, streams[i]), "copy");
        must(ops->stream_wait(streams[i]), "wait");
}

/* Every GPU's bytes are others. */
static void fill(size_t n, uint32_t seed)
{
        for (uint32_t i = 0; i < n_gpus; i++) {
                for (size_t k = 0; k < n; k++)
                        wanted[k] = (uint8_t)((k * 2654435761u >> 13) + 31 * i + seed);
                move(i, places[i].memory, wanted, n);
        }
}

/* Those that `from` was filled with, from there on, n of them. */
static void check(uint32_t i, size_t at, uint32_t from, size_t first, size_t n, uint32_t seed,
                  const char *what)
{
        move(i, came, (uint8_t *)places[i].memory + at, n);
        for (size_t k = 0; k < n; k++)
                if (came[k] != (uint8_t)(((first + k) * 2654435761u >> 13) + 31 * from + seed))
                        die("%s of %zu bytes: byte %zu of GPU %u is wrong", what, n, k, i);
}

static void broadcast(void *comm, uint32_t root, size_t n)
{
        void *dst[GPUS_MAX];

        for (uint32_t i = 0; i < n_gpus; i++)
                dst[i] = places[i].memory;
        must_nccl(ops->broadcast(comm, root, dst[root], dst, n, streams), "a broadcast");
        wait_for(comm, "a broadcast");
}

static void check_broadcasts(void *comm, size_t n)
{
        for (uint32_t root = 0; root < n_gpus; root++) {
                fill(n, root);
                broadcast(comm, root, n);
                for (uint32_t i = 0; i < n_gpus; i++)
                        check(i, 0, root, 0, n, root, "a broadcast");
        }
}

/* All to all: each GPU has a part for each other behind its own bytes. */
static void check_exchange(void *comm, size_t n)
{
        struct zero_cuda_move *moves = calloc(n_gpus * n_gpus, sizeof *moves);
        uint32_t n_moves = 0;

        if (!moves)
                die("out of memory");
        fill(n, 7);
        for (uint32_t to = 0; to < n_gpus; to++)
                for (uint32_t from = 0; from < n_gpus; from++)
                        if (to != from)
                                moves[n_moves++] =
                                        (struct zero_cuda_move){ (uint8_t *)places[to].memory +
                                                                         n * (1 + from),
                                                                 places[from].memory, n, to, from };
        must_nccl(ops->exchange(comm, moves, n_moves, streams), "an exchange");
        wait_for(comm, "an exchange");
        for (uint32_t i = 0; i < n_moves; i++)
                check(moves[i].to, n * (1 + moves[i].from), moves[i].from, 0, n, 7, "an exchange");
        free(moves);
}

/* ---- the end of one -------------------------------------------------------------------- */

static void check_abort(void)
{
        void *comm = comm_new(), *dst[GPUS_MAX];

        for (uint32_t i = 0; i < n_gpus; i++)
                dst[i] = places[i].memory;
        must_nccl(ops->broadcast(comm, 0, dst[0], dst, large, streams), "a broadcast");
        ops->comm_abort(comm);
        for (uint32_t i = 0; i < n_gpus; i++)
                must(ops->stream_wait(streams[i]), "a stream after an abort");
        comm = comm_new();
        check_broadcasts(comm, 1000);
        ops->comm_free(comm);
}

/* ---- how long ---------------------------------------------------------------------------- */

/* As the daemon copies: each round doubles those that have it. */
static void copy_to_all(size_t n)
{
        for (uint32_t have = 1; have < n_gpus; have *= 2) {
                for (uint32_t i = 0; i < have && have + i < n_gpus; i++) {
                        uint32_t to = have + i;

                        must(ops->use((int)to), "use");
                        must(ops->copy_peer(places[to].memory, (int)to, places[i].memory, (int)i, n,
                                            streams[to]),
                             "a copy between GPUs");
                }
                for (uint32_t i = 0; i < have && have + i < n_gpus; i++)
                        must(ops->stream_wait(streams[have + i]), "wait");
        }
}

static int compare(const void *a, const void *b)
{
        double x = *(const double *)a, y = *(const double *)b;

        return (x > y) - (x < y);
}

static void measure(void *comm)
{
        int rounds = gpu.small ? 3 : ROUNDS;
        double ratio[ROUNDS], nccl[ROUNDS], copies[ROUNDS], begin;

        broadcast(comm, 0, large);
        copy_to_all(large);
        for (int i = 0; i < rounds; i++) {
                begin = now();
                copy_to_all(large);
                copies[i] = now() - begin;
                begin = now();
                broadcast(comm, 0, large);
                nccl[i] = now() - begin;
                ratio[i] = copies[i] / nccl[i];
        }
        qsort(ratio, (size_t)rounds, sizeof ratio[0], compare);
        qsort(nccl, (size_t)rounds, sizeof nccl[0], compare);
        qsort(copies, (size_t)rounds, sizeof copies[0], compare);
        printf("{\"name\": \"broadcast by NCCL, against copies\", \"repeat\": %d, "
               "\"median_ratio\": %.4f, \"spread\": [%.4f, %.4f], \"nccl_ms\": %.3f, "
               "\"copies_ms\": %.3f, \"gpus\": %u, \"bytes\": %zu}\n",
               rounds, ratio[rounds / 2], ratio[rounds / 4], ratio[rounds - 1 - rounds / 4],
               1e3 * nccl[rounds / 2], 1e3 * copies[rounds / 2], n_gpus, large);
}

/* ---- in order ---------------------------------------------------------------------------- */

static void start(int argc, char *argv[])
{
        int count, version, r;

        gpu_load(argc, argv, &gpu);
        ops = gpu.ops;
        r = ops->nccl_open(&version);
        gpu_start(&gpu);
        if (r == -ENOENT) {
                printf("no NCCL here: %s\n", ops->nccl_error());
                exit(GPU_NONE);
        }
        must_nccl(r, "NCCL");
        must(ops->device_count(&count), "count of GPUs");
        n_gpus = count < GPUS_MAX ? (uint32_t)count : GPUS_MAX;
        printf("NCCL %d, %u GPUs\n", version, n_gpus);
        large = gpu.small ? LARGE_SMALL : LARGE;
        wanted = malloc(large);
        came = malloc(large);
        if (!wanted || !came)
                die("out of memory");
        for (uint32_t i = 0; i < n_gpus; i++) {
                must(ops->use((int)i), "use");
                must(ops->stream_new(&streams[i]), "stream");
                must(ops->share_new(large, &places[i]), "exported memory");
        }
}

int main(int argc, char *argv[])
{
        static const size_t sizes[] = { 1, 4099, 100000 };
        void *comm;

        start(argc, argv);
        comm = comm_new();
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
                check_broadcasts(comm, sizes[i]);
                if (n_gpus > 1)
                        check_exchange(comm, sizes[i] / (n_gpus + 1) + 1);
        }
        check_broadcasts(comm, large);
        if (n_gpus > 1)
                measure(comm);
        ops->comm_free(comm);
        check_abort();
        for (uint32_t i = 0; i < n_gpus; i++) {
                ops->stream_free(streams[i]);
                ops->share_free(&places[i]);
        }
        free(wanted);
        free(came);
        puts(n_gpus > 1 ? "all bytes came" : "all bytes came, to one GPU from itself");
        return 0;
}
