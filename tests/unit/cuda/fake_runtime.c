/*
 * The runtime's half of fake_runtime.h: GPUs, memory, streams and events.
 */
#include "tests/unit/cuda/fake_runtime.h"

#include <criterion/criterion.h>
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct CUstream_st {
        int gpu;
};

struct CUevent_st {
        int gpu;
        unsigned flags;
};

struct fake_runtime fake;
static int n_streams, n_events;
static void *registered; /* host memory */
static bool initialised, enqueued[FAKE_GPUS];
static _Thread_local int current = FAKE_NO_CONTEXT;

int fake_current(void)
{
        return current;
}

void fake_set_current(int gpu)
{
        current = gpu;
}

void fake_enqueue(int gpu)
{
        enqueued[gpu] = true;
}

bool fake_is_enqueued(int gpu)
{
        return enqueued[gpu];
}

bool fake_initialised(void)
{
        return initialised;
}

int fake_next(void)
{
        if (++fake.calls != fake.fail_at)
                return 0;
        fake.failed = true;
        return fake.fail_with;
}

int fake_in_use(void)
{
        initialised = true;
        if (current == FAKE_NO_CONTEXT)
                current = 0;
        fake.begun |= 1U << current;
        return current;
}

/* ---- GPUs ---------------------------------------------------------- */

cudaError_t cudaGetDeviceCount(int *count)
{
        initialised = true;
        *count = FAKE_GPUS;
        return fake_next();
}

cudaError_t cudaGetDevice(int *device)
{
        *device = current == FAKE_NO_CONTEXT ? 0 : current;
        return fake_next();
}

cudaError_t cudaInitDevice(int device, unsigned device_flags, unsigned flags)
{
        cudaError_t r = fake_next();

        cr_assert(device_flags == cudaDeviceScheduleBlockingSync &&
                  flags == cudaInitDeviceFlagsAreValid);
        fake.begins++;
        if (r == cudaSuccess && (device < 0 || device >= FAKE_GPUS))
                r = cudaErrorInvalidDevice;
        if (r == cudaSuccess)
                fake.begun |= 1U << device;
        return r;
}

cudaError_t cudaSetDevice(int device)
{
        cudaError_t r = fake_next();

        if (r == cudaSuccess && (device < 0 || device >= FAKE_GPUS))
                r = cudaErrorInvalidDevice;
        if (r == cudaSuccess) {
                current = device;
                fake_in_use();
        }
        return r;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device)
{
        memset(properties, 0, sizeof *properties);
        properties->major = 9;
        properties->uuid.bytes[0] = (char)(device + 1);
        return fake_next();
}

cudaError_t cudaDriverGetVersion(int *version)
{
        *version = CUDART_VERSION;
        return fake_next();
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
        *version = CUDART_VERSION;
        return fake_next();
}

cudaError_t cudaGetLastError(void)
{
        return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t error)
{
        return error == cudaSuccess ? "no error" : "an error";
}

cudaError_t cudaDeviceSynchronize(void)
{
        cudaError_t r = fake_next();

        if (r == cudaSuccess)
                r = (cudaError_t)fake.sticky;
        enqueued[fake_in_use()] = false;
        return r;
}

/* ---- memory --------------------------------------------------------- */

cudaError_t cudaMalloc(void **memory, size_t bytes)
{
        cudaError_t r = fake_next();
        int gpu = fake_in_use();

        if (r == cudaSuccess)
                *memory = (void *)fake_range_new(ALLOCATED, bytes, fake_memory_new(bytes, gpu), gpu)
                                  ->at;
        return r;
}

static cudaError_t free_range(void *memory, enum fake_kind kind)
{
        struct fake_range *r = fake_range_at(memory);

        cr_assert(r && r->kind == kind);
        fake_range_free(r);
        return cudaSuccess;
}

cudaError_t cudaFree(void *memory)
{
        return free_range(memory, ALLOCATED);
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
        fake_in_use();
        *free_bytes = 1;
        *total = 2;
        return fake_next();
}

cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned flags)
{
        cudaError_t r = fake_next();

        cr_assert_eq(flags, cudaHostAllocPortable);
        if (r == cudaSuccess)
                *memory = (void *)fake_range_new(HOST, bytes, fake_memory_new(bytes, -1), -1)->at;
        return r;
}

cudaError_t cudaFreeHost(void *memory)
{
        return free_range(memory, HOST);
}

cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned flags)
{
        cudaError_t r = fake_next();

        cr_assert(!registered && flags == cudaHostRegisterPortable && bytes > 0);
        fake_in_use();
        if (r == cudaSuccess)
                registered = memory;
        return r;
}

cudaError_t cudaHostUnregister(void *memory)
{
        cr_assert(memory && memory == registered && !fake_is_enqueued(fake_in_use()));
        registered = NULL;
        return fake_next();
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *memory)
{
        const struct fake_range *r = fake_range_of(memory);

        *attributes = (struct cudaPointerAttributes){ .type = cudaMemoryTypeUnregistered };
        if (r && r->kind == HOST)
                attributes->type = cudaMemoryTypeHost;
        else if (r) {
                attributes->type = cudaMemoryTypeDevice;
                attributes->device = r->gpu;
        }
        return fake_next();
}

