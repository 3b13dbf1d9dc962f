/* Events of trainers: opened by their handles, looked at, given up. */
#include "daemon/device/gpu/core.h"

#include <errno.h>
#include <stdlib.h>

struct gpu_events {
        uint32_t n;
        void *event[];
};

/* A trainer that fills its GPU, or has it to itself, is no fault of the GPU. */
static int use(uint32_t gpu, struct fault *fault)
{
        int r = gpu_use(gpu);

        if (r == -ENOMEM)
                return fault_set(
                        fault, ZERO_ENOMEM,
                        "GPU %u (%s) has no memory left for the daemon to use it: leave it "
                        "some hundred MiB",
                        gpu, gpu_info(gpu)->name);
        if (r == -EBUSY)
                return fault_set(fault, ZERO_EGPU,
                                 "GPU %u (%s) lets one process use it at a time: set its compute "
                                 "mode to the default (nvidia-smi -c 0), so that trainers and "
                                 "daemon share it",
                                 gpu, gpu_info(gpu)->name);
        gpu_must(gpu, "it cannot be used", r);
        return 0;
}

int gpu_events_open(uint32_t gpu, const uint8_t (*handles)[ZERO_GPU_HANDLE], uint32_t n,
                    struct gpu_events **ret, struct fault *fault)
{
        struct gpu_events *e;
        int r;

        if (n > ZERO_GPU_EVENTS)
                return fault_set(fault, ZERO_EINVAL, "%u events, a rank may have %u", n,
                                 ZERO_GPU_EVENTS);
        e = calloc(1, sizeof *e + n * sizeof e->event[0]);
        if (!e)
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        r = use(gpu, fault);
        if (r) {
                gpu_events_close(e);
                return r;
        }
        while (e->n < n && (r = gpu_plugin->event_open(handles[e->n], &e->event[e->n])) == 0)
                e->n++;
        if (r) { /* whatever CUDA calls it, but for want of memory */
                gpu_events_close(e);
                e = NULL;
        }
        if (r == -ENOMEM)
                return fault_set(fault, ZERO_ENOMEM, "out of memory for events");
        *ret = e;
        return 0;
}

void gpu_events_close(struct gpu_events *e)
{
        if (!e)
                return;
        for (uint32_t i = 0; i < e->n; i++)
                gpu_plugin->event_free(e->event[i]);
        free(e);
}

uint32_t gpu_events_count(const struct gpu_events *e)
{
        return e->n;
}

int gpu_event_done(struct gpu_events *e, uint32_t index)
{
        return index < e->n ? gpu_plugin->event_done(e->event[index]) : -EINVAL;
}
