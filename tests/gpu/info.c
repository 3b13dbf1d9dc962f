/*
 * What GPU there is, and what its driver allows, as a line of JSON.  By it run.sh knows whether
 * there is a GPU, and what is free.  "exports", "events" and "pins" were tried; "driver_says" was
 * not.
 */
#include <errno.h>
#include <stdio.h>
#include <sys/mman.h>

#include "tests/gpu/gpu.h"

enum { PAGES = 1 << 16 };

static const char *exports(const struct gpu *gpu)
{
        struct zero_cuda_share share;
        const char *said;
        int r = gpu->ops->share_new(1, &share);

        if (r < 0)
                return "nothing";
        said = share.fd < 0 ? "handles" : "descriptors";
        gpu->ops->share_free(&share);
        return said;
}

static const char *events(const struct gpu *gpu)
{
        uint8_t handle[ZERO_GPU_HANDLE];
        void *event;
        int r = gpu->client->event_new(0, handle, &event);

        if (r >= 0)
                gpu->client->event_free(event);
        return r < 0 ? "none" : r > 0 ? "of one process" : "shared";
}

/* Memory of a file, as a stash in host memory is. */
static const char *pins(const struct gpu *gpu)
{
        void *memory = mmap(NULL, PAGES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        bool can;

        if (memory == MAP_FAILED)
                die("out of memory");
        can = gpu->client->pin(0, memory, PAGES) == 0;
        if (can)
                gpu->client->unpin(0, memory);
        munmap(memory, PAGES);
        return can ? "yes" : "no";
}

static void print_attributes(const struct gpu *gpu)
{
        const char *name;
        int value;

        for (uint32_t i = 0; gpu->ops->attribute(0, i, &name, &value) == 0; i++)
                printf("%s\"%s\": %d", i ? ", " : "", name, value);
}

int main(int argc, char *argv[])
{
        struct zero_cuda_info info;
        uint64_t left, total;
        struct gpu gpu;
        int count;

        gpu_load(argc, argv, &gpu);
        gpu_start(&gpu);
        must(gpu.ops->device_count(&count), "count of GPUs");
        must(gpu.ops->device_info(0, &info), "info");
        must(gpu.ops->memory(&left, &total), "memory");
        printf("{\"gpus\": %d, \"name\": \"%s\", \"capability\": \"%d.%d\", \"multiprocessors\": "
               "%d, "
               "\"driver\": %d, \"runtime\": %d, \"free_bytes\": %llu, \"total_bytes\": %llu, "
               "\"exports\": \"%s\", \"events\": \"%s\", \"pins\": \"%s\", \"driver_says\": {",
               count, info.name, info.major, info.minor, info.multiprocessors, info.driver,
               info.runtime, (unsigned long long)left, (unsigned long long)total, exports(&gpu),
               events(&gpu), pins(&gpu));
        print_attributes(&gpu);
        printf("}}\n");
        return 0;
}
