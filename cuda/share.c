/*
 * Memory that other processes may map: each call makes its own allocation, so whoever gets it sees
 * nothing else.
 *
 * If the driver exports POSIX descriptors, cuMemCreate() makes the memory.  Some drivers do not
 * (containers, older virtual GPUs): then cudaMalloc() does, with a legacy handle.  Such a handle
 * shows the whole block that the driver cut the allocation from, so the size is rounded up to whole
 * blocks.  If that is refused, too, the GPU is not at fault: -ENOTSUP.
 */
#include "cuda/plugin.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#define LEGACY_BLOCK (UINT64_C(2) << 20)

_Static_assert(sizeof(cudaIpcMemHandle_t) == ZERO_GPU_HANDLE, "a legacy handle of memory fits");

static int round_up(uint64_t bytes, uint64_t unit, uint64_t *ret_bytes)
{
        if (bytes > SIZE_MAX - unit)
                return -ENOMEM;
        *ret_bytes = (bytes + unit - 1) / unit * unit;
        return 0;
}

static int zeroed(void *memory, size_t bytes)
{
        int r = cuda_errno(cudaMemset(memory, 0, bytes));

        return r == 0 ? cuda_errno(cudaDeviceSynchronize()) : r;
}

/* Makes a descriptor of the allocation, and addresses for it. */
static int publish(const struct cuda_driver *d, int gpu, CUmemGenericAllocationHandle handle,
                   uint64_t bytes, struct zero_cuda_share *ret_share)
{
        struct zero_cuda_share share = { .bytes = bytes, .fd = -1 };
        int r = cuda_driver_errno(
                d->export(&share.fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));

        if (r < 0)
                return r;
        (void)fcntl(share.fd, F_SETFD, FD_CLOEXEC);
        r = cuda_driver_map(d, gpu, handle, bytes, true, &share.memory);
        if (r == 0) {
                r = zeroed(share.memory, bytes);
                if (r < 0)
                        cuda_driver_unmap(d, share.memory, bytes);
        }
        if (r < 0) {
                close(share.fd);
                return r;
        }
        *ret_share = share;
        return 0;
}

static int new_by_descriptor(int gpu, uint64_t bytes, struct zero_cuda_share *ret_share)
{
        CUmemAllocationProp prop = {
                .type = CU_MEM_ALLOCATION_TYPE_PINNED,
                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = gpu },
        };
        const struct cuda_driver *d;
        CUmemGenericAllocationHandle handle;
        size_t unit = 0;
        int r = cuda_driver_get(&d);

        if (r < 0)
                return r;
        /* without it no network card reads or writes the memory itself */
        prop.allocFlags.gpuDirectRDMACapable =
                cuda_driver_attribute(
                        d, gpu, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) > 0;
        r = cuda_driver_errno(d->granularity(&unit, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
        if (r == 0)
                r = round_up(bytes, unit, &bytes);
        if (r == 0)
                r = cuda_driver_errno(d->create(&handle, bytes, &prop, 0));
        if (r < 0)
                return r;
        r = publish(d, gpu, handle, bytes, ret_share);
        (void)d->release(handle); /* its addresses and its descriptor keep it alive */
        return r;
}

static int new_by_handle(uint64_t bytes, struct zero_cuda_share *ret_share)
{
        struct zero_cuda_share share = { .fd = -1 };
        cudaIpcMemHandle_t handle;
        int r = round_up(bytes, LEGACY_BLOCK, &share.bytes);

        if (r == 0)
                r = cuda_alloc(share.bytes, &share.memory);
        if (r == 0)
                r = zeroed(share.memory, share.bytes);
        if (r == 0)
                r = cuda_errno(cudaIpcGetMemHandle(&handle, share.memory));
        if (r < 0) {
                cuda_free(share.memory);
                return r;
        }
        memcpy(share.handle, &handle, sizeof(handle));
        *ret_share = share;
        return 0;
}

int cuda_share_new(uint64_t bytes, struct zero_cuda_share *ret_share)
{
        int gpu = 0, r;

        if (bytes == 0)
                return -EINVAL;
        r = cuda_errno(cudaGetDevice(&gpu));
        if (r == 0)
                r = cuda_use(gpu);
        if (r == 0)
                r = new_by_descriptor(gpu, bytes, ret_share);
        if (r == 0 || r == -ENODEV || r == -ENOMEM)
                return r;
        r = new_by_handle(bytes, ret_share);
        if (r == 0 || r == -ENOMEM)
                return r;
        /* a GPU that has failed reports that again */
        return cuda_errno(cudaDeviceSynchronize()) == 0 ? -ENOTSUP : r;
}

/* The wait depends on the thread's GPU, which is restored afterwards. */
static void free_by_descriptor(const struct zero_cuda_share *share)
{
        struct cuda_saved saved;
        int gpu = cuda_gpu_of(share->memory);

        if (gpu < 0 || cuda_enter(gpu, &saved) < 0)
                return;
        (void)cuda_errno(cudaDeviceSynchronize());
        cuda_driver_unmap(saved.driver, share->memory, share->bytes);
        cuda_restore(&saved);
}

void cuda_share_free(struct zero_cuda_share *share)
{
        if (!share->memory)
                return;
        if (share->fd < 0) {
                cuda_free(share->memory);
        } else {
                free_by_descriptor(share);
                close(share->fd);
        }
        *share = (struct zero_cuda_share){ .fd = -1 };
}
