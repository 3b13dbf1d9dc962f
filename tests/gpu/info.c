/* What GPU there is, as a line of JSON; by it run.sh knows whether there is one, and what is free.
 */
#include <stdio.h>

#include "tests/gpu/gpu.h"

int main(int argc, char *argv[])
{
        struct zero_cuda_info info;
        struct zero_cuda_share share;
        uint64_t left, total;
        struct gpu gpu;
        int count;

        gpu_load(argc, argv, &gpu);
        gpu_start(&gpu);
        must(gpu.ops->device_count(&count), "count of GPUs");
        must(gpu.ops->device_info(0, &info), "info");
        must(gpu.ops->memory(&left, &total), "memory");
        must(gpu.ops->share_new(1, &share), "share");
        printf("{\"gpus\": %d, \"name\": \"%s\", \"capability\": \"%d.%d\", \"multiprocessors\": "
               "%d, "
               "\"driver\": %d, \"runtime\": %d, \"free_bytes\": %llu, \"total_bytes\": %llu, "
               "\"exports\": \"%s\"}\n",
               count, info.name, info.major, info.minor, info.multiprocessors, info.driver,
               info.runtime, (unsigned long long)left, (unsigned long long)total,
               share.fd < 0 ? "handles" : "descriptors");
        gpu.ops->share_free(&share);
        return 0;
}
