/* optimizers.h - hyperparameters on their way to the daemon, which has their names and bounds. */
#pragma once

#include "zero.h"

#include "proto/client.pb-c.h"

/* The optimizer of a group that names none. */
const char *optimizer_default(void);
/* The message refers to the set.  ZERO_EINVAL: there is no such optimizer. */
int optimizer_message(const struct zero_set *set, Zero__HyperSet *ret);
