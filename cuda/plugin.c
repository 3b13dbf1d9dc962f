/*
 * The plugin's table, and what needs no kernel: GPUs, memory, streams, plain copies.
 * Every code of CUDA is translated here, by cuda_errno(), and appears nowhere else.
 */
#include "cuda/kernels.h"

#include <errno.h>
#include <stdio.h>

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
        *ret_info = info;
        return 0;
}

static int cuda_use(int device)
{
        return cuda_errno(cudaSetDevice(device));
}

static int cuda_alloc(size_t bytes, void **ret_memory)
{
        void *memory = NULL;
        int r;

        if (bytes == 0)
                return -EINVAL;
        r = cuda_errno(cudaMalloc(&memory, bytes));
        if (r < 0)
                return r;
        *ret_memory = memory;
        return 0;
}

static void cuda_free(void *memory)
{
        if (memory)
                (void)cuda_errno(cudaFree(memory));
}

static int cuda_stream_new(void **ret_stream)
{
        cudaStream_t stream = NULL;
        int r = cuda_errno(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));

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

static int cuda_zero(void *dst, size_t n, void *stream)
{
        return n ? cuda_errno(cudaMemsetAsync(dst, 0, n, stream)) : 0;
}

int cuda_copy(void *dst, const void *src, size_t n, void *stream)
{
        return n ? cuda_errno(cudaMemcpyAsync(dst, src, n, cudaMemcpyDefault, stream)) : 0;
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
                .stream_new = cuda_stream_new,
                .stream_wait = cuda_stream_wait,
                .stream_free = cuda_stream_free,
                .adamw = cuda_adamw,
                .cast = cuda_cast,
                .accumulate = cuda_accumulate,
                .sum = cuda_sum,
                .norm = cuda_norm,
                .nonfinite = cuda_nonfinite,
                .zero = cuda_zero,
                .copy = cuda_copy,
        };
        return &table;
}
