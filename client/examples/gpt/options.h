/*
 * The command line: one table of options gives parser, environment and --help.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "proto/fault.h"

enum gpt_accumulate { GPT_ACCUMULATE_TRAINER, GPT_ACCUMULATE_OWNER };
enum gpt_schedule { GPT_SCHEDULE_PLAIN, GPT_SCHEDULE_LAYERWISE };
enum gpt_init { GPT_INIT_LAYOUT, GPT_INIT_PUT };
enum gpt_log { GPT_LOG_TEXT, GPT_LOG_JSON };

struct options {
        const char *job, *socket, *data, *loss_file, *device;
        uint32_t rank, world_size, local_world_size, incarnation, timeout;
        uint32_t context, layers, heads, width;
        uint32_t steps, batch, micro_batches, warmup, stage, threads;
        uint32_t eval_every, eval_windows, log_every;
        uint64_t seed;
        double lr, min_lr, beta1, beta2, eps, weight_decay, clip, loss_scale;
        uint32_t accumulate, sums, dtype, init, log, on_lost_rank,
                schedule; /* enum gpt_*, enum zero_* */
        bool local, bigram, help;
};

/* Strings point into argv and the environment. */
int options_parse(int argc, char **argv, struct fault *fault, struct options *ret_options);
void options_help(void);
