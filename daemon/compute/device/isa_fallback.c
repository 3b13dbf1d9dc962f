/* For CPUs without kernels of their own: the scalar ones. */
#include "daemon/compute/device/host.h"

const struct host_isa host_isas[] = { { NULL, NULL } };
