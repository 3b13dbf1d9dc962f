/* A CPU without kernels of its own: the scalar ones serve. */
#include "daemon/device/host.h"

const struct host_isa host_isas[] = { { NULL, NULL } };
