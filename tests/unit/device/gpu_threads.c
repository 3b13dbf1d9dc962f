/*
 * Many threads compute on GPU memory at once, while others allocate and free: each sees its own
 * bytes.  Without Criterion, so that it also runs under the thread sanitizer.
 */
#include <pthread.h>
#include <string.h>

#include "gpu_fixture.h"

enum { THREADS = 6, ROUNDS = 40, N = 200000 };

static void must(bool ok)
{
        if (!ok)
                abort();
}

static void fill(float *x, uint32_t seed)
{
        for (uint32_t i = 0; i < N; i++)
                x[i] = (float)((i * 2654435761u + seed) >> 12);
}

/* host -> GPU -> doubled in place with the host's operand -> host, checked. */
static void *compute(void *arg)
{
        uint32_t seed = (uint32_t)(uintptr_t)arg, gpu = seed % gpus_count();
        float *in = malloc(N * sizeof *in), *out = malloc(N * sizeof *out), *memory;
        const struct device_ops *ops = gpu_ops();
        struct fault fault;

        for (uint32_t round = 0; round < ROUNDS; round++) {
                must(gpu_alloc(gpu, N * sizeof *in, "a thread", (void **)&memory, &fault) == 0);
                fill(in, seed * 1000 + round);
                ops->copy(memory, in, N * sizeof *in);
                ops->accumulate(memory, ZERO_FP32, in, N, false);
                ops->copy(out, memory, N * sizeof *out);
                for (uint32_t i = 0; i < N; i++)
                        must(out[i] == in[i] + in[i]);
                must(gpu_of(memory) == (int)gpu && gpu_of(in) < 0);
                gpu_free(memory);
        }
        free(in);
        free(out);
        return NULL;
}

int main(void)
{
        pthread_t threads[THREADS];

        setenv("FAKE_GPUS", "2", 1);
        gpu_fixture_open();
        for (uint32_t i = 0; i < THREADS; i++)
                must(!pthread_create(&threads[i], NULL, compute, (void *)(uintptr_t)(i + 1)));
        for (uint32_t i = 0; i < THREADS; i++)
                pthread_join(threads[i], NULL);
        gpus_close();
        return 0;
}
