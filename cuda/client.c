/*
 * The daemon's memory in a trainer: mapped, and copied from and to.  The process remembers what it
 * has mapped and how, because unmapping names an address alone.
 */
#include "cuda/plugin.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct mapping {
        struct mapping *next;
        void *memory;
        uint64_t bytes; /* 0: by a legacy handle */
        int gpu;
        bool writable;
        bool empty; /* addresses without memory */
};

static struct mapping *mappings;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void remember(struct mapping *mapping)
{
        pthread_mutex_lock(&lock);
        mapping->next = mappings;
        mappings = mapping;
        pthread_mutex_unlock(&lock);
}

/* Under the lock. */
static struct mapping **find(const void *memory)
{
        struct mapping **at = &mappings;

        while (*at && (*at)->memory != memory)
                at = &(*at)->next;
        return at;
}

static struct mapping *forget(const void *memory)
{
        struct mapping **at, *found;

        pthread_mutex_lock(&lock);
        at = find(memory);
        found = *at;
        if (found)
                *at = found->next;
        pthread_mutex_unlock(&lock);
        return found;
}

int cuda_uuid(int ordinal, uint8_t ret_uuid[ZERO_GPU_UUID])
{
        struct cudaDeviceProp properties;
        int r = cuda_errno(cudaGetDeviceProperties(&properties, ordinal));

        if (r == 0)
                memcpy(ret_uuid, properties.uuid.bytes, ZERO_GPU_UUID);
        return r;
}

static int import(const struct cuda_driver *d, int fd, CUmemGenericAllocationHandle *ret_handle)
{
        return cuda_driver_errno(d->import(ret_handle, (void *)(intptr_t)fd,
                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
}

static int map_descriptor(const struct cuda_driver *d, int gpu, int fd, uint64_t bytes,
                          bool writable, void **ret_memory)
{
        CUmemGenericAllocationHandle handle;
        int r = import(d, fd, &handle);

        if (r < 0)
                return r;
        r = cuda_driver_map(d, gpu, handle, bytes, writable, ret_memory);
        (void)d->release(handle);
        return r;
}

static int map_handle(const uint8_t handle[ZERO_GPU_HANDLE], void **ret_memory)
{
        cudaIpcMemHandle_t ipc;

        memcpy(&ipc, handle, sizeof(ipc));
        return cuda_errno(cudaIpcOpenMemHandle(ret_memory, ipc, cudaIpcMemLazyEnablePeerAccess));
}

int cuda_map(int ordinal, int fd, const uint8_t handle[ZERO_GPU_HANDLE], uint64_t bytes,
             bool writable, void **ret_memory)
{
        struct mapping *mapping;
        struct cuda_saved saved;
        int r;

        if (bytes == 0)
                return -EINVAL;
        r = cuda_enter(ordinal, &saved);
        if (r < 0)
                return r;
        mapping = calloc(1, sizeof(*mapping));
        if (!mapping)
                r = -ENOMEM;
        else if (fd >= 0)
                r = map_descriptor(saved.driver, ordinal, fd, bytes, writable, &mapping->memory);
        else
                r = map_handle(handle, &mapping->memory);
        cuda_restore(&saved);
        if (r < 0) {
                free(mapping);
                return r;
        }
        mapping->bytes = fd >= 0 ? bytes : 0;
        mapping->gpu = ordinal;
        mapping->writable = writable;
        *ret_memory = mapping->memory;
        remember(mapping);
        return 0;
}

static int replace(const struct cuda_driver *d, struct mapping *m, int fd)
{
        CUdeviceptr address = (CUdeviceptr)(uintptr_t)m->memory;
        CUmemGenericAllocationHandle handle;

        if (import(d, fd, &handle) < 0)
                return -EINVAL;
        (void)cuda_errno(cudaDeviceSynchronize());
        (void)d->unmap(address, m->bytes);
        int r = cuda_driver_map_at(d, m->gpu, handle, m->bytes, m->writable, address);
        (void)d->release(handle);
        m->empty = r < 0;
        return r < 0 ? -EIO : 0;
}

int cuda_remap(void *memory, int fd)
{
        struct mapping *mapping;
        struct cuda_saved saved;
        int r;

        pthread_mutex_lock(&lock);
        mapping = *find(memory);
        pthread_mutex_unlock(&lock);
        if (!mapping || mapping->bytes == 0 || mapping->empty ||
            cuda_enter(mapping->gpu, &saved) < 0)
                return -EINVAL;
        r = replace(saved.driver, mapping, fd);
        cuda_restore(&saved);
        return r;
}

static void unmap(const struct mapping *mapping)
{
        struct cuda_saved saved;

        if (cuda_enter(mapping->gpu, &saved) < 0)
                return;
        (void)cuda_errno(cudaDeviceSynchronize());
        if (mapping->empty)
                (void)saved.driver->unreserve((CUdeviceptr)(uintptr_t)mapping->memory,
                                              mapping->bytes);
        else if (mapping->bytes)
                cuda_driver_unmap(saved.driver, mapping->memory, mapping->bytes);
        else
                (void)cuda_errno(cudaIpcCloseMemHandle(mapping->memory));
        cuda_restore(&saved);
}

void cuda_unmap(void *memory)
{
        struct mapping *mapping = memory ? forget(memory) : NULL;

        if (!mapping)
                return;
        unmap(mapping);
        free(mapping);
}

/* The default stream is that of the selected GPU. */
int cuda_copy_for(int ordinal, void *dst, const void *src, uint64_t bytes, void *stream)
{
        struct cuda_saved saved;
        int r = cuda_enter(ordinal, &saved);

        if (r < 0)
                return r;
        r = cuda_copy(dst, src, bytes, stream);
        cuda_restore(&saved);
        return r;
}

int cuda_pin(int ordinal, void *memory, uint64_t bytes)
{
        struct cuda_saved saved;
        int r = cuda_enter(ordinal, &saved);

        if (r < 0)
                return r;
        r = cuda_errno(cudaHostRegister(memory, bytes, cudaHostRegisterPortable));
        cuda_restore(&saved);
        return r;
}

void cuda_unpin(int ordinal, void *memory)
{
        struct cuda_saved saved;

        if (cuda_enter(ordinal, &saved) < 0)
                return;
        (void)cuda_errno(cudaDeviceSynchronize());
        (void)cuda_errno(cudaHostUnregister(memory));
        cuda_restore(&saved);
}
