/* Whole training runs on a simple text. */
#pragma once

#include "options.h"

enum { RUN_STEPS = 50 };

/* A tiny model and RUN_STEPS steps, --local. */
struct options run_options(void);
/* Trains to options->steps and gives the loss of each step from `first` on; the job must be at
 * `first`. */
void run_from(const struct options *options, uint32_t first, double ret_losses[static RUN_STEPS]);
/* The same from the beginning. */
void run(const struct options *options, double ret_losses[static RUN_STEPS]);
