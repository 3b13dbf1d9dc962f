/*
 * The driver's half of fake_runtime.h.  "GPU memory" is a memfd; a range of addresses that is
 * reserved or mapped but not accessible cannot be touched.
 */
#include "tests/unit/cuda/fake_runtime.h"

#include <criterion/criterion.h>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST = 64, MOST_PHYSICAL = 1024, DEVICES = 7 };

/* Memory itself: known by its inode for as long as the process lives. */
struct physical {
        ino_t inode;
        size_t bytes;
        int gpu;
};

struct handle {
        bool used;
        int fd;
};

static struct fake_range ranges[MOST];
static struct physical physical[MOST_PHYSICAL];
static struct handle handles[MOST];
static int n_physical;

/* ---- memory --------------------------------------------------------------- */

int fake_memory_new(size_t bytes, int gpu)
{
        int fd = memfd_create("fake GPU memory", MFD_CLOEXEC);
        struct stat st;

        cr_assert(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0 && fstat(fd, &st) == 0);
        cr_assert_lt(n_physical, MOST_PHYSICAL);
        physical[n_physical++] = (struct physical){ st.st_ino, bytes, gpu };
        return fd;
}

static const struct physical *physical_of(int fd)
{
        struct stat st;

        for (int i = 0; fstat(fd, &st) == 0 && i < n_physical; i++)
                if (physical[i].inode == st.st_ino)
                        return &physical[i];
        return NULL;
}

size_t fake_memory_bytes(int fd)
{
        return physical_of(fd)->bytes;
}

struct fake_range *fake_range_new(enum fake_kind kind, size_t bytes, int fd, int gpu)
{
        struct fake_range *r = ranges;
        void *at = mmap(NULL, bytes, fd < 0 ? PROT_NONE : PROT_READ | PROT_WRITE,
                        fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, fd, 0);

        cr_assert_neq(at, MAP_FAILED);
        while (r->kind)
                cr_assert_lt(++r - ranges, MOST);
        *r = (struct fake_range){ kind, (uintptr_t)at, bytes, fd, gpu };
        return r;
}

void fake_range_free(struct fake_range *r)
{
        munmap((void *)r->at, r->bytes);
        if (r->fd >= 0)
                close(r->fd);
        *r = (struct fake_range){ NONE };
}

struct fake_range *fake_range_at(const void *memory)
{
        struct fake_range *r = fake_range_of(memory);

        return r && r->at == (uintptr_t)memory ? r : NULL;
}

struct fake_range *fake_range_of(const void *memory)
{
        for (struct fake_range *r = ranges; r < ranges + MOST; r++)
                if (r->kind && (uintptr_t)memory >= r->at && (uintptr_t)memory < r->at + r->bytes)
                        return r;
        return NULL;
}

/* ---- the driver's memory management ------------------------------------------ */

static CUresult ctx_get(CUcontext *context)
{
        cr_assert(fake_initialised(), "the driver is used before it is initialised");
        *context = fake_current() == FAKE_NO_CONTEXT ? NULL
                                                     : (CUcontext)(uintptr_t)(fake_current() + 1);
        return fake_next();
}

static CUresult ctx_set(CUcontext context)
{
        fake_set_current((int)(uintptr_t)context - 1);
        return CUDA_SUCCESS;
}

static CUresult device_get(CUdevice *device, int ordinal)
{
        *device = ordinal + DEVICES;
        return CUDA_SUCCESS;
}

