/*
 * Loads the plugin and finds the GPUs.  It skips GPUs that are too old, so numbers here differ from
 * the plugin's.  The plugin is never unloaded, because threads of the driver may still be in it.
 */
#include "daemon/compute/device/gpu/core.h"

#include <assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "daemon/floor/base/log.h"

enum { OLDEST_MAJOR = 8 }; /* the lowest compute capability that the plugin has kernels for */

const struct zero_cuda_plugin *gpu_plugin;
const struct device_ops *gpu_host;

static struct {
        uint32_t n;
        int ordinal[GPUS_MAX]; /* of the plugin */
        struct zero_cuda_info info[GPUS_MAX];
} gpus;

static int load(const char *path, const struct zero_cuda_plugin **ret, struct fault *fault)
{
        const struct zero_cuda_plugin *plugin;
        zero_cuda_plugin_fn *get;
        void *library;

        if (access(path, R_OK))
                return fault_set(fault, ZERO_EGPU,
                                 "the CUDA plugin %s: %s; a build that finds CUDA installs the "
                                 "plugin, the option cuda_plugin names another",
                                 path, strerror(errno));
        library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (!library)
                return fault_set(fault, ZERO_EGPU, "the CUDA plugin cannot be loaded: %.400s",
                                 dlerror());
        *(void **)&get = dlsym(library, ZERO_CUDA_PLUGIN_SYMBOL);
        plugin = get ? get() : NULL;
        if (plugin && plugin->abi_version == ZERO_CUDA_ABI_VERSION) {
                *ret = plugin; /* stays loaded */
                return 0;
        }
        if (plugin)
                fault_set(fault, ZERO_EGPU,
                          "the CUDA plugin %.300s has interface %u, this zerod needs %u: install "
                          "the plugin that was built with it",
                          path, plugin->abi_version, ZERO_CUDA_ABI_VERSION);
        else
                fault_set(fault, ZERO_EGPU, "%.300s is not a CUDA plugin of zerod", path);
        dlclose(library);
        return ZERO_EGPU;
}

static int find_gpus(const struct zero_cuda_plugin *plugin, struct fault *fault)
{
        struct zero_cuda_info info;
        int count, r = plugin->device_count(&count);

        if (r == -ENODEV)
                return fault_set(fault, ZERO_EGPU,
                                 "there is no GPU, or no NVIDIA driver that is new enough for the "
                                 "CUDA plugin: see nvidia-smi");
        gpus.n = 0;
        for (int i = 0; !r && i < count && gpus.n < GPUS_MAX; i++) {
                r = plugin->device_info(i, &info);
                if (r || info.major < OLDEST_MAJOR)
                        continue;
                gpus.ordinal[gpus.n] = i;
                gpus.info[gpus.n++] = info;
        }
        if (r < 0)
                return fault_set(fault, ZERO_EGPU,
                                 "the GPUs cannot be looked at: %s (with CUDA_LOG_FILE=stderr in "
                                 "the environment the driver says more)",
                                 strerror(-r));
        if (gpus.n == 0)
                return fault_set(fault, ZERO_EGPU,
                                 "the GPU is too old: compute capability %d.%d, the CUDA plugin "
                                 "needs %d.0",
                                 info.major, info.minor, OLDEST_MAJOR);
        return 0;
}

bool gpus_absent(void)
{
        return access(ZEROD_CUDA_PLUGIN, F_OK) && access("/proc/driver/nvidia/version", F_OK);
}

int plugin_open(const char *path, const struct device_ops *host, struct fault *fault)
{
        const struct zero_cuda_plugin *plugin = NULL;
        int r = load(path ? path : ZEROD_CUDA_PLUGIN, &plugin, fault);

        assert(!gpu_plugin);
        if (r == 0)
                r = find_gpus(plugin, fault);
        if (r) {
                gpus.n = 0;
                return r;
        }
        gpu_host = host;
        gpu_plugin = plugin;
        return 0;
}

void plugin_close(void)
{
        gpus.n = 0;
        gpu_plugin = NULL;
}

uint32_t gpus_count(void)
{
        return gpus.n;
}

const struct zero_cuda_info *gpu_info(uint32_t gpu)
{
        assert(gpu < gpus.n);
        return &gpus.info[gpu];
}

int gpu_find(const uint8_t uuid[ZERO_GPU_UUID])
{
        for (uint32_t i = 0; i < gpus.n; i++)
                if (!memcmp(gpus.info[i].uuid, uuid, ZERO_GPU_UUID))
                        return (int)i;
        return GPU_NONE;
}

int gpu_ordinal(uint32_t gpu)
{
        assert(gpu < gpus.n);
        return gpus.ordinal[gpu];
}

int gpu_use(uint32_t gpu)
{
        return gpu_plugin->use(gpu_ordinal(gpu));
}

int gpu_usable(uint32_t gpu, struct fault *fault)
{
        int r = gpu_use(gpu);

        if (r == -ENOMEM)
                return fault_set(
                        fault, ZERO_ENOMEM,
                        "GPU %u (%s) has no memory left for the daemon to use it: leave it "
                        "some hundred MiB",
                        gpu, gpu_info(gpu)->name);
        if (r == -EBUSY)
                return fault_set(fault, ZERO_EGPU,
                                 "GPU %u (%s) lets one process use it at a time: set its compute "
                                 "mode to the default (nvidia-smi -c 0), so that trainers and "
                                 "daemon share it",
                                 gpu, gpu_info(gpu)->name);
        gpu_must(gpu, "it cannot be used", r);
        return 0;
}

void gpu_must(uint32_t gpu, const char *what, int r)
{
        if (r == 0)
                return;
        log_error("GPU %u (%s): %s: %s.  zerod ends; what was in the GPU's memory is lost and will "
                  "be restored as after a crash.  The system's log (Xid) may tell what is wrong "
                  "with the GPU",
                  gpu, gpus.info[gpu].name, what, strerror(-r));
        _exit(1);
}
