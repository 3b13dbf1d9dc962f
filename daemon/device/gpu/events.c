/* Opens, polls and closes events of trainers. */
#include "daemon/device/gpu/core.h"

#include <errno.h>
#include <stdlib.h>

struct gpu_events {
        uint32_t n;
        void *event[];
};

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
        r = gpu_usable(gpu, fault);
        if (r) {
                gpu_events_close(e);
                return r;
        }
        while (e->n < n && (r = gpu_plugin->event_open(handles[e->n], &e->event[e->n])) == 0)
                e->n++;
        if (r) { /* whatever CUDA calls it, except a lack of memory */
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
