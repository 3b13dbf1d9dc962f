/*
 * Events that another process may poll.  They record no times, as CUDA requires for that.  A
 * trainer makes and records them; the daemon opens and polls them, or, if it cannot open them, the
 * trainer polls itself.  Some drivers and sandboxes pass no event to another process: then a
 * trainer gets an ordinary event, which it polls itself.
 *
 * Every call on an event selects the event's own GPU: a thread that has used none yet would get the
 * first GPU, and use memory of it.
 */
#include "cuda/plugin.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(cudaIpcEventHandle_t) == ZERO_GPU_HANDLE, "a handle of an event fits");

struct event {
        cudaEvent_t event;
        int gpu; /* this process's number */
};

static void destroy(struct event *e)
{
        if (e->event)
                (void)cuda_errno(cudaEventDestroy(e->event));
        e->event = NULL;
}

static int make_shared(struct event *e, uint8_t ret_handle[ZERO_GPU_HANDLE])
{
        cudaIpcEventHandle_t handle;
        int r = cuda_errno(cudaEventCreateWithFlags(&e->event, cudaEventInterprocess |
                                                                       cudaEventDisableTiming));

        if (r == 0)
                r = cuda_errno(cudaIpcGetEventHandle(&handle, e->event));
        if (r == 0)
                memcpy(ret_handle, &handle, sizeof(handle));
        else
                destroy(e);
        return r;
}

/* Whatever CUDA calls the refusal; a GPU that has failed refuses the ordinary event, too. */
static int make(struct event *e, uint8_t ret_handle[ZERO_GPU_HANDLE])
{
        int r = make_shared(e, ret_handle);

        if (r == 0)
                return 0;
        r = cuda_errno(cudaEventCreateWithFlags(&e->event, cudaEventDisableTiming));
        return r < 0 ? r : 1;
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
                free(e);
                return r;
        }
        *ret_event = e;
        return r;
}

/* The default stream is that of the selected GPU, which must be the event's. */
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
        r = cuda_errno(cudaGetDevice(&e->gpu));
        if (r == 0)
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
        struct event *e = event;
        struct cuda_saved saved;
        cudaError_t error;
        int r = cuda_enter(e->gpu, &saved);

        if (r < 0)
                return r;
        error = cudaEventQuery(e->event);
        r = error == cudaErrorNotReady ? 0 : cuda_errno(error);
        if (error == cudaErrorNotReady)
                (void)cudaGetLastError();
        cuda_restore(&saved);
        return error == cudaSuccess ? 1 : r;
}

void cuda_event_free(void *event)
{
        struct event *e = event;
        struct cuda_saved saved;

        if (!e)
                return;
        if (cuda_enter(e->gpu, &saved) == 0) {
                destroy(e);
                cuda_restore(&saved);
        }
        free(e);
}
