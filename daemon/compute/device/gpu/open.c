/* gpus_open() and gpus_close(): the order in which the parts begin and end. */
#include "daemon/compute/device/gpu/core.h"

#include <assert.h>

int gpus_open(const char *path, const struct device_ops *host, struct fault *fault)
{
        int r = plugin_open(path, host, fault);

        if (r)
                return r;
        if (lanes_open()) {
                plugin_close();
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        }
        if (gpu_chores_open()) {
                lanes_close();
                plugin_close();
                return fault_set(fault, ZERO_ENOMEM, "no thread more can be started");
        }
        gpu_ops_open();
        return 0;
}

void gpus_close(void)
{
        if (!gpu_plugin)
                return;
        assert(gpu_memory_empty());
        gpu_chores_close();
        collective_close();
        lanes_close();
        gpu_buffers_close();
        gpu_memory_reset();
        plugin_close();
}
