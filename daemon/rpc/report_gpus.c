/* GPUs of this node, as JSON. */
#include "daemon/rpc/report.h"

#include <stdio.h>
#include <string.h>

#include "daemon/device/gpu.h"
#include "daemon/rpc/report_json.h"

/* 12040: "12.4" */
static json_t *cuda_version(int version)
{
        return json_sprintf("%d.%d", version / 1000, version % 1000 / 10);
}

/* As nvidia-smi writes it. */
static json_t *uuid(const uint8_t bytes[ZERO_GPU_UUID])
{
        char hex[2 * ZERO_GPU_UUID + 1];

        for (size_t i = 0; i < ZERO_GPU_UUID; i++)
                snprintf(hex + 2 * i, 3, "%02x", bytes[i]);
        return json_sprintf("GPU-%.8s-%.4s-%.4s-%.4s-%.12s", hex, hex + 8, hex + 12, hex + 16,
                            hex + 20);
}

struct allocations {
        json_t *list;
        uint64_t bytes;
};

/* What has one name is one line. */
static void add_allocation(void *arg, const char *what, uint64_t bytes)
{
        struct allocations *a = arg;
        json_t *line;
        size_t i;

        a->bytes += bytes;
        json_array_foreach(a->list, i, line)
        {
                json_t *sum = json_object_get(line, "bytes");

                if (strcmp(json_string_value(json_object_get(line, "what")), what) != 0)
                        continue;
                json_integer_set(sum, json_integer_value(sum) + (json_int_t)bytes);
                return;
        }
        line = json_pack("{s:s, s:I}", "what", what, "bytes", (json_int_t)bytes);
        if (line)
                json_array_append_new(a->list, line);
}

static json_t *report_gpu(uint32_t gpu, const struct gpu_use_now *now)
{
        const struct zero_cuda_info *info = gpu_info(gpu);
        struct allocations a = { .list = json_array() };
        json_t *j = json_object(), *memory = json_object();

        gpu_each(gpu, add_allocation, &a);
        json_object_set_new(memory, "total", number(now->total));
        json_object_set_new(memory, "free", number(now->free));
        json_object_set_new(memory, "used", number(now->total - now->free));
        json_object_set_new(memory, "zerod", number(a.bytes));
        json_object_set_new(j, "gpu", number(gpu));
        json_object_set_new(j, "name", text(info->name));
        json_object_set_new(j, "uuid", uuid(info->uuid));
        json_object_set_new(j, "compute_capability",
                            json_sprintf("%d.%d", info->major, info->minor));
        json_object_set_new(j, "memory", memory);
        json_object_set_new(j, "allocations", a.list);
        return j;
}

json_t *report_gpus(const struct gpu_use_now *now)
{
        json_t *gpus = json_array();

        for (uint32_t i = 0; i < gpus_count(); i++)
                json_array_append_new(gpus, report_gpu(i, &now[i]));
        return gpus;
}

static json_t *report_collectives(void)
{
        struct gpu_collectives now;
        json_t *j = json_object();

        gpu_collectives(&now);
        json_object_set_new(j, "by", text(now.nccl ? "nccl" : "copies"));
        json_object_set_new(j, "nccl",
                            now.version ? json_sprintf("%d.%d.%d", now.version / 10000,
                                                       now.version % 10000 / 100, now.version % 100)
                                        : json_null());
        json_object_set_new(j, "moves_by_nccl", number(now.moves));
        json_object_set_new(j, "why", now.why[0] ? text(now.why) : json_null());
        return j;
}

json_t *report_cuda(void)
{
        json_t *j;

        if (gpus_count() == 0)
                return json_null();
        j = json_object();
        json_object_set_new(j, "plugin_interface", number(ZERO_CUDA_ABI_VERSION));
        json_object_set_new(j, "driver", cuda_version(gpu_info(0)->driver));
        json_object_set_new(j, "runtime", cuda_version(gpu_info(0)->runtime));
        json_object_set_new(j, "between_gpus",
                            gpus_count() > 1 ? report_collectives() : json_null());
        return j;
}
