/* Whole training runs on a simple text. */
#pragma once

#include "options.h"

enum { RUN_STEPS = 50 };

/* A tiny model and RUN_STEPS steps, --local. */
struct options run_options(void);
/* Trains; the loss of each step. */
void run(const struct options *options, double ret_losses[static RUN_STEPS]);
