/* The plugin's tables, and memory on both sides. */
#include "tests/gpu/gpu.h"

#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/dtype.h"

enum { MARGIN = 256, CANARY = 0xa5 };

void die(const char *format, ...)
{
        va_list args;

        va_start(args, format);
        vfprintf(stderr, format, args);
        va_end(args);
        fputc('\n', stderr);
        exit(EXIT_FAILURE);
}

void must(int r, const char *what)
{
        if (r < 0)
                die("%s: %s", what, strerror(-r));
}

void gpu_load(int argc, char *argv[], struct gpu *ret_gpu)
{
        bool small = argc == 3 && strcmp(argv[2], "--small") == 0;
        bool quick = small || (argc == 3 && strcmp(argv[2], "--quick") == 0);
        void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
        zero_cuda_plugin_fn *get;
        zero_gpu_fn *get_client;

        if (argc < 2 || (argc > 2 && !quick))
                die("usage: %s PLUGIN [--quick | --small]", argv[0]);
        if (!library)
                die("%s", dlerror());
        *(void **)&get = dlsym(library, ZERO_CUDA_PLUGIN_SYMBOL);
        *(void **)&get_client = dlsym(library, ZERO_GPU_SYMBOL);
        if (!get || !get_client)
                die("%s is no plugin of zerod's", argv[1]);
        *ret_gpu = (struct gpu){ .ops = get(), .client = get_client() };
        ret_gpu->quick = quick;
        ret_gpu->small = small;
        if (ret_gpu->ops->abi_version != ZERO_CUDA_ABI_VERSION ||
            ret_gpu->client->abi_version != ZERO_GPU_ABI_VERSION)
                die("%s is of another version", argv[1]);
}

void gpu_start(struct gpu *gpu)
{
        int count, r = gpu->ops->device_count(&count);

        if (r == -ENODEV) {
                fputs("there is no GPU here\n", stderr);
                exit(GPU_NONE);
        }
        must(r, "count of GPUs");
        must(gpu->ops->use(0), "use");
        must(gpu->ops->stream_new(&gpu->stream), "stream");
}

void gpu_wait(const struct gpu *gpu)
{
        must(gpu->ops->stream_wait(gpu->stream), "wait");
}

void *gpu_new(const struct gpu *gpu, size_t bytes)
{
        void *memory;

        must(gpu->ops->alloc(bytes, &memory), "GPU memory");
        return memory;
}

void gpu_move(const struct gpu *gpu, void *dst, const void *src, size_t n)
{
        must(gpu->ops->copy(dst, src, n, gpu->stream), "copy");
        gpu_wait(gpu);
}

uint64_t dice(uint64_t *state)
{
        uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);

        z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
        z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
        return z ^ z >> 31;
}

static void fill(struct twin *t, uint64_t *state)
{
        size_t size = dtype_bytes(t->dtype, 1);

        for (size_t i = 0; i < t->n; i++) {
                uint64_t bits = dice(state);
                float x = (float)((double)(bits >> 11) * 0x1p-52 - 1);
                uint32_t word = (uint32_t)(bits >> 32);

                if (bits & 1)
                        dtype_store(t->dtype, &word, 0, x);
                memcpy((uint8_t *)t->host + i * size, &word, size);
        }
}

struct twin twin_new(const struct gpu *gpu, enum zero_dtype dtype, size_t n, size_t offset,
                     uint64_t *state)
{
        size_t lead = MARGIN + dtype_bytes(dtype, offset);
        struct twin t = { .dtype = dtype, .n = n };

        t.bytes = lead + dtype_bytes(dtype, n) + MARGIN;
        t.host_memory = malloc(t.bytes);
        if (!t.host_memory)
                die("out of memory");
        memset(t.host_memory, CANARY, t.bytes);
        t.gpu_memory = gpu_new(gpu, t.bytes);
        t.host = t.host_memory + lead;
        t.gpu = t.gpu_memory + lead;
        fill(&t, state);
        gpu_move(gpu, t.gpu_memory, t.host_memory, t.bytes);
        return t;
}

void update_in_place(struct update_piece *update, const struct twin *t)
{
        for (uint32_t i = 0; i < update_planes(update->rule, &update->scalars); i++)
                update->in[i] = update->out[i] = t[i].gpu;
}

void twin_free(const struct gpu *gpu, struct twin *t)
{
        gpu->ops->free(t->gpu_memory);
        free(t->host_memory);
}

bool twin_same(const struct gpu *gpu, const struct twin *t)
{
        size_t size = dtype_bytes(t->dtype, 1), lead = (size_t)((uint8_t *)t->host - t->host_memory);
        uint8_t *came = malloc(t->bytes);
        bool same = true;

        if (!came)
                die("out of memory");
        gpu_move(gpu, came, t->gpu_memory, t->bytes);
        for (size_t i = 0; i < t->n; i++) {
                uint8_t *here = came + lead + i * size;

                /* a NaN's bits are nobody's promise */
                if (isnan(dtype_load(t->dtype, t->host, i)) &&
                    isnan(dtype_load(t->dtype, came + lead, i)))
                        memcpy(here, (uint8_t *)t->host + i * size, size);
        }
        same = memcmp(came, t->host_memory, t->bytes) == 0;
        free(came);
        return same;
}
