/*
 * What the C files of the plugin share: the functions of its two tables by file, and the driver's
 * memory management.  Internal to cuda/.
 */
#pragma once

#include <cuda.h>

#include "cuda/errors.h"
#include "cuda/kernels.h"

/* memory.c */
int cuda_alloc(size_t bytes, void **ret_memory);
void cuda_free(void *memory);
int cuda_memory(uint64_t *ret_free, uint64_t *ret_total);
int cuda_pinned_new(size_t bytes, void **ret_memory);
void cuda_pinned_free(void *memory);
int cuda_gpu_of(const void *memory);
int cuda_zero(void *dst, size_t n, void *stream);
int cuda_copy_peer(void *dst, int dst_device, const void *src, int src_device, size_t n,
                   void *stream);

/* share.c */
int cuda_share_new(uint64_t bytes, struct zero_cuda_share *ret_share);
void cuda_share_free(struct zero_cuda_share *share);

/* event.c */
int cuda_event_new(int ordinal, uint8_t ret_handle[ZERO_GPU_HANDLE], void **ret_event);
int cuda_event_record(void *event, void *stream);
int cuda_event_open(const uint8_t handle[ZERO_GPU_HANDLE], void **ret_event);
int cuda_event_done(void *event);
void cuda_event_free(void *event);

/* collective.c */
int cuda_nccl_open(int *ret_version);
const char *cuda_nccl_error(void);
int cuda_comm_new(const int *devices, uint32_t n, void **ret_comm);
void cuda_comm_free(void *comm);
void cuda_comm_abort(void *comm);
int cuda_broadcast(void *comm, uint32_t root, const void *src, void *const *dst, size_t n,
                   void *const *streams);
int cuda_exchange(void *comm, const struct zero_cuda_move *moves, uint32_t n_moves,
                  void *const *streams);
int cuda_comm_done(void *comm, void *const *streams);

/* client.c */
int cuda_uuid(int ordinal, uint8_t ret_uuid[ZERO_GPU_UUID]);
int cuda_map(int ordinal, int fd, const uint8_t handle[ZERO_GPU_HANDLE], uint64_t bytes,
             bool writable, void **ret_memory);
int cuda_remap(void *memory, int fd);
void cuda_unmap(void *memory);
int cuda_copy_for(int ordinal, void *dst, const void *src, uint64_t bytes, void *stream);
int cuda_pin(int ordinal, void *memory, uint64_t bytes);
void cuda_unpin(int ordinal, void *memory);

/* ---- driver.c ------------------------------------------------------------------- */

/*
 * Driver calls that the runtime lacks.  They are looked up through the runtime: libcuda is not
 * linked, so the plugin loads without a driver.
 */
struct cuda_driver {
        CUresult (*ctx_get)(CUcontext *context);
        CUresult (*ctx_set)(CUcontext context);
        CUresult (*device)(CUdevice *device, int ordinal);
        CUresult (*attribute)(int *value, CUdevice_attribute attribute, CUdevice device);
        CUresult (*create)(CUmemGenericAllocationHandle *handle, size_t bytes,
                           const CUmemAllocationProp *prop, unsigned long long flags);
        CUresult (*release)(CUmemGenericAllocationHandle handle);
        CUresult (*granularity)(size_t *bytes, const CUmemAllocationProp *prop,
                                CUmemAllocationGranularity_flags flags);
        CUresult (*export)(void *shareable, CUmemGenericAllocationHandle handle,
                           CUmemAllocationHandleType type, unsigned long long flags);
        CUresult (*import)(CUmemGenericAllocationHandle *handle, void *shareable,
                           CUmemAllocationHandleType type);
        CUresult (*reserve)(CUdeviceptr *address, size_t bytes, size_t alignment, CUdeviceptr at,
                            unsigned long long flags);
        CUresult (*unreserve)(CUdeviceptr address, size_t bytes);
        CUresult (*map)(CUdeviceptr address, size_t bytes, size_t offset,
                        CUmemGenericAllocationHandle handle, unsigned long long flags);
        CUresult (*unmap)(CUdeviceptr address, size_t bytes);
        CUresult (*access)(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *desc,
                           size_t count);
};

/* -ENODEV: no driver, or one without these calls.  The table is static. */
int cuda_driver_get(const struct cuda_driver **ret_driver);
int cuda_driver_errno(CUresult result);
/* An attribute of the GPU; -1: the driver does not tell. */
int cuda_driver_attribute(const struct cuda_driver *d, int gpu, CUdevice_attribute attribute);

/*
 * Gives an allocation addresses at which that GPU reads it, writes it if writable or if the driver
 * maps no memory for reading alone, and which keep it alive.
 */
int cuda_driver_map(const struct cuda_driver *d, int gpu, CUmemGenericAllocationHandle handle,
                    size_t bytes, bool writable, void **ret_memory);
/* The same at reserved addresses where nothing is mapped. */
int cuda_driver_map_at(const struct cuda_driver *d, int gpu, CUmemGenericAllocationHandle handle,
                       size_t bytes, bool writable, CUdeviceptr address);
void cuda_driver_unmap(const struct cuda_driver *d, void *memory, size_t bytes);

/* Selects the GPU of the calling thread, whose waits block instead of spinning. */
int cuda_use(int device);

/* The calling thread's GPU, put aside until cuda_restore(). */
struct cuda_saved {
        const struct cuda_driver *driver;
        CUcontext context;
};

int cuda_enter(int gpu, struct cuda_saved *ret_saved);
void cuda_restore(const struct cuda_saved *saved);