/* Memory that the GPU in use can read and write. */
static void must_reach(const void *memory, size_t n)
{
        const struct fake_range *r = fake_range_of(memory);

        cr_assert(r && r->kind >= ACCESSIBLE && r->gpu == current &&
                  (uintptr_t)memory + n <= r->at + r->bytes);
}

cudaError_t cudaMemset(void *memory, int value, size_t n)
{
        cudaError_t r = fake_next();

        fake_in_use();
        if (r)
                return r;
        must_reach(memory, n);
        memset(memory, value, n);
        enqueued[current] = true;
        return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *memory, int value, size_t n, cudaStream_t stream)
{
        cr_assert(!stream || stream->gpu == current);
        return cudaMemset(memory, value, n);
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t n, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
        cudaError_t r = fake_next();

        cr_assert(kind == cudaMemcpyDefault && (!stream || stream->gpu == fake_in_use()));
        if (r == cudaSuccess)
                memcpy(dst, src, n);
        return r;
}

cudaError_t cudaMemcpyPeerAsync(void *dst, int dst_device, const void *src, int src_device,
                                size_t n, cudaStream_t stream)
{
        cudaError_t r = fake_next();

        cr_assert(fake_range_of(dst)->gpu == dst_device && fake_range_of(src)->gpu == src_device &&
                  stream);
        if (r == cudaSuccess)
                memcpy(dst, src, n);
        return r;
}

/* ---- streams and events ------------------------------------------------ */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
        cudaError_t r = fake_next();
        int gpu = fake_in_use();

        cr_assert_eq(flags, cudaStreamNonBlocking);
        if (r)
                return r;
        *stream = calloc(1, sizeof **stream);
        (*stream)->gpu = gpu;
        n_streams++;
        return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
        cudaError_t r = fake_next();

        enqueued[stream ? stream->gpu : fake_in_use()] = false;
        return r ? r : (cudaError_t)fake.sticky;
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
        cudaError_t r = fake_next();

        return r ? r : fake_is_enqueued(stream->gpu) ? cudaErrorNotReady : (cudaError_t)fake.sticky;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
        free(stream);
        n_streams--;
        return cudaSuccess;
}

static cudaError_t event_new(cudaEvent_t *event, int gpu, unsigned flags)
{
        *event = calloc(1, sizeof **event);
        **event = (struct CUevent_st){ gpu, flags };
        n_events++;
        return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
        cudaError_t r = fake_next();

        cr_assert_eq(flags | cudaEventInterprocess, cudaEventInterprocess | cudaEventDisableTiming);
        if (r == cudaSuccess)
                r = (cudaError_t)fake.sticky;
        if (r == cudaSuccess && fake.no_events && flags & cudaEventInterprocess)
                r = cudaErrorNotSupported;
        return r ? r : event_new(event, fake_in_use(), flags);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
        cr_assert(event->gpu == fake_in_use() && (!stream || stream->gpu == event->gpu));
        return fake_next();
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
        cudaError_t r = fake_next();

        cr_assert_eq(event->gpu, fake_in_use());
        if (r == cudaSuccess && fake.event_pending)
                r = cudaErrorNotReady;
        return r ? r : (cudaError_t)fake.sticky;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
        cr_assert_eq(event->gpu, fake_in_use());
        free(event);
        n_events--;
        return cudaSuccess;
}

cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t *handle, cudaEvent_t event)
{
        cudaError_t r = fake_next();

        cr_assert(event->flags & cudaEventInterprocess);
        memset(handle, 0, sizeof *handle);
        handle->reserved[0] = (char)(event->gpu + 1);
        return r ? r : fake.no_event_handles ? cudaErrorNotSupported : cudaSuccess;
}

cudaError_t cudaIpcOpenEventHandle(cudaEvent_t *event, cudaIpcEventHandle_t handle)
{
        cudaError_t r = fake_next();
        int gpu = handle.reserved[0] - 1;

        if (r == cudaSuccess && gpu != fake_in_use())
                r = cudaErrorMapBufferObjectFailed;
        return r ? r : event_new(event, gpu, cudaEventDisableTiming);
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *memory)
{
        const struct fake_range *r = fake_range_at(memory);
        cudaError_t result = fake_next();

        cr_assert(r && r->kind == ALLOCATED && r->bytes % FAKE_UNIT == 0);
        memset(handle, 0, sizeof *handle);
        memcpy(handle, &r->fd, sizeof r->fd);
        return result ? result : fake.no_handles ? cudaErrorNotSupported : cudaSuccess;
}

cudaError_t cudaIpcOpenMemHandle(void **memory, cudaIpcMemHandle_t handle, unsigned flags)
{
        cudaError_t r = fake_next();
        int fd;

        cr_assert_eq(flags, cudaIpcMemLazyEnablePeerAccess);
        memcpy(&fd, &handle, sizeof fd);
        fake_in_use();
        if (r == cudaSuccess)
                *memory =
                        (void *)fake_range_new(OPENED, fake_memory_bytes(fd), dup(fd), current)->at;
        return r;
}

cudaError_t cudaIpcCloseMemHandle(void *memory)
{
        cr_assert_not(enqueued[current], "memory is unmapped while work on it is under way");
        return free_range(memory, OPENED);
}

/* ---- at the end --------------------------------------------------------------------- */

void fake_must_be_empty(void)
{
        fake_driver_must_be_empty();
        cr_assert_eq(n_streams, 0);
        cr_assert_eq(n_events, 0);
        cr_assert_null(registered);
}
