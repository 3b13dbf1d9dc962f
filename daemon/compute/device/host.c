/* Chooses the host's implementation: the one asked for, or the best that this CPU has. */
#include "daemon/compute/device/host.h"

#include <string.h>

const struct device_ops *device_host(const char *isa)
{
        for (const struct host_isa *i = host_isas; i->ops; i++)
                if ((!isa || !strcmp(isa, i->ops->name)) && i->supported())
                        return i->ops;
        return !isa || !strcmp(isa, host_scalar_ops.name) ? &host_scalar_ops : NULL;
}
