/* See device.h. */
#include "device.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/zero_cuda.h"
#include "proto/cleanup.h"

struct device {
        void *library;
        const struct zero_cuda_plugin *plugin;
        struct zero_sync sync;
        void *staging;
};

DEFINE_CLEANUP(struct device *, device_free)

static int load(struct device *device, struct fault *fault)
{
        const char *chosen = getenv("ZEROD_CUDA_PLUGIN");
        const char *path = chosen && chosen[0] ? chosen : ZEROD_CUDA_PLUGIN;
        zero_cuda_plugin_fn *table = NULL;
        device->library = dlopen(path, RTLD_NOW | RTLD_NODELETE);
        if (device->library)
                table = (zero_cuda_plugin_fn *)dlsym(device->library, ZERO_CUDA_PLUGIN_SYMBOL);
        if (!table)
                return fault_set(fault, ZERO_EGPU, "cannot load zerod's CUDA plugin: %s",
                                 dlerror());
        device->plugin = table();
        if (device->plugin->abi_version != ZERO_CUDA_ABI_VERSION)
                return fault_set(fault, ZERO_EGPU, "%s is the plugin of another version", path);
        return 0;
}

static int prepare(struct device *device, const char *name, size_t bytes)
{
        const struct zero_cuda_plugin *plugin = device->plugin;
        int r = plugin->use(atoi(name + strlen("cuda:")));
        if (!r)
                r = plugin->stream_new(&device->sync.stream);
        if (!r)
                r = plugin->pinned_new(bytes, &device->staging);
        return r;
}

int device_new(const char *name, size_t bytes, struct fault *fault, struct device **ret_device)
{
        CLEANUP(cleanup_device_free) struct device *device = calloc(1, sizeof(*device));
        if (!device)
                return fault_errno(fault, -ENOMEM, "device");
        int r = load(device, fault);
        if (r)
                return r;
        r = prepare(device, name, bytes);
        if (r)
                return fault_set(fault, ZERO_EGPU, "%s: %s", name, strerror(-r));
        *ret_device = STEAL(device);
        return 0;
}

void device_free(struct device *device)
{
        if (!device)
                return;
        if (device->staging)
                device->plugin->pinned_free(device->staging);
        if (device->plugin)
                device->plugin->stream_free(device->sync.stream);
        if (device->library)
                dlclose(device->library);
        free(device);
}

void *device_staging(const struct device *device)
{
        return device->staging;
}

int device_copy(const struct device *device, void *to, const void *from, size_t bytes,
                struct fault *fault)
{
        int r = device->plugin->copy(to, from, bytes, device->sync.stream);
        if (!r)
                r = device->plugin->stream_wait(device->sync.stream);
        return r ? fault_set(fault, ZERO_EGPU, "copying: %s", strerror(-r)) : 0;
}

struct zero_sync *device_sync(struct device *device)
{
        return &device->sync;
}
