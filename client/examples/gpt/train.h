/*
 * The training loop.
 */
#pragma once

#include "backend.h"
#include "options.h"
#include "text.h"

/* Trains to options->steps and reports.  Returns 0 or a zero_status. */
int train(const struct options *options, const struct text *text, struct fault *fault);
