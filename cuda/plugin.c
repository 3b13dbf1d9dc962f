/* The plugin's two tables, GPUs and streams. */
#include "cuda/plugin.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

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

static int cuda_attribute(int device, uint32_t i, const char **ret_name, int *ret_value)
{
        static const struct {
                const char *name;
                CUdevice_attribute attribute;
        } attributes[] = {
                { "compute_mode", CU_DEVICE_ATTRIBUTE_COMPUTE_MODE },
                { "mps", CU_DEVICE_ATTRIBUTE_MPS_ENABLED },
                { "ipc_events", CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED },
                { "virtual_memory", CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED },
                { "export_descriptor",
                  CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED },
                { "export_fabric", CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED },
                { "pool_export", CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES },
                { "host_register", CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED },
                { "host_register_read_only",
                  CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED },
                { "rdma", CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED },
                { "rdma_exported", CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED },
                { "rdma_writes_ordering", CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING },
                { "pageable_memory", CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS },
                { "copy_engines", CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT },
        };
        const struct cuda_driver *d;
        int r = cuda_driver_get(&d);

        if (r == 0 && i >= sizeof(attributes) / sizeof(attributes[0]))
                r = -ENOENT;
        if (r < 0)
                return r;
        *ret_name = attributes[i].name;
        *ret_value = cuda_driver_attribute(d, device, attributes[i].attribute);
        return 0;
}

static int cuda_stream_new(void **ret_stream)
{
        cudaStream_t stream = NULL;
        int gpu = 0, r = cuda_errno(cudaGetDevice(&gpu));

        if (r == 0)
                r = cuda_use(gpu); /* the thread may never have selected one */
        if (r == 0)
                r = cuda_errno(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        if (r < 0)
                return r;
        *ret_stream = stream;
        return 0;
}

static int64_t now_ns(void)
{
        struct timespec t;

        clock_gettime(CLOCK_MONOTONIC, &t);
        return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Contexts block (cuda_use()), and a thread that blocks comes back 40 to 80 us late in a virtual
 * machine.  Most work is done sooner than that, so the thread asks for a while first. */
static int cuda_stream_wait(void *stream)
{
        enum { ASK_NS = 100000 };
        int64_t until = now_ns() + ASK_NS;
        cudaError_t error;

        while ((error = cudaStreamQuery(stream)) == cudaErrorNotReady && now_ns() < until) {
                (void)cudaGetLastError(); /* no launch of this thread shall report it */
                sched_yield();
        }
        if (error == cudaErrorNotReady) {
                (void)cudaGetLastError();
                error = cudaStreamSynchronize(stream);
        }
        return cuda_errno(error);
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
                .product = cuda_product,
                .divide = cuda_divide,
                .pack = cuda_pack,
                .unpack = cuda_unpack,
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
                .attribute = cuda_attribute,
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
                .remap = cuda_remap,
                .unmap = cuda_unmap,
                .copy = cuda_copy_for,
                .pin = cuda_pin,
                .unpin = cuda_unpin,
                .event_new = cuda_event_new,
                .event_record = cuda_event_record,
                .event_done = cuda_event_done,
                .event_free = cuda_event_free,
        };
        return &table;
}