static CUresult attribute_get(int *value, CUdevice_attribute attribute, CUdevice device)
{
        cr_assert(device >= DEVICES && device < DEVICES + FAKE_GPUS);
        *value = attribute == CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED
                         ? fake.rdma
                         : (int)attribute;
        return fake.no_attributes ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static void must_be_right(const CUmemAllocationProp *prop)
{
        cr_assert_eq(prop->type, CU_MEM_ALLOCATION_TYPE_PINNED);
        cr_assert_eq(prop->requestedHandleTypes, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
        cr_assert_eq(prop->location.type, CU_MEM_LOCATION_TYPE_DEVICE);
        cr_assert_eq(prop->location.id, fake_current());
        cr_assert_null(prop->win32HandleMetaData);
        cr_assert_eq(prop->allocFlags.gpuDirectRDMACapable, fake.rdma);
}

static CUresult granularity(size_t *bytes, const CUmemAllocationProp *prop,
                            CUmemAllocationGranularity_flags flags)
{
        must_be_right(prop);
        cr_assert_eq(flags, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
        *bytes = FAKE_UNIT;
        return fake_next();
}

static CUresult handle_new(int fd, CUmemGenericAllocationHandle *handle)
{
        int i = 0;

        while (handles[i].used)
                cr_assert_lt(++i, MOST);
        handles[i] = (struct handle){ .used = true, .fd = fd };
        *handle = (CUmemGenericAllocationHandle)(i + 1);
        return CUDA_SUCCESS;
}

static struct handle *handle_of(CUmemGenericAllocationHandle handle)
{
        cr_assert(handle >= 1 && handle <= MOST && handles[handle - 1].used);
        return &handles[handle - 1];
}

static CUresult create(CUmemGenericAllocationHandle *handle, size_t bytes,
                       const CUmemAllocationProp *prop, unsigned long long flags)
{
        CUresult r = fake_next();

        must_be_right(prop);
        cr_assert(bytes > 0 && bytes % FAKE_UNIT == 0 && flags == 0);
        if (r == CUDA_SUCCESS && fake.no_descriptors)
                r = CUDA_ERROR_NOT_SUPPORTED;
        return r ? r : handle_new(fake_memory_new(bytes, prop->location.id), handle);
}

static CUresult release(CUmemGenericAllocationHandle handle)
{
        struct handle *h = handle_of(handle);

        close(h->fd);
        *h = (struct handle){ .used = false };
        return CUDA_SUCCESS;
}

static CUresult export(void *shareable, CUmemGenericAllocationHandle handle,
                       CUmemAllocationHandleType type, unsigned long long flags)
{
        CUresult r = fake_next();

        cr_assert(type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && flags == 0);
        if (r == CUDA_SUCCESS)
                *(int *)shareable = dup(handle_of(handle)->fd); /* as the driver's: inherited */
        return r;
}

static CUresult import(CUmemGenericAllocationHandle *handle, void *shareable,
                       CUmemAllocationHandleType type)
{
        int fd = (int)(intptr_t)shareable;
        CUresult r = fake_next();

        cr_assert_eq(type, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
        cr_assert_neq(fake_current(), FAKE_NO_CONTEXT);
        if (r == CUDA_SUCCESS && !physical_of(fd))
                r = CUDA_ERROR_INVALID_VALUE;
        return r ? r : handle_new(fcntl(fd, F_DUPFD_CLOEXEC, 0), handle);
}

static CUresult reserve(CUdeviceptr *address, size_t bytes, size_t alignment, CUdeviceptr at,
                        unsigned long long flags)
{
        CUresult r = fake_next();

        cr_assert(bytes > 0 && bytes % FAKE_UNIT == 0 && alignment == 0 && at == 0 && flags == 0);
        if (r == CUDA_SUCCESS)
                *address = fake_range_new(RESERVED, bytes, -1, fake_current())->at;
        return r;
}

static CUresult unreserve(CUdeviceptr address, size_t bytes)
{
        struct fake_range *r = fake_range_at((void *)address);

        cr_assert(r && r->kind == RESERVED && r->bytes == bytes);
        fake_range_free(r);
        return CUDA_SUCCESS;
}

static CUresult map(CUdeviceptr address, size_t bytes, size_t offset,
                    CUmemGenericAllocationHandle handle, unsigned long long flags)
{
        struct fake_range *r = fake_range_at((void *)address);
        int fd = handle_of(handle)->fd;
        CUresult result = fake_next();

        cr_assert(r && r->kind == RESERVED && r->bytes == bytes && offset == 0 && flags == 0);
        if (result == CUDA_SUCCESS && physical_of(fd)->bytes < bytes)
                result = CUDA_ERROR_INVALID_VALUE;
        if (result)
                return result;
        r->kind = MAPPED;
        r->fd = dup(fd);
        r->gpu = physical_of(fd)->gpu;
        return CUDA_SUCCESS;
}

static CUresult unmap(CUdeviceptr address, size_t bytes)
{
        struct fake_range *r = fake_range_at((void *)address);

        cr_assert(r && (r->kind == MAPPED || r->kind == ACCESSIBLE) && r->bytes == bytes);
        cr_assert_not(fake_is_enqueued(r->gpu), "memory is unmapped while work on it is under way");
        mmap((void *)address, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        close(r->fd);
        r->kind = RESERVED;
        r->fd = -1;
        return CUDA_SUCCESS;
}

static CUresult access_of(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *desc,
                          size_t count)
{
        struct fake_range *r = fake_range_at((void *)address);
        CUresult result = fake_next();

        cr_assert(r && r->kind == MAPPED && r->bytes == bytes && count == 1);
        cr_assert(desc->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
                  desc->location.id == r->gpu);
        cr_assert(desc->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ||
                  desc->flags == CU_MEM_ACCESS_FLAGS_PROT_READ);
        if (desc->flags == CU_MEM_ACCESS_FLAGS_PROT_READ && fake.all_writable)
                result = CUDA_ERROR_NOT_SUPPORTED;
        if (result)
                return result;
        mmap((void *)address, bytes,
             desc->flags == CU_MEM_ACCESS_FLAGS_PROT_READ ? PROT_READ : PROT_READ | PROT_WRITE,
             MAP_SHARED | MAP_FIXED, r->fd, 0);
        r->kind = ACCESSIBLE;
        return CUDA_SUCCESS;
}

/* Each is as old as CUDA 10.2, and has changed in none since: a newer version would be another. */
cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *status)
{
        const struct {
                const char *name;
                void *function;
        } known[] = {
                { "cuCtxGetCurrent", (void *)ctx_get },
                { "cuCtxSetCurrent", (void *)ctx_set },
                { "cuDeviceGet", (void *)device_get },
                { "cuDeviceGetAttribute", (void *)attribute_get },
                { "cuMemCreate", (void *)create },
                { "cuMemRelease", (void *)release },
                { "cuMemGetAllocationGranularity", (void *)granularity },
                { "cuMemExportToShareableHandle", (void *)export },
                { "cuMemImportFromShareableHandle", (void *)import },
                { "cuMemAddressReserve", (void *)reserve },
                { "cuMemAddressFree", (void *)unreserve },
                { "cuMemMap", (void *)map },
                { "cuMemUnmap", (void *)unmap },
                { "cuMemSetAccess", (void *)access_of },
        };

        cr_assert(version >= 10020 && version <= CUDART_VERSION && flags == cudaEnableDefault);
        *function = NULL;
        *status = cudaDriverEntryPointSymbolNotFound;
        for (size_t i = 0; !fake.old_driver && i < sizeof known / sizeof known[0]; i++)
                if (!strcmp(symbol, known[i].name)) {
                        *function = known[i].function;
                        *status = cudaDriverEntryPointSuccess;
                }
        return cudaSuccess;
}

/* ---- at the end --------------------------------------------------------------------- */

void fake_driver_must_be_empty(void)
{
        for (int i = 0; i < MOST; i++) {
                cr_assert_eq(ranges[i].kind, NONE, "a range of kind %d is left", ranges[i].kind);
                cr_assert_not(handles[i].used, "a handle of an allocation is left");
        }
}
