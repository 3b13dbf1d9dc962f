/* Memory of this process alone: on a GPU, or pinned on the host. */
#include "cuda/plugin.h"

#include <errno.h>

int cuda_alloc(size_t bytes, void **ret_memory)
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

void cuda_free(void *memory)
{
        if (memory)
                (void)cuda_errno(cudaFree(memory));
}

int cuda_memory(uint64_t *ret_free, uint64_t *ret_total)
{
        size_t free_bytes = 0, total = 0;
        int r = cuda_errno(cudaMemGetInfo(&free_bytes, &total));

        if (r < 0)
                return r;
        *ret_free = free_bytes;
        *ret_total = total;
        return 0;
}

/* Portable: pinned for all GPUs, whichever the calling thread has selected. */
int cuda_pinned_new(size_t bytes, void **ret_memory)
{
        void *memory = NULL;
        int r;

        if (bytes == 0)
                return -EINVAL;
        r = cuda_errno(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable));
        if (r < 0)
                return r;
        *ret_memory = memory;
        return 0;
}

void cuda_pinned_free(void *memory)
{
        if (memory)
                (void)cuda_errno(cudaFreeHost(memory));
}

int cuda_gpu_of(const void *memory)
{
        struct cudaPointerAttributes attributes = { 0 };

        if (cuda_errno(cudaPointerGetAttributes(&attributes, memory)) < 0)
                return -1;
        return attributes.type == cudaMemoryTypeDevice ? attributes.device : -1;
}

int cuda_zero(void *dst, size_t n, void *stream)
{
        return n ? cuda_errno(cudaMemsetAsync(dst, 0, n, stream)) : 0;
}

/* Only its own GPU can read exported memory.  Only this call, which knows both GPUs, copies it to
 * another one. */
int cuda_copy_peer(void *dst, int dst_device, const void *src, int src_device, size_t n,
                   void *stream)
{
        return n ? cuda_errno(cudaMemcpyPeerAsync(dst, dst_device, src, src_device, n, stream)) : 0;
}

int cuda_copy(void *dst, const void *src, size_t n, void *stream)
{
        return n ? cuda_errno(cudaMemcpyAsync(dst, src, n, cudaMemcpyDefault, stream)) : 0;
}
