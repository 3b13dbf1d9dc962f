/* The GPUs of a node: what zerod uses of each, and for what. */
#include "ctl.h"

#include <string.h>

#include "table.h"
#include "units.h"

static void show_allocations(const struct ctl *ctl, FILE *out, const json_t *allocations)
{
        struct table t;
        json_t *a;
        size_t i;

        table_init(&t, "  IN GPU MEMORY|>BYTES");
        json_array_foreach(allocations, i, a)
        {
                table_add(&t, PAINT_NONE, "  %s", field_text(a, "what"));
                table_add(&t, PAINT_NONE, "%s", unit_bytes(field_number(a, "bytes")).text);
        }
        table_print(&t, out, ctl->colour);
        table_deinit(&t);
}

static void show_gpu(const struct ctl *ctl, FILE *out, const json_t *gpu)
{
        const json_t *memory = json_object_get(gpu, "memory");

        fprintf(out, "GPU %.0f: %s, %s, %s of %s used, %s by zerod, %s free\n",
                field_number(gpu, "gpu"), field_text(gpu, "name"), field_text(gpu, "uuid"),
                unit_bytes(field_number(memory, "used")).text,
                unit_bytes(field_number(memory, "total")).text,
                unit_bytes(field_number(memory, "zerod")).text,
                unit_bytes(field_number(memory, "free")).text);
        show_allocations(ctl, out, json_object_get(gpu, "allocations"));
}

static void show_between(FILE *out, const json_t *between)
{
        const char *why = field_text(between, "why");

        if (!json_is_object(between))
                return;
        if (strcmp(field_text(between, "by"), "nccl") == 0)
                fprintf(out, "Between GPUs: NCCL %s\n", field_text(between, "nccl"));
        else
                fprintf(out, "Between GPUs: copies%s%s%s\n", *why ? " (" : "", why,
                        *why ? ")" : "");
}

void show_gpus(const struct ctl *ctl, FILE *out, const json_t *status)
{
        const json_t *cuda = json_object_get(status, "cuda");
        json_t *gpu;
        size_t i;

        if (json_is_object(cuda))
                fprintf(out, "CUDA: driver %s, runtime %s, plugin interface %.0f\n",
                        field_text(cuda, "driver"), field_text(cuda, "runtime"),
                        field_number(cuda, "plugin_interface"));
        show_between(out, json_object_get(cuda, "between_gpus"));
        json_array_foreach(json_object_get(status, "gpus"), i, gpu) show_gpu(ctl, out, gpu);
}
