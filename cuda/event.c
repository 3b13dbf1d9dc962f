/*
 * Events that another process may look at.  They keep no times, as CUDA asks of such ones.  A
 * trainer makes and records them, the daemon opens and asks.
 */
#include "cuda/plugin.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(cudaIpcEventHandle_t) == ZERO_GPU_HANDLE, "a handle of an event fits");

struct event {
        cudaEvent_t event;
        int gpu; /* a trainer's: as it counts them */
};

static int make(struct event *e, uint8_t ret_handle[ZERO_GPU_HANDLE])
{
        cudaIpcEventHandle_t handle;
        int r = cuda_errno(cudaEventCreateWithFlags(&e->event, cudaEventInterprocess |
                                                                       cudaEventDisableTiming));

        if (r == 0)
                r = cuda_errno(cudaIpcGetEventHandle(&handle, e->event));
        if (r == 0)
                memcpy(ret_handle, &handle, sizeof(handle));
        return r;
}

int cuda_event_new(int ordinal, uint8_t ret_handle[ZERO_GPU_HANDLE], void **ret_event)
{
        struct cuda_saved saved;
        struct event *e;
        int r = cuda_enter(ordinal, &saved);

        if (r < 0)
                return r;
        e = calloc(1, sizeof(*e));
        if (e)
                e->gpu = ordinal;
        r = e ? make(e, ret_handle) : -ENOMEM;
        cuda_restore(&saved);
        if (r < 0) {
                cuda_event_free(e);
                return r;
        }
        *ret_event = e;
        return 0;
}

/* The default stream is that of the GPU in use: it has to be the event's. */
int cuda_event_record(void *event, void *stream)
{
        struct event *e = event;
        struct cuda_saved saved;
        int r = cuda_enter(e->gpu, &saved);

        if (r < 0)
                return r;
        r = cuda_errno(cudaEventRecord(e->event, stream));
        cuda_restore(&saved);
        return r;
}

int cuda_event_open(const uint8_t handle[ZERO_GPU_HANDLE], void **ret_event)
{
        struct event *e = calloc(1, sizeof(*e));
        cudaIpcEventHandle_t ipc;
        int r;

        if (!e)
                return -ENOMEM;
        memcpy(&ipc, handle, sizeof(ipc));
        r = cuda_errno(cudaIpcOpenEventHandle(&e->event, ipc));
        if (r < 0) {
                free(e);
                return r;
        }
        *ret_event = e;
        return 0;
}

int cuda_event_done(void *event)
{
        cudaError_t error = cudaEventQuery(((struct event *)event)->event);

        if (error == cudaErrorNotReady) {
                (void)cudaGetLastError();
                return 0;
        }
        return error == cudaSuccess ? 1 : cuda_errno(error);
}

void cuda_event_free(void *event)
{
        struct event *e = event;

        if (!e)
                return;
        if (e->event)
                (void)cuda_errno(cudaEventDestroy(e->event));
        free(e);
}
