/*
 * Progress for people (text) or scripts (JSON lines) on standard output, and the loss file.
 */
#pragma once

#include <stdio.h>

#include "client/include/zero.h"
#include "options.h"

struct report {
        const struct options *options;
        FILE *loss_file;              /* NULL: none */
        double begin;                 /* seconds on the monotonic clock */
        double window;                /* when the last progress line was printed */
        uint32_t first, window_first; /* the steps at these times */
        double computing;             /* CPU seconds of forward and backward passes since then */
        uint32_t skipped;
};

/* Opens the loss file. */
int report_init(const struct options *options, struct fault *fault, struct report *ret_report);
void report_deinit(struct report *report);

void report_model(const struct report *report, uint64_t parameters, uint64_t groups);
/* Starts the clock of throughput and remaining time; decided: steps committed or skipped. */
void report_begin(struct report *report, uint32_t step, uint64_t decided);
double report_cpu_seconds(void); /* of all threads so far */
/* step: the steps done so far; loss: this rank's own.  A skipped step is only counted. */
void report_step(struct report *report, uint32_t step, double loss, double lr,
                 const struct zero_result *result);
void report_validation(const struct report *report, uint32_t step, double loss);
void report_end(const struct report *report, uint32_t steps, double loss, double bigram);
