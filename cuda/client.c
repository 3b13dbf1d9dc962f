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

static struct mapping *forget(const void *memory)
{
        struct mapping **at, *found;

        pthread_mutex_lock(&lock);
        for (at = &mappings; *at && (*at)->memory != memory;)
                at = &(*at)->next;
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

static int map_descriptor(const struct cuda_driver *d, int gpu, int fd, uint64_t bytes,
                          void **ret_memory)
{
        CUmemGenericAllocationHandle handle;
        int r = cuda_driver_errno(
                d->import(&handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));

        if (r < 0)
                return r;
        r = cuda_driver_map(d, gpu, handle, bytes, ret_memory);
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
             void **ret_memory)
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
                r = map_descriptor(saved.driver, ordinal, fd, bytes, &mapping->memory);
        else
                r = map_handle(handle, &mapping->memory);
        cuda_restore(&saved);
        if (r < 0) {
                free(mapping);
                return r;
        }
        mapping->bytes = fd >= 0 ? bytes : 0;
        mapping->gpu = ordinal;
        *ret_memory = mapping->memory;
        remember(mapping);
        return 0;
}

static void unmap(const struct mapping *mapping)
{
        struct cuda_saved saved;

        if (cuda_enter(mapping->gpu, &saved) < 0)
                return;
        (void)cuda_errno(cudaDeviceSynchronize());
        if (mapping->bytes)
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
