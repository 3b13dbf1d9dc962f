/*
 * The training loop.
 */
#pragma once

#include "backend.h"
#include "options.h"
#include "corpus.h"

/* Trains to options->steps and reports.  Returns 0 or a zero_status. */
int train(const struct options *options, const struct corpus *text, struct fault *fault);
