/* The answer of zeroctl simulate, for people (simulate_show.c). */
#pragma once

#include "ctl.h"

void simulate_show(const struct ctl *ctl, FILE *out, const json_t *answer);
