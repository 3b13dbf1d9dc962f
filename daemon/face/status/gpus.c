/* The GPUs of this node. */
#include "daemon/face/status/status.h"

#include <stdio.h>
#include <string.h>

#include "daemon/compute/device/gpu/gpu.h"

/* 12040: "12.4" */
static const char *cuda_version(struct arena *arena, int version)
{
        return arena_text(arena, "%d.%d", version / 1000, version % 1000 / 10);
}

/* A UUID as nvidia-smi writes it. */
static const char *uuid(struct arena *arena, const uint8_t bytes[ZERO_GPU_UUID])
{
        char hex[2 * ZERO_GPU_UUID + 1];

        for (size_t i = 0; i < ZERO_GPU_UUID; i++)
                snprintf(hex + 2 * i, 3, "%02x", bytes[i]);
        return arena_text(arena, "GPU-%.8s-%.4s-%.4s-%.4s-%.12s", hex, hex + 8, hex + 12, hex + 16,
                          hex + 20);
}

struct allocations {
        struct arena *arena;
        struct status_gpu *gpu;
};

/* Allocations with the same name share a line. */
static void add_allocation(void *arg, const char *what, uint64_t bytes)
{
        struct allocations *a = arg;
        struct status_allocation *line = NULL;

        a->gpu->memory.zerod += bytes;
        for (uint32_t i = 0; i < a->gpu->allocations.n && !line; i++)
                if (strcmp(a->gpu->allocations.items[i].what, what) == 0)
                        line = &a->gpu->allocations.items[i];
        if (!line) {
                const char *name = arena_copy(a->arena, what);

                line = name ? LIST_ADD(a->arena, &a->gpu->allocations) : NULL;
                if (!line)
                        return;
                line->what = name;
        }
        line->bytes += bytes;
}

static void report_gpu(struct arena *arena, uint32_t gpu, const struct gpu_use_now *now,
                       struct status_gpu *ret)
{
        const struct zero_cuda_info *info = gpu_info(gpu);
        struct allocations a = { arena, ret };

        gpu_each(gpu, add_allocation, &a);
        ret->memory.total = now->total;
        ret->memory.free = now->free;
        ret->memory.used = now->total - now->free;
        ret->gpu = gpu;
        ret->name = arena_copy(arena, info->name);
        ret->uuid = uuid(arena, info->uuid);
        ret->compute_capability = arena_text(arena, "%d.%d", info->major, info->minor);
}

static struct status_collectives *report_collectives(struct arena *arena)
{
        struct status_collectives *ret = arena_new(arena, sizeof *ret);
        struct gpu_collectives now;

        if (!ret)
                return NULL;
        gpu_collectives(&now);
        ret->by = now.nccl ? "nccl" : "copies";
        if (now.version)
                ret->nccl = arena_text(arena, "%d.%d.%d", now.version / 10000,
                                       now.version % 10000 / 100, now.version % 100);
        ret->moves_by_nccl = now.moves;
        ret->why = now.why[0] ? arena_copy(arena, now.why) : NULL;
        return ret;
}

static struct status_cuda *report_cuda(struct arena *arena)
{
        struct status_cuda *ret = gpus_count() ? arena_new(arena, sizeof *ret) : NULL;

        if (!ret)
                return NULL;
        ret->plugin_interface = ZERO_CUDA_ABI_VERSION;
        ret->driver = cuda_version(arena, gpu_info(0)->driver);
        ret->runtime = cuda_version(arena, gpu_info(0)->runtime);
        ret->between_gpus = gpus_count() > 1 ? report_collectives(arena) : NULL;
        return ret;
}

void report_gpus(struct arena *arena, const struct gpu_use_now *now, struct status_node *ret)
{
        ret->cuda = report_cuda(arena);
        for (uint32_t i = 0; i < gpus_count(); i++) {
                struct status_gpu *gpu = LIST_ADD(arena, &ret->gpus);

                if (gpu)
                        report_gpu(arena, i, &now[i], gpu);
        }
}

void gpus_use_now(struct gpu_use_now *ret)
{
        for (uint32_t i = 0; i < gpus_count(); i++)
                if (gpu_memory(i, &ret[i].free, &ret[i].total))
                        ret[i] = (struct gpu_use_now){ 0, gpu_info(i)->memory_bytes };
}
