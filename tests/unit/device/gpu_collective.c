/*
 * The same bytes to several GPUs, and sums of data on several GPUs, give the same bits by every way
 * between GPUs, even when NCCL fails halfway.  Each owner has a thread. Without Criterion, so that
 * it also runs under the thread sanitizer.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "gpu_fixture.h"

/* N: more than comes in one round. */
enum { GPUS = 4, RANKS = 9, N = 3000017, DEADLINE_MS = 60000, HANGS_MS = 50 };

static const struct way {
        const char *name, *variable, *value; /* of the fake plugin */
        enum gpu_collectives_by by;
        bool nccl; /* to the end */
        const char *why;
        uint32_t deadline_ms;
} ways[] = {
        { "copies", NULL, NULL, GPU_BY_COPIES, false, "" },
        { "auto", NULL, NULL, GPU_BY_AUTO, true, "" },
        { "nccl", NULL, NULL, GPU_BY_NCCL, true, "" },
        { "no_nccl", "FAKE_GPU_NCCL_NONE", "1", GPU_BY_AUTO, false, "libnccl.so.2" },
        { "no_communicator", "FAKE_GPU_NCCL_REFUSED", "1", GPU_BY_AUTO, false, "the communicator" },
        { "first_fails", "FAKE_GPU_NCCL_FAILS", "1", GPU_BY_AUTO, false, "refused" },
        { "fails", "FAKE_GPU_NCCL_FAILS", "4", GPU_BY_NCCL, false, "refused" },
        { "breaks", "FAKE_GPU_NCCL_BREAKS", "4", GPU_BY_AUTO, false, "a member" },
        { "hangs", "FAKE_GPU_NCCL_HANGS", "4", GPU_BY_AUTO, false, "not done in", HANGS_MS },
};

static uint16_t *pushed[RANKS]; /* on GPUs, one in host memory */
static float *wanted;
static const struct way *way;

static void must(bool ok, const char *what)
{
        if (ok)
                return;
        fprintf(stderr, "%s: %s\n", way ? way->name : "begin", what);
        abort();
}

static void *gpu_new(uint32_t gpu, size_t bytes)
{
        struct fault fault;
        void *memory;

        must(gpu_alloc(gpu, bytes, "a test", &memory, &fault) == 0, "memory");
        return memory;
}

/* ---- sums ------------------------------------------------------------------------- */

static void fill(uint16_t *bf16, uint32_t rank)
{
        for (uint32_t i = 0; i < N; i++)
                bf16[i] = (uint16_t)(0x3f00 + ((i * 2654435761u + rank * 40503u) >> 23));
}

/* By the host alone. */
static void sum_wanted(void)
{
        uint16_t *host[RANKS];

        for (uint32_t rank = 0; rank < RANKS; rank++) {
                host[rank] = malloc(N * sizeof *host[rank]);
                fill(host[rank], rank);
        }
        wanted = malloc(N * sizeof *wanted);
        device_host("scalar")->sum(ZERO_FP32, wanted, ZERO_BF16, (const void *const *)host, RANKS,
                                   N);
        for (uint32_t rank = 0; rank < RANKS; rank++)
                free(host[rank]);
}

static void push_all(void)
{
        uint16_t *host = malloc(N * sizeof *host);

        for (uint32_t rank = 0; rank < RANKS; rank++) {
                fill(host, rank);
                pushed[rank] = rank == 0 ? malloc(N * sizeof *host)
                                         : gpu_new(rank % GPUS, N * sizeof *host);
                gpu_ops()->copy(pushed[rank], host, N * sizeof *host);
        }
        free(host);
}

static void *own(void *arg)
{
        uint32_t gpu = (uint32_t)(uintptr_t)arg;
        size_t part = N / GPUS, first = gpu * part;
        float *acc = gpu_new(gpu, part * sizeof *acc), *came = malloc(part * sizeof *came);
        const void *src[RANKS];

        for (uint32_t rank = 0; rank < RANKS; rank++)
                src[rank] = pushed[rank] + first;
        gpu_ops()->reduce(&(struct reduce_piece){ acc, part, RANKS, src, true }, 1, ZERO_FP32,
                          ZERO_BF16, 0, NULL, NULL);
        gpu_ops()->copy(came, acc, part * sizeof *came);
        must(memcmp(came, wanted + first, part * sizeof *came) == 0, "a sum has other bits");
        gpu_free(acc);
        free(came);
        return NULL;
}

