/* Opens, polls and closes events of trainers. */
#include "daemon/compute/device/gpu/core.h"

#include <errno.h>
#include <stdlib.h>

struct place_events {
        uint32_t n;
        void *event[];
};

int place_events_open(uint32_t place, const uint8_t (*handles)[ZERO_GPU_HANDLE], uint32_t n,
                      struct place_events **ret, struct fault *fault)
{
        struct place_events *e;
        int r;

        if (n > ZERO_GPU_EVENTS)
                return fault_set(fault, ZERO_EINVAL, "a rank has at most %u events, not %u",
                                 ZERO_GPU_EVENTS, n);
        e = calloc(1, sizeof *e + n * sizeof e->event[0]);
        if (!e)
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        r = gpu_usable(place_gpu(place), fault);
        if (r) {
                place_events_close(e);
                return r;
        }
        while (e->n < n && (r = gpu_plugin->event_open(handles[e->n], &e->event[e->n])) == 0)
                e->n++;
        if (r) { /* CUDA's codes do not tell why */
                place_events_close(e);
                e = NULL;
        }
        *ret = e;
        return 0;
}

void place_events_close(struct place_events *e)
{
        if (!e)
                return;
        for (uint32_t i = 0; i < e->n; i++)
                gpu_plugin->event_free(e->event[i]);
        free(e);
}

uint32_t place_events_count(const struct place_events *e)
{
        return e->n;
}

int place_event_done(struct place_events *e, uint32_t index)
{
        return index < e->n ? gpu_plugin->event_done(e->event[index]) : -EINVAL;
}
