/*
 * The plugin's two tables, GPUs and streams.
 * Every code of CUDA is translated here, by cuda_errno(), and appears nowhere else.
 */
#include "cuda/plugin.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

int cuda_errno(cudaError_t error)
{
        if (error == cudaSuccess)
                return 0;
        (void)cudaGetLastError();
        switch (error) {
        case cudaErrorInsufficientDriver: /* 35: also where there is no driver */
        case cudaErrorNoDevice:           /* 100 */
        case cudaErrorStubLibrary:
        case cudaErrorSystemDriverMismatch:
        case cudaErrorCompatNotSupportedOnDevice:
                return -ENODEV;
        case cudaErrorNoKernelImageForDevice:
        case cudaErrorUnsupportedPtxVersion:
                return -ENOTSUP;
        case cudaErrorMemoryAllocation:
                return -ENOMEM;
        case cudaErrorInvalidValue:
        case cudaErrorInvalidDevice:
                return -EINVAL;
        case cudaErrorDevicesUnavailable: /* its compute mode lets one process use it */
                return -EBUSY;
        default:
                return -EIO;
        }
}

static int cuda_device_count(int *ret_count)
{
        int count = 0;
        int r = cuda_errno(cudaGetDeviceCount(&count));

        if (r < 0)
                return r;
        if (count == 0)
                return -ENODEV;
        *ret_count = count;
        return 0;
}

static int cuda_device_info(int device, struct zero_cuda_info *ret_info)
{
        struct cudaDeviceProp properties;
        struct zero_cuda_info info = { 0 };
        int r = cuda_errno(cudaGetDeviceProperties(&properties, device));

        if (r == 0)
                r = cuda_errno(cudaDriverGetVersion(&info.driver));
        if (r == 0)
                r = cuda_errno(cudaRuntimeGetVersion(&info.runtime));
        if (r < 0)
                return r;
        snprintf(info.name, sizeof(info.name), "%s", properties.name);
        info.major = properties.major;
        info.minor = properties.minor;
        info.multiprocessors = properties.multiProcessorCount;
        info.memory_bytes = properties.totalGlobalMem;
        memcpy(info.uuid, properties.uuid.bytes, sizeof(info.uuid));
        *ret_info = info;
        return 0;
}

/* Once a GPU: each time it would go to the driver with what is known already. */
static int begin(int device)
{
        static _Atomic uint64_t begun; /* a bit for each of the first 64 */
        uint64_t bit = (uint64_t)(device >= 0 && device < 64) << (device & 63);
        int r = 0;

        if (!(begun & bit))
                r = cuda_errno(cudaInitDevice(device, cudaDeviceScheduleBlockingSync,
                                              cudaInitDeviceFlagsAreValid));
        if (r == 0)
                begun |= bit;
        return r;
}

int cuda_use(int device)
{
        int r = begin(device);

        return r == 0 ? cuda_errno(cudaSetDevice(device)) : r;
}

static int cuda_stream_new(void **ret_stream)
{
        cudaStream_t stream = NULL;
        int gpu = 0, r = cuda_errno(cudaGetDevice(&gpu));

        if (r == 0)
                r = cuda_use(gpu); /* the thread may never have chosen one */
        if (r == 0)
                r = cuda_errno(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        if (r < 0)
                return r;
        *ret_stream = stream;
        return 0;
}

static int cuda_stream_wait(void *stream)
{
        return cuda_errno(cudaStreamSynchronize(stream));
}

static void cuda_stream_free(void *stream)
{
        if (stream)
                (void)cuda_errno(cudaStreamDestroy(stream));
}

__attribute__((visibility("default"))) zero_cuda_plugin_fn zero_cuda_plugin;

const struct zero_cuda_plugin *zero_cuda_plugin(void)
{
        static const struct zero_cuda_plugin table = {
                .abi_version = ZERO_CUDA_ABI_VERSION,
                .device_count = cuda_device_count,
                .device_info = cuda_device_info,
                .use = cuda_use,
                .alloc = cuda_alloc,
                .free = cuda_free,
                .memory = cuda_memory,
                .share_new = cuda_share_new,
                .share_free = cuda_share_free,
                .pinned_new = cuda_pinned_new,
                .pinned_free = cuda_pinned_free,
                .gpu_of = cuda_gpu_of,
                .event_open = cuda_event_open,
                .event_done = cuda_event_done,
                .event_free = cuda_event_free,
                .stream_new = cuda_stream_new,
                .stream_wait = cuda_stream_wait,
                .stream_free = cuda_stream_free,
                .update = cuda_update,
                .cast = cuda_cast,
                .sum = cuda_sum,
                .reduce = cuda_reduce,
                .zero = cuda_zero,
                .copy = cuda_copy,
                .copy_peer = cuda_copy_peer,
                .nccl_open = cuda_nccl_open,
                .nccl_error = cuda_nccl_error,
                .comm_new = cuda_comm_new,
                .comm_free = cuda_comm_free,
                .comm_abort = cuda_comm_abort,
                .broadcast = cuda_broadcast,
                .exchange = cuda_exchange,
                .comm_done = cuda_comm_done,
        };
        return &table;
}

__attribute__((visibility("default"))) zero_gpu_fn zero_gpu_client;

const struct zero_gpu_client *zero_gpu_client(void)
{
        static const struct zero_gpu_client table = {
                .abi_version = ZERO_GPU_ABI_VERSION,
                .uuid = cuda_uuid,
                .map = cuda_map,
                .unmap = cuda_unmap,
                .event_new = cuda_event_new,
                .event_record = cuda_event_record,
                .event_done = cuda_event_done,
                .event_free = cuda_event_free,
        };
        return &table;
}
