/*
 * gpu_ops() as the tests call it: with operands in host memory.  Each is brought to where it is
 * to be, on the host or on a GPU, the operation is run there, and what it wrote is brought back.
 * Around what lies on a GPU a margin must not change.
 */
#pragma once

#include "daemon/compute/device/device.h"

/*
 * Opens the plugin $ZEROD_CUDA_PLUGIN in this process.  False: no GPU, or no plugin; why is
 * printed.  CUDA does not outlive a fork(): not before one.
 */
bool placed_open(void);
const struct device_ops *placed_ops(void);
/*
 * Where the operands of the next operations lie: a digit each, the first the least, of the number
 * system with placed_kinds() digits: 0 the host, 1 the first GPU...  PLACES_IN_TURN: another
 * combination at every call.
 */
#define PLACES_IN_TURN UINT64_MAX
void placed_set(uint64_t places);
uint32_t placed_kinds(void);
