/*
 * Selects a thread's GPU, and makes the driver's own calls: exportable memory, and contexts.
 *
 * A trainer's thread may have no context yet, or one that a framework chose.  So this puts aside
 * the context itself, not the number of a GPU: selecting a GPU again would make a context on it.
 */
#include "cuda/plugin.h"

#include <errno.h>
#include <pthread.h>

static struct cuda_driver driver;
static int driver_state; /* 0 or -errno */

enum { VMM_VERSION = 12000 }; /* of the calls looked for: all are older */

static int look_up(const char *name, void *ret_function)
{
        enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
        void *function = NULL;
        int r = cuda_errno(cudaGetDriverEntryPointByVersion(name, &function, VMM_VERSION,
                                                            cudaEnableDefault, &found));

        if (r < 0)
                return r;
        if (found != cudaDriverEntryPointSuccess || !function)
                return -ENODEV;
        *(void **)ret_function = function;
        return 0;
}

static void look_all_up(void)
{
        const struct {
                const char *name;
                void *to;
        } calls[] = {
                { "cuCtxGetCurrent", &driver.ctx_get },
                { "cuCtxSetCurrent", &driver.ctx_set },
                { "cuDeviceGet", &driver.device },
                { "cuDeviceGetAttribute", &driver.attribute },
                { "cuMemCreate", &driver.create },
                { "cuMemRelease", &driver.release },
                { "cuMemGetAllocationGranularity", &driver.granularity },
                { "cuMemExportToShareableHandle", &driver.export },
                { "cuMemImportFromShareableHandle", &driver.import },
                { "cuMemAddressReserve", &driver.reserve },
                { "cuMemAddressFree", &driver.unreserve },
                { "cuMemMap", &driver.map },
                { "cuMemUnmap", &driver.unmap },
                { "cuMemSetAccess", &driver.access },
        };

        for (size_t i = 0; driver_state == 0 && i < sizeof(calls) / sizeof(calls[0]); i++)
                driver_state = look_up(calls[i].name, calls[i].to);
}

int cuda_driver_get(const struct cuda_driver **ret_driver)
{
        static pthread_once_t once = PTHREAD_ONCE_INIT;

        pthread_once(&once, look_all_up);
        if (driver_state == 0)
                *ret_driver = &driver;
        return driver_state;
}

/* The runtime took over the driver's numbers. */
int cuda_driver_errno(CUresult result)
{
        return cuda_errno((cudaError_t)result);
}

int cuda_driver_attribute(const struct cuda_driver *d, int gpu, CUdevice_attribute attribute)
{
        CUdevice device;
        int value;

        return d->device(&device, gpu) || d->attribute(&value, attribute, device) ? -1 : value;
}

static int allow(const struct cuda_driver *d, int gpu, CUdeviceptr address, size_t bytes,
                 CUmemAccess_flags flags)
{
        const CUmemAccessDesc access = {
                .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = gpu },
                .flags = flags,
        };

        return cuda_driver_errno(d->access(address, bytes, &access, 1));
}

int cuda_driver_map_at(const struct cuda_driver *d, int gpu, CUmemGenericAllocationHandle handle,
                       size_t bytes, bool writable, CUdeviceptr address)
{
        int r = cuda_driver_errno(d->map(address, bytes, 0, handle, 0));

        if (r < 0)
                return r;
        if (!writable && allow(d, gpu, address, bytes, CU_MEM_ACCESS_FLAGS_PROT_READ) == 0)
                return 0;
        r = allow(d, gpu, address, bytes, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        if (r < 0)
                (void)d->unmap(address, bytes);
        return r;
}

int cuda_driver_map(const struct cuda_driver *d, int gpu, CUmemGenericAllocationHandle handle,
                    size_t bytes, bool writable, void **ret_memory)
{
        CUdeviceptr address = 0;
        int r = cuda_driver_errno(d->reserve(&address, bytes, 0, 0, 0));

        if (r < 0)
                return r;
        r = cuda_driver_map_at(d, gpu, handle, bytes, writable, address);
        if (r < 0)
                (void)d->unreserve(address, bytes);
        else
                *ret_memory = (void *)(uintptr_t)address;
        return r;
}

void cuda_driver_unmap(const struct cuda_driver *d, void *memory, size_t bytes)
{
        (void)d->unmap((CUdeviceptr)(uintptr_t)memory, bytes);
        (void)d->unreserve((CUdeviceptr)(uintptr_t)memory, bytes);
}

/* Once per GPU, since each call goes to the driver. */
static int begin(int device)
{
        static _Atomic uint64_t begun; /* bits of the first 64 */
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

int cuda_enter(int gpu, struct cuda_saved *ret_saved)
{
        struct cuda_saved saved = { 0 };
        int count = 0, r = cuda_driver_get(&saved.driver);

        /* also initialises the driver, which the driver's own calls do not */
        if (r == 0)
                r = cuda_errno(cudaGetDeviceCount(&count));
        if (r == 0 && (gpu < 0 || gpu >= count))
                r = -EINVAL;
        if (r == 0)
                r = cuda_driver_errno(saved.driver->ctx_get(&saved.context));
        if (r == 0)
                r = cuda_errno(cudaSetDevice(gpu));
        if (r < 0)
                return r;
        *ret_saved = saved;
        return 0;
}

void cuda_restore(const struct cuda_saved *saved)
{
        (void)saved->driver->ctx_set(saved->context);
}