static void sum_by_all(void)
{
        pthread_t threads[GPUS];

        for (uint32_t i = 0; i < GPUS; i++)
                must(!pthread_create(&threads[i], NULL, own, (void *)(uintptr_t)i), "a thread");
        for (uint32_t i = 0; i < GPUS; i++)
                pthread_join(threads[i], NULL);
}

/* ---- the same to several -------------------------------------------------------------- */

/* To the first n GPUs, so that the communicator grows. */
static void spread(uint32_t n)
{
        uint16_t *host = malloc(N * sizeof *host), *came = malloc(N * sizeof *came);
        void *places[GPUS], *dst[GPUS];

        fill(host, n);
        for (uint32_t i = 0; i < n; i++)
                places[i] = dst[i] = gpu_new(i, N * sizeof *host);
        gpu_ops()->copy(places[0], host, N * sizeof *host);
        gpu_spread(dst + 1, n - 1, places[0], N * sizeof *host);
        for (uint32_t i = 0; i < n; i++) {
                gpu_ops()->copy(came, places[i], N * sizeof *came);
                must(memcmp(came, host, N * sizeof *came) == 0, "a place has other bytes");
                gpu_free(places[i]);
        }
        free(host);
        free(came);
}

/* ---- ways ----------------------------------------------------------------------------- */

static void try_way(void)
{
        struct gpu_collectives told;
        struct fault fault;

        gpu_fixture_open();
        must(gpu_collectives_open(way->by, way->deadline_ms ? way->deadline_ms : DEADLINE_MS,
                                  &fault) == 0,
             "it cannot be opened");
        push_all();
        for (uint32_t n = 2; n <= GPUS; n++)
                spread(n);
        sum_by_all();
        spread(GPUS - 1); /* fewer than the communicator has */
        gpu_collectives(&told);
        must(told.nccl == way->nccl, "it goes the other way in the end");
        must(way->why[0] ? strstr(told.why, way->why) != NULL : !told.why[0], told.why);
        must(!way->nccl || told.moves > GPUS, "NCCL was not used");
        must(way->by != GPU_BY_COPIES || told.moves == 0, "NCCL was used");
        for (uint32_t rank = 1; rank < RANKS; rank++)
                gpu_free(pushed[rank]);
        free(pushed[0]);
        gpus_close();
}

static void refused(const char *variable, const char *value, const char *why)
{
        struct fault fault;

        setenv(variable, value, 1);
        gpu_fixture_open();
        must(gpu_collectives_open(GPU_BY_NCCL, DEADLINE_MS, &fault) == ZERO_EGPU &&
                     strstr(fault.text, why),
             "NCCL that cannot be was not refused");
        gpus_close();
        unsetenv(variable);
}

/* The fake counts calls while it is loaded, so each way runs in a process of its own, by name.
 */
int main(int argc, char *argv[])
{
        char busy[12];

        setenv("FAKE_GPUS", "4", 1);
        for (size_t i = 0; argc == 2 && i < sizeof ways / sizeof ways[0]; i++)
                if (strcmp(ways[i].name, argv[1]) == 0)
                        way = &ways[i];
        must(way, "which way?");
        sum_wanted();
        if (way->variable)
                setenv(way->variable, way->value, 1);
        try_way();
        if (way->variable)
                unsetenv(way->variable);
        refused("FAKE_GPU_NCCL_NONE", "1", "gpu_collectives = nccl: ");
        refused("FAKE_GPU_NCCL_REFUSED", "1", "there can be no communicator");
        snprintf(busy, sizeof busy, "%d", EBUSY);
        refused("FAKE_GPU_USE", busy, "compute mode");
        setenv("FAKE_GPUS", "1", 1);
        gpu_fixture_open();
        must(gpu_collectives_open(GPU_BY_NCCL, DEADLINE_MS, &(struct fault){ 0 }) == 0,
             "one GPU needs no NCCL");
        gpus_close();
        free(wanted);
        return 0;
}
